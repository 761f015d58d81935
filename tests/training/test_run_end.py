"""What ends a run besides its last step, and which checkpoints stay for good."""

import dataclasses
import pathlib
import time

import numpy as np
import pytest
from support.tiny_pretraining import NUM_STEPS, tiny_settings

from albert_tf.checkpoints.bundle import checkpoint_steps, read_bundle
from albert_tf.errors import UserError
from albert_tf.training.evaluation import Evaluator
from albert_tf.training.metrics_log import read_metrics
from albert_tf.training.pretraining import run_pretraining
from albert_tf.training.reporting import goodput
from albert_tf.training.reporting.reporter import Reporter
from albert_tf.training.step import TrainStep

_KEPT = {"keep_checkpoint_max": 1, "keep_checkpoint_every_n_steps": 8}


class Clock:
  """The module `time`, in a world where each report takes half an hour."""

  def __init__(self, monkeypatch: pytest.MonkeyPatch):
    self._offset = 0.0
    report = Reporter.train

    def slow(reporter, *args, **kwargs):
      self._offset += 1800
      report(reporter, *args, **kwargs)

    monkeypatch.setattr(Reporter, "train", slow)
    monkeypatch.setattr(goodput, "time", self)

  def time(self) -> float:
    return time.time() + self._offset

  def monotonic(self) -> float:
    return time.monotonic() + self._offset


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """Records, and the run `whole` without a bound."""
  folder = tmp_path_factory.mktemp("runs")
  run_pretraining(tiny_settings(folder, "whole", **_KEPT))
  return folder


@pytest.mark.slow
def test_the_multiples_stay(folder):
  checkpoints = f"{folder}/whole/checkpoints"
  assert checkpoint_steps(checkpoints) == [8, NUM_STEPS]
  assert [r["step"] for r in read_metrics(f"{folder}/whole/metrics.jsonl") if r["split"] == "eval"] == [
    4,
    8,
    12,
  ]


@pytest.mark.slow
def test_the_hours_end_a_run_like_its_last_step_and_more_of_them_continue_it_exactly(
  folder, monkeypatch, capfd
):
  settings = tiny_settings(folder, "bounded", max_train_hours=0.9)
  evaluate, evaluated = Evaluator.__call__, []

  def killed_at_the_second(self):
    if evaluated:
      raise KeyboardInterrupt
    evaluated.append(evaluate(self))
    return evaluated[-1]

  with monkeypatch.context() as patch:
    Clock(patch)
    patch.setattr(Evaluator, "__call__", killed_at_the_second)
    with pytest.raises(KeyboardInterrupt):  # Behind the last checkpoint, which is not yet evaluated.
      run_pretraining(settings)
  with monkeypatch.context() as patch:
    patch.setattr(TrainStep, "_run", None)  # Nothing is left to train.
    result = run_pretraining(settings)
  assert (result.step, result.interrupted) == (6, False)
  assert result.checkpoint.endswith("model.ckpt-6")
  assert "ended at step 6 of 12: the run has taken its --max_train_hours=0.9" in capfd.readouterr().err
  log = read_metrics(f"{settings.output_dir}/metrics.jsonl")
  assert [r["step"] for r in log if r["split"] == "eval"] == [4, 6]
  assert run_pretraining(dataclasses.replace(settings, max_train_hours=None, **_KEPT)).step == NUM_STEPS
  runs = [f"{folder}/{name}/checkpoints" for name in ("whole", "bounded")]
  assert checkpoint_steps(runs[0]) == checkpoint_steps(runs[1])
  whole, bounded = (read_bundle(f"{run}/model.ckpt-{NUM_STEPS}") for run in runs)
  for name, value in whole.items():
    np.testing.assert_array_equal(value, bounded[name], err_msg=name)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"max_train_hours": 0.0}, "max_train_hours must be above 0"),
    ({"keep_checkpoint_every_n_steps": 6}, r"multiple of save_checkpoints_steps.* 6 and 4\."),
  ],
)
def test_bounds_that_mean_nothing_are_refused(tmp_path, changes, message):
  with pytest.raises(UserError, match=message):
    tiny_settings(tmp_path, "refused", **changes)
