"""Tagging: reading files, words to pieces and back, scores."""

import numpy as np
import pytest
from seqeval.metrics import classification_report
from support.tiny_run import tokenizer

from albert_tf.errors import UserError
from albert_tf.finetuning.tasks.conll import TaggedSentence, read_tagged
from albert_tf.finetuning.tasks.tagging import TaggingTask, align, entity_scores

CONLL = """-DOCSTART- -X- O O

EU NNP I-NP B-ORG
rejects VBZ I-VP O

Peter NNP I-NP B-PER
Blackburn NNP I-NP I-PER
"""


def read(tmp_path, name, text):
  (tmp_path / name).write_bytes(text.encode())
  return read_tagged(str(tmp_path / name))


def sentence(*words, tags=()):
  return TaggedSentence(words=words, tags=tags, where="f:1")


def test_columns(tmp_path):
  first, second = read(tmp_path, "a.txt", CONLL)
  assert (first.words, first.tags) == (("EU", "rejects"), ("B-ORG", "O"))
  assert (second.words, second.tags) == (("Peter", "Blackburn"), ("B-PER", "I-PER"))
  assert second.where.endswith(":6")
  assert read(tmp_path, "a.txt", CONLL.replace("\n", "\r\n"))[1].tags == ("B-PER", "I-PER")
  spaces = read(tmp_path, "b.txt", "New York\tB-LOC\n\u00a0\tO\na\u2028b\tO")
  assert spaces[0].words == ("New York", "\u00a0", "a\u2028b")


def test_files_without_tags(tmp_path):
  for text in ("EU\nrejects\n\nPeter\n", "EU _\nrejects _\n"):
    assert read(tmp_path, "a.txt", text)[0].tags == ()
  assert read(tmp_path, "a.jsonl", '{"tokens": ["EU"], "tags": null}\n')[0].tags == ()


def test_json_lines(tmp_path):
  rows = (
    '{"tokens": ["EU", "rejects"], "tags": ["B-ORG", "O"]}\n\n'
    '{"tokens": [], "tags": []}\n{"tokens": ["x"], "tags": ["O"]}'
  )
  found = read(tmp_path, "a.jsonl", rows)
  assert [each.tags for each in found] == [("B-ORG", "O"), ("O",)]


@pytest.mark.parametrize(
  ("name", "text", "message"),
  [
    ("a.jsonl", '{"tokens": ["a", "b"], "tags": ["O"]}', r"Received: 2 .* 1 .*a\.jsonl:1"),
    ("a.jsonl", '{"words": ["a"]}', r"Received: \{'words': \['a'\]\} in .*a\.jsonl:1"),
    ("a.jsonl", '{"tokens": "a b"}', r"Received: .*'a b'.*a\.jsonl:1"),
    ("a.conllu", "1\tEU\t_\tPROPN\n", r"Received: .*a\.conllu"),
    ("a.txt", "a O\n\nb\n", r"Received: 1 .* 0 .*a\.txt:3"),
  ],
)
def test_what_is_no_tagged_file(tmp_path, name, text, message):
  with pytest.raises(UserError, match=message):
    read(tmp_path, name, text)


@pytest.mark.parametrize("max_seq_length", [64, 12, 4, 3])
def test_the_first_piece_carries_the_tag(max_seq_length):
  sentences = [
    sentence("Sky", "\u0301", "birdsgreen", "old", tags=("A", "B", "C", "A")),
    sentence(*["small", "trees"] * 9, tags=("A", "B") * 9),
  ]
  label_ids = {"A": 0, "B": 1, "C": 2}
  features, places = align(
    sentences, tokenizer(), label_ids=label_ids, max_seq_length=max_seq_length
  )
  count = len(features)
  x, labels, weights = features.padded(max_seq_length)
  assert (count > 2) == (max_seq_length < 64)
  assert places[1].tolist() == [-1, -1]
  seen = set()
  pairs = [pair for each in sentences for pair in zip(each.words, each.tags, strict=True)]
  for (word, tag), (row, position) in zip(pairs, places.tolist(), strict=True):
    if row >= 0:
      seen.add((row, position))
      assert x["input_ids"][row, position] == tokenizer().encode(word)[0]
      assert labels[row, position] == label_ids[tag]
  assert len(seen) == 4 - 1 + 18
  assert set(zip(*map(np.ndarray.tolist, np.nonzero(weights)), strict=True)) == seen
  ends = x["input_mask"].sum(axis=1) - 1
  assert (x["input_ids"][:, 0] == tokenizer().cls_id).all()
  assert (x["input_ids"][np.arange(count), ends] == tokenizer().sep_id).all()


def test_predictions_return_to_words(tmp_path):
  words = sentence("old", "\u0301", *["trees"] * 30, tags=("B-X", "O", *["O", "B-X", "I-X"] * 10))
  task = TaggingTask(
    splits={"train": [words], "eval": [words], "test": [sentence("sky", "day")]},
    tokenizer=tokenizer(),
    max_seq_length=12,
  )
  assert task.spec.label_names == ("B-X", "O", "I-X")  # The most frequent first.
  assert task.best_metric == "f1"
  features = task.features("eval")
  perfect = [np.eye(3)[label] for label in features.labels]
  assert len(perfect) > 1
  scores = task.evaluate({"logits": perfect})
  assert scores == {"accuracy": 1.0, "precision": 1.0, "recall": 1.0, "f1": 1.0, "f1_X": 1.0}
  task.write_predictions({"logits": perfect}, "eval", str(tmp_path))
  lines = (tmp_path / "predictions_eval.tsv").read_text().split("\n")
  assert lines[:3] == ["old\tB-X\tB-X", "\u0301\tO\tO", "trees\tO\tO"]
  assert len(lines) == 32 + 2
  task.write_predictions({"logits": np.zeros([1, 12, 3])}, "test", str(tmp_path))
  assert (tmp_path / "predictions_test.tsv").read_text() == "sky\tB-X\nday\tB-X\n\n"


def test_a_tag_that_is_not_known():
  with pytest.raises(UserError, match=r"one of A. Received: 'Z' in the sentence of f:1"):
    align([sentence("old", tags=("Z",))], tokenizer(), label_ids={"A": 0}, max_seq_length=8)
  splits = {"train": [sentence("old", "sky")]}
  with pytest.raises(UserError, match="Received: none in f:1"):
    TaggingTask(splits=splits, tokenizer=tokenizer(), max_seq_length=8)


def test_entity_scores():
  """The scores of random tags equal those of seqeval."""
  names = ["O", "B-PER", "I-PER"]
  assert entity_scores([["O"]], [["O"]], names=names) == dict.fromkeys(
    ["precision", "recall", "f1", "f1_PER"], 0.0
  )
  names = ["O", *(f"{letter}-{kind}" for letter in "BIES" for kind in ("PER", "LOC"))]
  rng = np.random.default_rng(0)
  gold, predicted = ([rng.choice(names, n).tolist() for n in range(1, 40)] for _ in range(2))
  scores = entity_scores(gold, predicted, names=names)
  wanted = classification_report(gold, predicted, output_dict=True)
  for name, of in (("micro avg", "f1"), ("PER", "f1_PER"), ("LOC", "f1_LOC")):
    assert scores[of] == pytest.approx(wanted[name]["f1-score"])
  total = [wanted["micro avg"][name] for name in ("precision", "recall")]
  assert [scores["precision"], scores["recall"]] == pytest.approx(total)
