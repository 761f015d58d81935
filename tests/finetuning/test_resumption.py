"""A fine-tuning that is killed at any moment ends with the weights of one that was not."""

import dataclasses
import json
import os

import numpy as np
import pytest
from support.tiny_finetuning import QUICK, made_up_texts, tiny_start, tiny_task

from albert_tf import files
from albert_tf.checkpoints.bundle import latest_bundle, read_bundle
from albert_tf.compat import keras
from albert_tf.errors import UserError
from albert_tf.finetuning.engine import callbacks, run_directory
from albert_tf.finetuning.engine.fit import fine_tune

# 4 updates an epoch, evaluations after 3, 6, 9 and 10: within epochs, at their ends, and at the last update.
SETTINGS = dataclasses.replace(
  QUICK, num_train_steps=10, eval_steps=3, train_batch_size=4, eval_batch_size=8, classifier_dropout=0.1
)


class Killed(BaseException):
  """Ends everything, as a signal does."""


def task():
  return tiny_task({"train": made_up_texts(13, seed=5), "eval": made_up_texts(9, seed=6)})


def start():
  return tiny_start(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)


def run(directory, settings=SETTINGS, **options):
  return fine_tune(task(), settings, start=start(), output_dir=str(directory), **options).results


def weights(directory):
  return read_bundle(latest_bundle(str(directory / "checkpoints/best")))


def same_runs(directory, other):
  """The same weights, bit for bit, and the same reports but for their speed."""
  ours, theirs = weights(directory), weights(other)
  assert ours.keys() == theirs.keys()
  for name, value in ours.items():
    np.testing.assert_array_equal(value, theirs[name], err_msg=name)
  reports = []
  for each in (directory, other):
    lines = [json.loads(line) for line in (each / "metrics.jsonl").read_text().splitlines()]
    reports.append([line for line in lines if line["split"] == "eval"])
  assert reports[0] == reports[1]
  assert not (directory / run_directory.STATE).exists()


class KillAfter(keras.callbacks.Callback):
  def __init__(self, step):
    super().__init__()
    self._left = step

  def on_train_batch_end(self, batch, logs=None):
    self._left -= 1
    if not self._left:
      raise Killed


def killed_at_results(path, values):
  if path.endswith(run_directory.RESULTS_FILE):
    raise Killed
  files.write_text(path, json.dumps(values))


def kill_at_checkpoint(monkeypatch, folder, number):
  """Ends the process before the n-th checkpoint in a folder of the run is written."""
  original, seen = callbacks.write_bundle, []

  def write_bundle(prefix, values):
    if os.path.dirname(prefix).endswith(folder):
      seen.append(prefix)
      if len(seen) == number:
        raise Killed
    original(prefix, values)

  monkeypatch.setattr(callbacks, "write_bundle", write_bundle)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
  directory = tmp_path_factory.mktemp("undisturbed") / "run"
  return directory, run(directory)


@pytest.mark.parametrize("step", [4, *[pytest.param(step, marks=pytest.mark.slow) for step in (2, 8, 10)]])
def test_killed_between_updates(tmp_path, undisturbed, step):
  expected, results = undisturbed
  with pytest.raises(Killed):
    run(tmp_path / "run", callbacks=[KillAfter(step)])
  assert run_directory.has_state(str(tmp_path / "run")) == (step > 3)
  again = run(tmp_path / "run")
  same_runs(tmp_path / "run", expected)
  times = ("train_seconds", "examples_per_second")
  assert {k: v for k, v in again.items() if k not in times} == {
    k: v for k, v in results.items() if k not in times
  }


# Evaluations write the state, then, where they are better, the best weights.
@pytest.mark.slow
@pytest.mark.parametrize(
  ("folder", "number"), [(run_directory.STATE, 1), (run_directory.BEST, 1), (run_directory.STATE, 2)]
)
def test_killed_while_it_writes(tmp_path, undisturbed, monkeypatch, folder, number):
  with monkeypatch.context() as patch:
    kill_at_checkpoint(patch, folder, number)
    with pytest.raises(Killed):
      run(tmp_path / "run")
  run(tmp_path / "run")
  same_runs(tmp_path / "run", undisturbed[0])


@pytest.mark.slow
def test_one_of_several_seeds_killed_again_and_again(tmp_path):
  settings = dataclasses.replace(SETTINGS, seeds=(1, 2), eval_steps=2)
  run(tmp_path / "expected", settings)
  for step in (5, 7, 9):  # The second kill is within the second seed.
    with pytest.raises(Killed):
      run(tmp_path / "run", settings, callbacks=[KillAfter(step)])
  run(tmp_path / "run", settings)
  for seed in (1, 2):
    same_runs(tmp_path / f"run/seed_{seed}", tmp_path / f"expected/seed_{seed}")


@pytest.mark.slow
def test_patience_that_had_run_out_is_not_forgotten(tmp_path, monkeypatch):
  settings = dataclasses.replace(SETTINGS, early_stopping_patience=1, learning_rate=1e-30)
  expected = run(tmp_path / "expected", settings)
  assert expected["train_steps"] == 6  # The second evaluation is no better than the first.
  with monkeypatch.context() as patch:
    patch.setattr(files, "write_json", killed_at_results)
    with pytest.raises(Killed):
      run(tmp_path / "run", settings)
  assert run(tmp_path / "run", settings)["train_steps"] == 6
  same_runs(tmp_path / "run", tmp_path / "expected")


@pytest.mark.slow
def test_a_damaged_state_is_refused_with_what_to_do(tmp_path):
  with pytest.raises(Killed):
    run(tmp_path / "run", callbacks=[KillAfter(4)])
  (data,) = (tmp_path / "run" / run_directory.STATE).glob("*.data-*")
  data.write_bytes(data.read_bytes()[:100])
  with pytest.raises(UserError, match=r"Remove .*checkpoints/training to train this seed from the beginning"):
    run(tmp_path / "run")


@pytest.mark.slow
def test_a_callback_that_ends_training_early_is_obeyed(tmp_path):
  class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
      self.model.stop_training = True

  results = run(tmp_path / "run", callbacks=[Stop()])
  assert (results["train_steps"], results["best_step"]) == (1, 1)
