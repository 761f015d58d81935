"""Fine-tuning that is killed or stopped at any moment ends with the weights of an uninterrupted run."""

import dataclasses
import functools
import json
import os
import re
import signal
import time
from unittest import mock

import keras
import numpy as np
import pytest
from support.commands.forked_commands import ForkedCommands
from support.task_files import write_mrpc
from support.tiny_finetuning import QUICK, made_up_texts, tiny_start, tiny_task
from support.tiny_run import write_pretrained
import tensorflow as tf

from albert_tf.checkpoints.bundle import latest_bundle, read_bundle
from albert_tf.errors import StoppedError, UserError
from albert_tf.finetuning.run import fine_tune
from albert_tf.modeling import named_variables
from albert_tf.runs import checkpoint_store, run_directory

# 4 updates an epoch, the last of each with one row; evaluations after 3, 6, 9 and 10: within epochs and at the end.
SETTINGS = dataclasses.replace(
  QUICK,
  num_train_steps=10,
  save_checkpoints_steps=3,
  train_batch_size=4,
  eval_batch_size=8,
  classifier_dropout=0.1,
  train_depths=(1, 2),
)
# Fewer functions to trace, and fewer updates: one depth, evaluations after 2, 4 and 5.
SIMPLE = dataclasses.replace(SETTINGS, num_train_steps=5, save_checkpoints_steps=2, train_depths=())


class Killed(BaseException):
  """An exception that ends the process, as a signal does."""


class Watch(keras.callbacks.Callback):
  """Records the weights after the last update; can end the process after an update, or request a stop before one."""

  def __init__(self, kill_after=0, stop_at=0):
    super().__init__()
    self.weights, self._left, self._stop_at = {}, kill_after, stop_at

  def on_train_batch_begin(self, batch, logs=None):
    self._stop_at -= 1
    if not self._stop_at:
      os.kill(os.getpid(), signal.SIGTERM)

  def on_train_batch_end(self, batch, logs=None):
    self.weights = {name: v.numpy() for name, v in named_variables(self.model).items()}
    self._left -= 1
    if not self._left:
      raise Killed


def run(directory, settings=SETTINGS, *, dropout=0.1, **options):
  task = tiny_task({"train": made_up_texts(13, seed=5), "eval": made_up_texts(9, seed=6)})
  start = tiny_start(hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
  return fine_tune(task, settings, start=start, output_dir=str(directory), **options)


def killed(directory, step, settings=SETTINGS, **options):
  with pytest.raises(Killed):
    run(directory, settings, callbacks=[Watch(step)], **options)


def stopped(directory, updates, settings=SETTINGS, **options):
  """Runs a process that gets SIGTERM in the last of `updates` updates."""
  with pytest.raises(StoppedError) as end:
    run(directory, settings, callbacks=[Watch(stop_at=updates)], **options)
  return int(re.search(r"stopped at update (\d+), saved", str(end.value))[1])


def evaluations(directory):
  lines = (directory / run_directory.METRICS_FILE).read_text().splitlines()
  return [report for report in map(json.loads, lines) if report["split"] == "eval"]


def same_runs(directory, other):
  """Asserts equal weights, bit for bit, and equal evaluations."""
  ours, theirs = (
    read_bundle(latest_bundle(str(each / run_directory.BEST))) for each in (directory, other)
  )
  assert ours.keys() == theirs.keys()
  for name, value in ours.items():
    np.testing.assert_array_equal(value, theirs[name], err_msg=name)
  assert evaluations(directory) == evaluations(other)
  assert not (directory / run_directory.STATE).exists()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
  """The directory and the results of a run without interruption, made once for some settings."""

  @functools.cache
  def make(settings):
    directory = tmp_path_factory.mktemp("undisturbed") / "run"
    return directory, run(directory, settings)

  return make


def finish(directory, undisturbed, settings=SETTINGS):
  expected, entries = undisturbed(settings)
  again = run(directory, settings)
  same_runs(directory, expected)
  assert {**again, "train_seconds": 0} == {**entries, "train_seconds": 0}


class TooLittleMemory(keras.callbacks.Callback):
  """Fails as TensorFlow does when a step does not fit."""

  def on_train_batch_begin(self, batch, logs=None):
    message = "Graph execution error:\n\nOOM when allocating tensor with shape[8,512]"
    raise tf.errors.ResourceExhaustedError(None, None, message)


def test_too_little_memory_comes_with_advice(tmp_path):
  advice = r"shape\[8,512\].*--gradient_accumulation_steps"
  with pytest.raises(UserError, match=advice):
    run(tmp_path / "run", SIMPLE, callbacks=[TooLittleMemory()])


@pytest.mark.slow
def test_a_frozen_encoder_killed_between_updates(tmp_path, undisturbed):
  settings = dataclasses.replace(SETTINGS, freeze_encoder=True)
  killed(tmp_path / "run", 4, settings)
  finish(tmp_path / "run", undisturbed, settings)


@pytest.mark.slow
@pytest.mark.parametrize("step", [2, 8])
def test_killed_between_updates(tmp_path, undisturbed, step):
  killed(tmp_path / "run", step)
  assert (latest_bundle(str(tmp_path / "run" / run_directory.STATE)) is not None) == (step > 3)
  finish(tmp_path / "run", undisturbed)


# Twice in one of Keras' epochs; at an evaluation, in the first update after it, and in the last of all.
@pytest.mark.slow
@pytest.mark.parametrize("ends", [(1, 1, 2, 6), (3, 7)])
def test_stopped_by_sigterm(tmp_path, undisturbed, ends):
  for number, updates in enumerate(ends, 1):
    assert stopped(tmp_path / "run", updates) == sum(ends[:number])
  finish(tmp_path / "run", undisturbed)


# After an evaluation the best weights are written where it is better, and then the state.
@pytest.mark.slow
@pytest.mark.parametrize(("folder", "number"), [("training", 1), ("best", 1), ("training", 2)])
def test_killed_while_it_writes(tmp_path, undisturbed, folder, number):
  original, seen = checkpoint_store.write_bundle, []

  def write_bundle(prefix, values):
    seen.append(os.path.dirname(prefix).endswith(folder))
    if sum(seen) == number:
      raise Killed
    original(prefix, values)

  with mock.patch.object(checkpoint_store, "write_bundle", write_bundle), pytest.raises(Killed):
    run(tmp_path / "run")
  finish(tmp_path / "run", undisturbed)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("replicas", [1, 2])
def test_the_command_stopped_at_random_times(tmp_path, replicas):
  write_mrpc(tmp_path / "MRPC", 60)
  write_pretrained(tmp_path / "pretrained", hidden_dropout_prob=0.1)
  flags = {
    "task_name": "mrpc", "data_dir": tmp_path, "init_checkpoint": tmp_path / "pretrained",
    "do_train": True, "noexport": True,
    "max_seq_length": 32, "train_batch_size": 4, "num_train_steps": 900, "save_checkpoints_steps": 250,
  }  # fmt: skip
  rng, ends, states = np.random.default_rng(replicas), [], []
  with ForkedCommands(emulated_gpus=replicas) as commands:
    expected = commands.run("tpu_scripts/run_glue.py", **flags, output_dir=tmp_path / "expected")
    assert expected.status == 0
    seconds = json.loads((tmp_path / "expected/results.json").read_text())["train_seconds"]
    while 0 not in ends:
      command = commands.start("tpu_scripts/run_glue.py", **flags, output_dir=tmp_path / "run")
      # Some time after the training has begun; the third life may go on to its end.
      until = time.monotonic() + rng.uniform(0.2, 0.6) * seconds + 200 * (ends.count(143) >= 2)
      while time.monotonic() < until and not commands.ended(command):
        time.sleep(0.02)
        if "seed 1" not in command.stderr:
          until += 0.02
      if not commands.ended(command):
        os.kill(command.pid, signal.SIGTERM)
      ends.append(commands.wait(command).status)
      assert ends[-1] in (0, 143, -signal.SIGTERM), command.stderr[-3000:]
      states += re.findall(r"stopped at update (\d+), saved", command.stderr)
  print(f"{replicas} replicas: statuses {ends}, stopped at updates {states}")
  assert ends.count(143) >= 2, ends
  same_runs(tmp_path / "run", tmp_path / "expected")


@pytest.mark.slow
def test_one_of_several_seeds_killed_again_and_again(tmp_path):
  settings = dataclasses.replace(SETTINGS, seeds=(1, 2), save_checkpoints_steps=2)
  run(tmp_path / "expected", settings)
  for step in (5, 7, 9):  # The second kill is within the second seed.
    killed(tmp_path / "run", step, settings)
  run(tmp_path / "run", settings)
  for seed in (1, 2):
    same_runs(tmp_path / f"run/seed_{seed}", tmp_path / f"expected/seed_{seed}")


@pytest.mark.slow
def test_micro_batches_and_recomputation_on_two_replicas_killed(tmp_path, mirrored_2):
  """The updates equal those of whole batches on one device."""
  plain = dataclasses.replace(
    SETTINGS, num_train_steps=7, num_warmup_steps=0, classifier_dropout=0.0
  )
  parts = dataclasses.replace(plain, gradient_accumulation_steps=2, remat=True)
  on_two = {"settings": parts, "dropout": 0.0, "strategy": mirrored_2}
  whole, two = Watch(), Watch()
  run(tmp_path / "whole", plain, dropout=0.0, callbacks=[whole])
  run(tmp_path / "expected", callbacks=[two], **on_two)
  for name, value in whole.weights.items():
    np.testing.assert_allclose(value, two.weights[name], atol=5e-5, err_msg=name)
  stopped(tmp_path / "run", 2, **on_two)
  killed(tmp_path / "run", 3, **on_two)
  stopped(tmp_path / "run", 1, **on_two)
  run(tmp_path / "run", **on_two)
  same_runs(tmp_path / "run", tmp_path / "expected")


@pytest.mark.slow
def test_a_callback_that_ends_training_early_is_obeyed(tmp_path):
  class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
      self.model.stop_training = True

  results = run(tmp_path / "run", SIMPLE, callbacks=[Stop()])
  assert (results["train_steps"], results["best_step"]) == (1, 1)
