"""Tagging: reading files, words to pieces and back, scores."""

import json

import numpy as np
import pytest
from reference.batches import numpy_batch
from support.tiny_run import train_tokenizer

from albert_tf.errors import UserError
from albert_tf.finetuning.tasks.conll import Columns, TaggedSentence, read_tagged
from albert_tf.finetuning.tasks.tagging import TaggingTask, align, entity_scores, marks_entities

CONLL = """-DOCSTART- -X- O O

EU NNP I-NP B-ORG
rejects VBZ I-VP O

Peter NNP I-NP B-PER
Blackburn NNP I-NP I-PER
"""
CONLLU = """# text = Vámonos
1-2\tvámonos\t_\t_
1\tvamos\tir\tVERB
2\tnos\tnosotros\tPRON
2.1\tya\tya\tADV

"""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
  return train_tokenizer(tmp_path_factory.mktemp("spm"))


def read(tmp_path, name, text, **columns):
  (tmp_path / name).write_bytes(text.encode())
  return read_tagged(str(tmp_path / name), Columns(**columns))


def sentence(*words, tags=None):
  return TaggedSentence(words=words, tags=tags, where="f:1")


def test_columns(tmp_path):
  first, second = read(tmp_path, "a.txt", CONLL)
  assert (first.words, first.tags, first.new_document) == (("EU", "rejects"), ("B-ORG", "O"), True)
  assert (second.words, second.tags, second.new_document) == (
    ("Peter", "Blackburn"),
    ("B-PER", "I-PER"),
    False,
  )
  assert second.where.endswith("a.txt:6")
  assert read(tmp_path, "a.txt", CONLL, tag_column=1)[0].tags == ("NNP", "VBZ")
  assert read(tmp_path, "a.txt", CONLL.replace("\n", "\r\n"))[1].tags == ("B-PER", "I-PER")
  spaces = read(tmp_path, "b.txt", "New York\tB-LOC\n\u00a0\tO\na\u2028b\tO")
  assert spaces[0].words == ("New York", "\u00a0", "a\u2028b")
  (universal,) = read(tmp_path, "c.conllu", CONLLU)
  assert (universal.words, universal.tags) == (("vamos", "nos"), ("VERB", "PRON"))


def test_files_without_tags(tmp_path):
  assert read(tmp_path, "a.txt", "EU\nrejects\n\nPeter\n")[0].tags is None
  assert read(tmp_path, "a.txt", "EU _\nrejects _\n")[0].tags is None
  assert read(tmp_path, "a.txt", "EU NNP\n", tag_column=3)[0].tags is None
  assert read(tmp_path, "a.jsonl", '{"tokens": ["EU"], "tags": null}\n')[0].tags is None


def test_json_lines(tmp_path):
  rows = [{"w": ["EU", "rejects"], "ner": ["B-ORG", "O"]}, {"w": [], "ner": []}, {"w": ["x"], "ner": ["O"]}]
  text = "\n\n".join(map(json.dumps, rows))
  found = read(tmp_path, "a.jsonl", text, token_key="w", tag_key="ner")
  assert [each.tags for each in found] == [("B-ORG", "O"), ("O",)]


@pytest.mark.parametrize(
  ("name", "text", "message"),
  [
    ("a.jsonl", '\n{"tokens": ["a", "b"], "tags": ["O"]}', r"2 words and 1 tags in .*a.jsonl:2"),
    ("a.jsonl", '{"words": ["a"]}', r"lists of texts under 'tokens' .* Received: .*words.* in .*:1"),
    ("a.txt", "a O\nb\n", r"2 words and 1 tags in .*a.txt:1"),
    ("a.txt", "a O\n\nb\n", r"1 words and 0 tags in .*a.txt:3"),
    ("a.txt", "\n-DOCSTART- O\n\n", "at least one. Received: .*a.txt, which has none"),
  ],
)  # fmt: skip
def test_what_is_no_tagged_file(tmp_path, name, text, message):
  with pytest.raises(UserError, match=message):
    read(tmp_path, name, text)


@pytest.mark.parametrize("max_seq_length", [64, 12, 4, 3])
def test_the_first_piece_carries_the_tag(tokenizer, max_seq_length):
  sentences = [
    sentence("Sky", "\u0301", "birdsgreen", "old", tags=("A", "B", "C", "A")),
    sentence(*["small", "trees"] * 9, tags=("A", "B") * 9),
  ]
  label_ids = {"A": 0, "B": 1, "C": 2}
  aligned = align(sentences, tokenizer, label_ids=label_ids, max_seq_length=max_seq_length)
  features = aligned.features
  count = len(features)
  x, labels, weights = numpy_batch(features, range(count), batch_size=count, length=max_seq_length)
  assert (count > 2) == (max_seq_length < 64)
  assert aligned.places[1].tolist() == [-1, -1]
  seen = set()
  pairs = [pair for each in sentences for pair in zip(each.words, each.tags, strict=True)]
  for (word, tag), (row, position) in zip(pairs, aligned.places.tolist(), strict=True):
    if row >= 0:
      seen.add((row, position))
      assert x["input_ids"][row, position] == tokenizer.encode(word)[0]
      assert labels[row, position] == label_ids[tag]
  assert len(seen) == 4 - 1 + 18
  assert set(zip(*map(np.ndarray.tolist, np.nonzero(weights)), strict=True)) == seen
  ends = x["input_mask"].sum(axis=1) - 1
  assert (x["input_ids"][:, 0] == tokenizer.cls_id).all()
  assert (x["input_ids"][np.arange(count), ends] == tokenizer.sep_id).all()


def test_windows_by_hand(tokenizer):
  """20 words of a piece each, 8 in a window: neighbours share two, and each decides one of them."""
  places = align([sentence(*["the"] * 20)], tokenizer, label_ids={}, max_seq_length=10).places
  assert places[:, 0].tolist() == [0] * 7 + [1] * 6 + [2] * 7
  assert places[:, 1].tolist() == [*range(1, 8), *range(2, 8), *range(2, 9)]


def test_predictions_return_to_words(tokenizer, tmp_path):
  words = sentence("old", "\u0301", *["trees"] * 30, tags=("B-X", "O", *["O", "B-X", "I-X"] * 10))
  task = TaggingTask(
    splits={"train": [words], "eval": [words], "test": [sentence("sky", "day")]},
    tokenizer=tokenizer,
    max_seq_length=12,
  )
  assert task.spec.label_names == ("B-X", "O", "I-X")  # The most frequent first.
  assert task.best_metric == "f1"
  features = task.features("eval")
  perfect = [np.eye(3)[label] for label in features.labels]
  assert len(perfect) > 1
  scores = task.evaluate({"logits": perfect})
  assert scores.pop("loss") == pytest.approx(np.log(np.e + 2) - 1)  # Of one logit 1 and two 0.
  assert scores == {"accuracy": 1.0, "precision": 1.0, "recall": 1.0, "f1": 1.0, "f1_X": 1.0}
  task.write_predictions({"logits": perfect}, "eval", str(tmp_path))
  lines = (tmp_path / "predictions_eval.tsv").read_text().split("\n")
  assert lines[:3] == ["old\tB-X\tB-X", "\u0301\tO\tO", "trees\tO\tO"]
  assert len(lines) == 32 + 2
  task.write_predictions({"logits": np.zeros([1, 12, 3])}, "test", str(tmp_path))
  assert (tmp_path / "predictions_test.tsv").read_text() == "sky\tB-X\nday\tB-X\n\n"


def test_the_loss_is_the_mean_over_words(tokenizer):
  """Neither the other pieces of a word, nor padding, nor a batch that is not full changes it."""
  sentences = [
    sentence("birdsgreen", "old", tags=("A", "B")),
    sentence(*["small"] * 9, tags=("A",) * 9),
    sentence("\u0301", tags=("B",)),
  ]
  task = TaggingTask(splits={"train": sentences}, tokenizer=tokenizer, max_seq_length=16)
  _, labels, weights = numpy_batch(task.features("train"), [0, 1, 2], batch_size=5, length=16)
  logits = np.random.default_rng(0).normal(size=(5, 16, 2)).astype(np.float32)
  by_word = [
    np.log(np.exp(logits[row, position]).sum()) - logits[row, position, task.spec.label_names.index(tag)]
    for tag, (row, position) in zip(
      [tag for each in sentences for tag in each.tags], task.aligned("train").places, strict=True
    )
    if row >= 0
  ]
  assert len(by_word) == 11
  np.testing.assert_allclose(task.loss()(labels, logits, weights), np.mean(by_word), rtol=1e-5)


def test_a_tag_that_is_not_known(tokenizer):
  with pytest.raises(UserError, match=r"one of A. Received: 'Z' in the sentence of f:1"):
    align([sentence("old", tags=("Z",))], tokenizer, label_ids={"A": 0}, max_seq_length=8)
  splits = {"train": [sentence("old", "sky")]}
  with pytest.raises(UserError, match="train sentences have a tag"):
    TaggingTask(splits=splits, tokenizer=tokenizer, max_seq_length=8)


def test_entity_scores_by_hand():
  gold = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-PER"]]
  predicted = [["B-PER", "I-PER", "O", "B-PER"], ["B-LOC", "O"]]
  scores = entity_scores(
    gold, predicted, kinds=["LOC", "PER", "ORG"]
  )  # Three predicted, three gold, one right.
  np.testing.assert_allclose([scores["precision"], scores["recall"], scores["f1"]], 1 / 3)
  np.testing.assert_allclose([scores["f1_PER"], scores["f1_LOC"], scores["f1_ORG"]], [0.5, 0.0, 0.0])
  assert entity_scores([["U-LOC", "B-PER", "L-PER"]], [["B-LOC", "B-PER", "I-PER"]], kinds=[])["f1"] == 1.0
  assert entity_scores([["O"]], [["O"]], kinds=[])["f1"] == 0.0
  assert marks_entities(["O", "B-X", "I-X"])
  assert not marks_entities(["NOUN", "VERB"])
