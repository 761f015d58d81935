"""Settings of a tiny pretraining run, and a process that is killed and restarted."""

import os
import pathlib
import random
import signal
import sys
import time
from typing import Any

from reference.tiny_records import SPEC, random_examples, tiny_config, write_records

from albert_tf.optim.build import OptimizerConfig
from albert_tf.training.distribution import DistributionConfig
from albert_tf.training.settings import PretrainingSettings
from albert_tf.training.step import StepConfig

NUM_STEPS = 12


def tiny_settings(folder: pathlib.Path, output: str, **changes: Any) -> PretrainingSettings:
  """12 updates of 8 examples, with dropout; records are written on the first call."""
  train, held_out = folder / "train-0.tfrecord", folder / "eval-0.tfrecord"
  if not train.exists():
    write_records(train, random_examples(70, seed=1))
    write_records(held_out, random_examples(13, seed=2))
  values: dict[str, Any] = {
    "input_files": (str(train),),
    "eval_input_files": (str(held_out),),
    "output_dir": str(folder / output),
    "model": tiny_config(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1),
    "optimizer": OptimizerConfig(learning_rate=0.01, num_train_steps=NUM_STEPS, num_warmup_steps=2),
    "step": StepConfig(global_batch_size=8),
    "max_seq_length": SPEC.max_seq_length,
    "max_predictions_per_seq": SPEC.max_predictions_per_seq,
    "distribution": DistributionConfig(distribution="one_device"),
    "eval_batch_size": 4,
    "iterations_per_loop": 2,
    "save_checkpoints_steps": 4,
  }
  return PretrainingSettings(**{**values, **changes})


def run_killing(folder: pathlib.Path, kills: int, seed: int) -> None:
  """Runs `folder/killed` to its end, killing it `kills` times at random moments, checkpoint writes included.

  Each try is a fork of a process that has imported TensorFlow but not started its runtime.
  """
  from albert_tf.training.pretraining import run_pretraining

  rng = random.Random(seed)
  settings = tiny_settings(folder, "killed", iterations_per_loop=1, save_checkpoints_steps=1)
  log = pathlib.Path(settings.output_dir) / "metrics.jsonl"
  done = 0
  while True:
    before = log.stat().st_size if log.exists() else 0
    child = os.fork()
    if child == 0:
      run_pretraining(settings)
      os._exit(0)
    if done < kills:
      while (log.stat().st_size if log.exists() else 0) <= before and os.waitpid(child, os.WNOHANG) == (0, 0):
        time.sleep(0.002)  # Until it trains, so that every life gets on.
      time.sleep(rng.uniform(0.0, 0.25))
      os.kill(child, signal.SIGKILL)
      os.waitpid(child, 0)
      done += 1
      continue
    _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
  run_killing(pathlib.Path(sys.argv[1]), int(sys.argv[2]), seed=int(sys.argv[3]))
