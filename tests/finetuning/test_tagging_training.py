"""Tagging with the engine: learning by heart, files left behind, two replicas."""

import dataclasses

import numpy as np
import pytest
from support.tiny_finetuning import QUICK, tiny_start
from support.tiny_run import WORDS

from albert_tf.checkpoints.bundle import latest_bundle, read_bundle
from albert_tf.finetuning.engine.fit import fine_tune
from albert_tf.finetuning.tasks.conll import TaggedSentence
from albert_tf.finetuning.tasks.tagging import TaggingTask

pytestmark = pytest.mark.slow


def random_sentences(count, *, tags, seed):
  rng = np.random.default_rng(seed)
  sentences = []
  for number in range(count):
    words = rng.choice(WORDS, rng.integers(2, 6)).tolist()
    chosen = rng.choice(tags, len(words)).tolist()
    sentences.append(TaggedSentence(words=tuple(words), tags=tuple(chosen), where=f"f:{number}"))
  return sentences


def test_64_sentences_are_learnt_by_heart(tmp_path):
  start = tiny_start(initializer_range=0.2)
  sentences = random_sentences(64, tags=["O", "B-X", "I-X"], seed=0)
  task = TaggingTask(
    splits={"train": sentences, "eval": sentences}, tokenizer=start.tokenizer, max_seq_length=12
  )
  assert len(task.features("eval")) > 64  # Some sentences are cut into windows.
  settings = dataclasses.replace(QUICK, learning_rate=3e-3, num_train_steps=200, eval_steps=100)
  results = fine_tune(task, settings, start=start, output_dir=str(tmp_path / "run")).results
  assert results["accuracy"] >= 0.95
  assert results["f1"] >= 0.95
  lines = (tmp_path / "run/predictions_eval.tsv").read_text().split("\n")
  pairs = [line.split("\t")[1:] for line in lines if line]
  assert len(pairs) == sum(len(sentence.words) for sentence in sentences)
  assert np.mean([gold == predicted for gold, predicted in pairs]) == results["accuracy"]


def test_two_replicas_make_the_updates_of_one(tmp_path, mirrored_2):
  """The mean over a batch's words is over all replicas, whose words and windows differ in number."""
  start = tiny_start(initializer_range=0.2)
  sentences = random_sentences(13, tags=["O", "B-X"], seed=1)
  settings = dataclasses.replace(
    QUICK, learning_rate=1e-3, num_train_steps=5, eval_steps=5, train_batch_size=4, eval_batch_size=4
  )
  weights = []
  for name, strategy in (("one", None), ("two", mirrored_2)):
    task = TaggingTask(
      splits={"train": sentences, "eval": sentences}, tokenizer=start.tokenizer, max_seq_length=12
    )
    fine_tune(task, settings, start=start, output_dir=str(tmp_path / name), strategy=strategy)
    weights.append(read_bundle(latest_bundle(str(tmp_path / name / "checkpoints/best"))))
  for name, value in weights[0].items():
    np.testing.assert_allclose(weights[1][name], value, atol=2e-5, err_msg=name)
