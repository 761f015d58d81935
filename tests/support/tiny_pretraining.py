"""Settings of a tiny pretraining run, and a process that is killed and restarted."""

from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import sys
import traceback
from typing import Any

import numpy as np
import pytest
from support.commands.kills import Killer
from support.tiny_records import SPEC, tiny_config, write_train_and_eval

from albert_tf.checkpoints.bundle import latest_checkpoint, read_bundle
from albert_tf.optim.config import OptimizerConfig
from albert_tf.pretraining.settings import PretrainingSettings, StepConfig

NUM_STEPS = 12


def tiny_settings(folder: pathlib.Path, output: str, **changes: Any) -> PretrainingSettings:
  """12 updates of 8 examples, with dropout; records are written on the first call.

  `changes` are of the settings, or of the fields of their optimizer or step.
  """
  train, held_out = folder / "train-0.tfrecord", folder / "eval-0.tfrecord"
  if not train.exists():
    write_train_and_eval(folder)
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
  )

  def unfinished_writes() -> set[pathlib.Path]:
    return set((folder / "killed/checkpoints").glob("**/*.tmp-*"))

  def end_of(child: int, options: int = 0) -> bool:
    """Whether it has ended well; a life that failed by itself ends this process."""
    ended, status = os.waitpid(child, options)
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, -signal.SIGKILL):
      sys.exit(f"A life failed by itself, status {code}.")
    return bool(ended)

  killer = Killer(seed, unfinished_writes, until_a_write=3.0, into_a_write=0.003)
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
    if killer.made == kills:
      end_of(child)
      print(json.dumps({"kills": killer.made, "inside_writes": killer.in_writes}))
      return
    if killer.kill(child, lambda life=child: end_of(life, os.WNOHANG)):
      end_of(child)


if __name__ == "__main__":
  run_killing(pathlib.Path(sys.argv[1]), int(sys.argv[2]), seed=int(sys.argv[3]))
