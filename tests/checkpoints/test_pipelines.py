"""Fine-tuned models in `transformers.pipeline` and back give equal names and scores, also for texts that are cut."""

import dataclasses
import pathlib
import random
import types

import numpy as np
import pytest
from support import tiny_run
from support.goldens import SPM_MODEL
from support.stacks import interop
from support.synthetic_checkpoint import convert_to
import tensorflow as tf

from albert_tf.configs.task import TaskSpec
from albert_tf.keras_api.pretrained import AlbertMaskedLM
from albert_tf.keras_api.tasks import CLASS_OF_KIND
from albert_tf.tokenization import AlbertTokenizer, TokenizerConfig

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
WORDS = random.Random(0).choices(tiny_run.WORDS, k=320)
TEXT, QUESTION = " ".join(WORDS), "small birds sing"
TASKS = {
  "text-classification": TaskSpec(kind="classification", label_names=("a", "b", "c"), name="t"),
  "text-classification of a value": TaskSpec(kind="regression", name="t"),
  "token-classification": TaskSpec(
    kind="token_classification", label_names=("O", "B-X", "I-X"), name="t"
  ),
  "question-answering": TaskSpec(
    kind="question_answering", name="t", squad_version="1.1", max_seq_length=100
  ),
}


def same_classes(pipe, ours):
  logits = ours.predict([TEXT], verbose=0)[0]
  scores = {"LABEL_0": logits[0]}
  if ours.task.label_names:
    scores = dict(zip(ours.task.label_names, tf.nn.softmax(logits).numpy(), strict=True))
  found = {row["label"]: row["score"] for row in pipe(TEXT, truncation=True, top_k=None)}
  assert found == pytest.approx(scores, abs=1e-5)


def same_tags(pipe, ours):
  """Asserts equal tags of all words that fit; the tag of a word is that of its first piece."""
  of_words = tf.nn.softmax(ours.predict({"words": [WORDS]}, verbose=0)[0]).numpy()
  pieces = [row for row in pipe(TEXT, ignore_labels=[]) if row["word"].startswith("▁")]
  assert len(pieces) == 21
  for piece, probabilities in zip(pieces, of_words, strict=False):
    assert piece["entity"] == ours.task.label_names[probabilities.argmax()]
    assert piece["score"] == pytest.approx(probabilities.max(), abs=1e-5)


def same_answers(pipe, ours):
  """Asserts equal starts and ends of answers in the text that fits; Transformers 5 has no pipeline for them."""
  batch = pipe.tokenizer(QUESTION, TEXT, truncation="only_second", return_tensors="pt")
  found = pipe.model(**batch)
  logits = ours.predict({"question": [QUESTION], "context": [TEXT]}, verbose=0)
  for name in ("start_logits", "end_logits"):
    np.testing.assert_allclose(found[name].detach(), logits[name], atol=1e-4)


def load(transformers, name, folder):
  if name != "question-answering":
    return transformers.pipeline(name.partition(" ")[0], model=folder)
  model = transformers.AutoModelForQuestionAnswering.from_pretrained(folder)
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  return types.SimpleNamespace(model=model, tokenizer=tokenizer)


@pytest.mark.parametrize("name", TASKS)
def test_there_and_back(name, tmp_path):
  torch, transformers = interop("torch"), interop("transformers")
  tokenizer = tiny_run.tokenizer()
  task, config = TASKS[name], tiny_run.tiny_model(61, max_position_embeddings=128).config
  config = dataclasses.replace(config, vocab_size=tokenizer.vocab_size)
  if name != "question-answering":  # Whole words: ours does not tag one that is cut.
    ends = np.cumsum([len(tokenizer.encode(word)) for word in WORDS])
    task = dataclasses.replace(task, max_seq_length=2 + int(ends[20]))
  ours = tiny_run.write_fine_tuned_run(tmp_path / "run", task, config, tokenizer)
  convert_to(tmp_path / "hf", tmp_path / "run", "huggingface")
  first_word = name.partition("-")[0]
  same = {"text": same_classes, "token": same_tags, "question": same_answers}[first_word]
  pipe = load(transformers, name, str(tmp_path / "hf"))
  same(pipe, type(ours).from_pretrained(str(tmp_path / "run")))

  with torch.no_grad():  # As if it was trained there.
    for parameter in pipe.model.parameters():
      parameter.add_(0.1 * torch.randn_like(parameter))
  pipe.model.save_pretrained(tmp_path / "back")
  pipe.tokenizer.save_pretrained(tmp_path / "back")
  found = TaskSpec.load(str(tmp_path / "back"))
  assert (found.kind, found.label_names) == (task.kind, task.label_names)
  assert found.max_seq_length == task.max_seq_length
  same(pipe, CLASS_OF_KIND[found.kind].from_pretrained(str(tmp_path / "back")))


def masked_sentences():
  """50 sentences with punctuation, spaces, words and other masks around masks."""
  frames = "the sky is {} and blue|{} birds sing.|he said: {}|grass grows{} under it|it's {}"
  shapes = 'M|M,|(M)|"M!"|-M-|M\'s|M; M?| M |Ming|preM…'.replace("M", "[MASK]")
  return [frame.format(shape) for frame in frames.split("|") for shape in shapes.split("|")]


def test_fill_mask_of_50_sentences(tmp_path):
  """Masks that touch punctuation have the same tokens around them, so the same words with the same scores."""
  transformers = interop("torch", "transformers")
  tokenizer = AlbertTokenizer(pathlib.Path(SPM_MODEL).read_bytes(), TokenizerConfig())
  tiny_run.write_run(tmp_path / "run", tiny_run.tiny_model(tokenizer.vocab_size), tokenizer)
  convert_to(tmp_path / "hf", tmp_path / "run", "huggingface", allow_unmatched="seq_relationship")
  pipe = transformers.pipeline("fill-mask", model=str(tmp_path / "hf"), top_k=10)
  sentences = masked_sentences()
  assert len(set(sentences)) == 50
  filled = AlbertMaskedLM.from_pretrained(str(tmp_path / "run")).fill(sentences)
  for sentence, masks in zip(sentences, filled, strict=True):
    theirs = pipe(sentence)
    for row, words in zip(theirs if len(masks) > 1 else [theirs], masks, strict=True):
      ordinary = [answer for answer in row if answer["token"] not in pipe.tokenizer.all_special_ids]
      names = [tokenizer.pieces[answer["token"]].removeprefix("▁") for answer in ordinary]
      assert names[:5] == [word for word, _ in words], sentence
      scores = [answer["score"] for answer in ordinary[:5]]
      assert scores == pytest.approx([score for _, score in words], abs=1e-5), sentence


def test_tags_of_words_with_punctuation(tmp_path):
  """Given words, the pipeline's first row of each word is its served tag; a "▁" alone may be that row."""
  transformers = interop("torch", "transformers")
  tokenizer = AlbertTokenizer(pathlib.Path(SPM_MODEL).read_bytes(), TokenizerConfig())
  config = tiny_run.tiny_model(tokenizer.vocab_size, max_position_embeddings=128).config
  task = TASKS["token-classification"]
  ours = tiny_run.write_fine_tuned_run(tmp_path / "run", task, config, tokenizer)
  convert_to(tmp_path / "hf", tmp_path / "run", "huggingface")
  pipe = transformers.pipeline("token-classification", model=str(tmp_path / "hf"), ignore_labels=[])
  text = 'he said: "(the) sky-blue £12, of Zürich\'s -- 1990," … 😀 x'
  served = type(ours).from_pretrained(str(tmp_path / "run")).tag([text])[0].words
  firsts = {}
  for row in pipe(text.split(), is_split_into_words=True)[0]:
    firsts.setdefault(row["start"], row)
  assert [word.text for word in served] == text.split()
  for word in served:
    row = firsts[word.start]
    assert row["entity"] == word.label
    assert row["score"] == pytest.approx(word.probability, abs=1e-5)
  lone = [word.text for word in served if firsts[word.start]["word"] == "▁"]
  assert len(lone) > 2
