"""Settings of a tiny pretraining run, and a process that is killed and restarted."""

from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import json
import os
import pathlib
import random
import signal
import sys
import time
import traceback
from typing import Any

import numpy as np
import pytest
from support.tiny_records import SPEC, random_examples, tiny_config, write_records

from albert_tf.checkpoints.bundle import latest_checkpoint, read_bundle
from albert_tf.optim.config import OptimizerConfig
from albert_tf.pretraining.settings import PretrainingSettings, StepConfig
from albert_tf.runs.settings import DistributionConfig

NUM_STEPS = 12


def tiny_settings(folder: pathlib.Path, output: str, **changes: Any) -> PretrainingSettings:
  """12 updates of 8 examples, with dropout; records are written on the first call.

  `changes` are of the settings, or of the fields of their optimizer or step.
  """
  train, held_out = folder / "train-0.tfrecord", folder / "eval-0.tfrecord"
  if not train.exists():
    write_records(train, random_examples(70, seed=1))
    write_records(held_out, random_examples(13, seed=2))
  return with_changes(
    PretrainingSettings(
      input_files=(str(train),),
      eval_input_files=(str(held_out),),
      output_dir=str(folder / output),
      model=tiny_config(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1),
      optimizer=OptimizerConfig(learning_rate=0.01, num_train_steps=NUM_STEPS, num_warmup_steps=2),
      step=StepConfig(global_batch_size=8),
      max_seq_length=SPEC.max_seq_length,
      max_predictions_per_seq=SPEC.max_predictions_per_seq,
      distribution=DistributionConfig(distribution="one_device"),
      eval_batch_size=4,
      iterations_per_loop=2,
      save_checkpoints_steps=4,
    ),
    **changes,
  )


def with_changes(settings: PretrainingSettings, **changes: Any) -> PretrainingSettings:
  """The settings with other values of their own fields, or of those of their optimizer or step."""
  for name in ("optimizer", "step"):
    part = getattr(settings, name)
    inner = {key: changes.pop(key) for key in [*changes] if hasattr(part, key)}
    settings = dataclasses.replace(settings, **{name: dataclasses.replace(part, **inner)})
  return dataclasses.replace(settings, **changes)


@contextlib.contextmanager
def after_report(step: int, action: Callable[[], None]) -> Iterator[None]:
  """Calls `action` after a run's report of this step."""
  from albert_tf.pretraining.reporter import Reporter

  report = Reporter.train

  def report_and_act(self: Any, reported: int, *args: Any, **kwargs: Any) -> None:
    report(self, reported, *args, **kwargs)
    if reported == step:
      action()

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(Reporter, "train", report_and_act)
    yield


def preempt() -> None:
  """As a cloud does."""
  os.kill(os.getpid(), signal.SIGTERM)


def newest_values(run: str | pathlib.Path) -> dict[str, np.ndarray]:
  """All tensors of a run's newest checkpoint."""
  prefix = latest_checkpoint(f"{run}/checkpoints")
  assert prefix is not None
  return read_bundle(prefix)


def assert_equal_ends(run: str | pathlib.Path, other: str | pathlib.Path) -> None:
  """The newest checkpoints are equal, bit for bit."""
  ours, theirs = newest_values(run), newest_values(other)
  assert ours.keys() == theirs.keys()
  for name, value in ours.items():
    np.testing.assert_array_equal(value, theirs[name], err_msg=name)


class _Kills:
  """When each life ends: at any moment from its start, or inside a checkpoint write, in turn."""

  def __init__(self, checkpoints: pathlib.Path, seed: int):
    self._checkpoints = checkpoints
    self._random = random.Random(seed)
    self._until_a_write = 3.0  # Seconds; learned from the lives that reach one.
    self._ended = False  # After the last step no life writes any more.
    self.made = self.inside_writes = 0

  def _parts(self) -> set[pathlib.Path]:
    """Files of unfinished checkpoint writes."""
    return {path for path in self._checkpoints.glob("**/*") if ".tmp-" in path.name}

  def end(self, child: int) -> None:
    """Kills `child`, unless it ends before its moment."""
    before, started = self._parts(), time.monotonic()
    in_write = self.made % 2 == 1 and not self._ended
    moment = self._random.uniform(0.0, 1.2) * self._until_a_write
    while not (self._parts() - before if in_write else time.monotonic() - started > moment):
      ended, status = os.waitpid(child, os.WNOHANG)
      if ended:
        if status:
          sys.exit(f"A life failed by itself, status {os.waitstatus_to_exitcode(status)}.")
        self._ended = True
        return
      time.sleep(0.001)
    if in_write:
      self._until_a_write = time.monotonic() - started
      time.sleep(self._random.uniform(0.0, 0.003))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    self.made += 1
    self.inside_writes += bool(self._parts() - before)


def run_killing(folder: pathlib.Path, kills: int, seed: int) -> None:
  """Runs `folder/killed` to its end with `kills` kills on the way; prints how many hit a checkpoint write.

  Each life is a fork of a process that has imported TensorFlow but not started its runtime.
  """
  from albert_tf.pretraining.run import run_pretraining

  settings = tiny_settings(
    folder,
    "killed",
    iterations_per_loop=1,
    save_checkpoints_steps=1,
    keep_checkpoint_max=2,
    keep_checkpoint_every_n_steps=3,
  )
  plan = _Kills(pathlib.Path(settings.output_dir) / "checkpoints", seed)
  while True:
    child = os.fork()
    if child == 0:
      status = 1
      try:
        run_pretraining(settings)
        status = 0
      except Exception:
        traceback.print_exc()
      finally:
        os._exit(status)
    if plan.made < kills:
      plan.end(child)
      continue
    _, status = os.waitpid(child, 0)
    print(json.dumps({"kills": plan.made, "inside_writes": plan.inside_writes}))
    sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
  run_killing(pathlib.Path(sys.argv[1]), int(sys.argv[2]), seed=int(sys.argv[3]))
