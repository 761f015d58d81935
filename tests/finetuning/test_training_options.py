"""Micro-batches, recomputation and class weights; killed and alone."""

import dataclasses
import json

import numpy as np
import pytest
from sklearn.utils import class_weight
from support.tiny_finetuning import QUICK, made_up_texts, tiny_start, tiny_task

from albert_tf.checkpoints.bundle import latest_bundle, read_bundle
from albert_tf.compat import keras
from albert_tf.errors import UserError
from albert_tf.finetuning.engine.batches import FlatFeatures
from albert_tf.finetuning.engine.fit import class_factors, fine_tune
from albert_tf.finetuning.tasks.base import FeatureSet
from albert_tf.modeling import named_variables

# 4 updates an epoch, the last batch of each filled up; evaluations within epochs and at the last update.
PLAIN = dataclasses.replace(
  QUICK, num_train_steps=7, num_warmup_steps=0, eval_steps=3, train_batch_size=4, eval_batch_size=8
)
EVERYTHING = dataclasses.replace(
  PLAIN,
  gradient_accumulation_steps=2,
  remat=True,
  class_weights="c1=3.0",
)


class KilledError(Exception):
  """Ends everything."""


class Watch(keras.callbacks.Callback):
  """Notes the weights after each update, by number; may end everything after one."""

  def __init__(self, kill_after=0):
    super().__init__()
    self.seen, self._kill_after, self._step = {}, kill_after, 0

  def on_train_begin(self, logs=None):
    self._note()

  def on_train_batch_end(self, batch, logs=None):
    self._step += 1
    self._note()
    if self._step == self._kill_after:
      raise KilledError

  def _note(self):
    self.seen[self._step] = {name: v.numpy() for name, v in named_variables(self.model).items()}


def run(directory, settings=PLAIN, **options):
  task = tiny_task({"train": made_up_texts(13, seed=5), "eval": made_up_texts(9, seed=6)})
  return fine_tune(task, settings, start=tiny_start(), output_dir=str(directory), **options)


def kept(directory):
  values = read_bundle(latest_bundle(str(directory / "checkpoints/best")))
  return {name: value for name, value in values.items() if name != "global_step"}


def train_lines(directory):
  lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
  return [line for line in lines if line["split"] == "train"]


@pytest.mark.slow
def test_micro_batches_and_recomputation_make_the_same_updates(tmp_path):
  whole, parts = Watch(), Watch()
  run(tmp_path / "whole", callbacks=[whole])
  settings = dataclasses.replace(PLAIN, gradient_accumulation_steps=2, remat=True)
  run(tmp_path / "parts", settings, callbacks=[parts])
  for name, value in whole.seen[7].items():
    np.testing.assert_allclose(value, parts.seen[7][name], atol=5e-5, err_msg=name)
  losses = [[line["loss"] for line in train_lines(tmp_path / name)] for name in ("whole", "parts")]
  assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.slow
def test_everything_on_two_replicas_killed(tmp_path, mirrored_2):
  settings = EVERYTHING
  one, two = Watch(), Watch()
  run(tmp_path / "one", settings, callbacks=[one])
  run(tmp_path / "expected", settings, callbacks=[two], strategy=mirrored_2)
  for name, value in one.seen[7].items():
    np.testing.assert_allclose(value, two.seen[7][name], atol=5e-5, err_msg=name)
  with pytest.raises(KilledError):
    run(tmp_path / "run", settings, callbacks=[Watch(kill_after=5)], strategy=mirrored_2)
  run(tmp_path / "run", settings, strategy=mirrored_2)
  ours, theirs = kept(tmp_path / "run"), kept(tmp_path / "expected")
  for name, value in ours.items():
    np.testing.assert_array_equal(value, theirs[name], err_msg=name)
  assert [line["step"] for line in train_lines(tmp_path / "run")] == [4, 7]


def test_class_weights_are_keras_factors_on_each_example():
  labels = np.array([0, 1, 1, 1, 2, 1], np.int32)
  balanced = class_factors(labels, "abc", dataclasses.replace(PLAIN, class_weights="balanced"))
  expected = class_weight.compute_sample_weight("balanced", labels)
  np.testing.assert_allclose(balanced, expected, rtol=1e-6)
  np.testing.assert_array_equal(
    class_factors(labels, "abc", dataclasses.replace(PLAIN, class_weights="b=0.5")),
    [1, 0.5, 0.5, 0.5, 1, 0.5],
  )
  rows = [{"input_ids": np.arange(2, dtype=np.int32), "input_mask": np.array([1, 0], np.int32)}] * 6
  flat = FlatFeatures.of(FeatureSet(rows, labels, factors=balanced))
  np.testing.assert_array_equal(flat.row_factors, balanced)


def test_what_cannot_be_is_refused_before_anything_is_written(tmp_path):
  refused = {
    "weights of c7": {"class_weights": "c7=2.0"},
    r"train_batch_size must be divisible.*gradient_accumulation_steps=3": {"gradient_accumulation_steps": 3},
  }
  for message, changes in refused.items():
    with pytest.raises(UserError, match=message):
      run(tmp_path / "run", dataclasses.replace(PLAIN, **changes))
    assert not (tmp_path / "run").exists()
  for changes in ({"class_weights": "equal"}, {"class_weights": "c0=-1.0"}):
    with pytest.raises(UserError):
      dataclasses.replace(PLAIN, **changes)
  texts = made_up_texts(4, regression=True)
  values = tiny_task({"train": texts, "eval": texts}, regression=True)
  balanced = dataclasses.replace(PLAIN, class_weights="balanced")
  with pytest.raises(UserError, match="for classification"):
    fine_tune(values, balanced, start=tiny_start(), output_dir=str(tmp_path / "values"))
