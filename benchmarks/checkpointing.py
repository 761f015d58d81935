"""What checkpoints cost: training without them, with ones written beside it, and with ones it waits for, in one run.

Prints one JSON line. The claim: training waits for the copy into host memory alone, which takes less time than the
whole checkpoint. (On a CPU the writing also takes computing time from the updates; an accelerator has its own.)

Example:
  python benchmarks/checkpointing.py --size=base --steps_per_checkpoint=8
"""

from collections.abc import Callable
import os
import statistics
import tempfile
from typing import Any

from absl import flags
import common
import tensorflow as tf

from albert_tf.configs import AlbertConfig, named_sizes
from albert_tf.training.checkpoints import CheckpointStore, HostState

_SIZE = flags.DEFINE_enum("size", "base", named_sizes(), "The model whose checkpoints are written.")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Intervals of each kind.", lower_bound=2)
_STEPS = flags.DEFINE_integer("steps_per_checkpoint", 8, "Updates of an interval.", lower_bound=1)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 4, "Examples of an update.")
_MAX_SEQ_LENGTH = flags.DEFINE_integer("max_seq_length", 64, "Tokens of an example.")


def benchmark() -> dict[str, Any]:
  config = AlbertConfig.from_name(_SIZE.value)
  train_step, variables = common.training_step(config, batch_size=_BATCH_SIZE.value)
  batches = common.random_batches(_BATCH_SIZE.value, _MAX_SEQ_LENGTH.value, config.vocab_size)
  train_step.run(batches, tf.constant(1))  # Compile.
  with tempfile.TemporaryDirectory() as directory:
    store = CheckpointStore(directory, variables, keep=1)

    def save_and_wait() -> None:
      store.save(1, HostState())
      store.wait()

    def interval(save: Callable[[], None]) -> tuple[float, float]:
      """Seconds of the interval, and those in which training waits for the checkpoint."""
      blocked = common.timed(save).wall
      trained = common.timed(
        lambda: train_step.run(batches, tf.constant(_STEPS.value)).averages(_STEPS.value)
      ).wall
      store.wait()
      return blocked + trained, blocked

    found = common.in_turn(
      {
        "none": lambda: interval(lambda: None),
        "beside": lambda: interval(lambda: store.save(1, HostState())),
        "waiting": lambda: interval(save_and_wait),
      },
      _ROUNDS.value,
    )
    store.close()
    size = sum(os.path.getsize(entry.path) for entry in os.scandir(directory) if entry.is_file())
  medians = {
    kind: [statistics.median(values) for values in zip(*each, strict=True)] for kind, each in found.items()
  }
  return {
    "size": _SIZE.value,
    "checkpoint_mib": round(size / 2**20, 1),
    "steps_per_checkpoint": _STEPS.value,
    "seconds_per_step": {kind: seconds / _STEPS.value for kind, (seconds, _) in medians.items()},
    "seconds_training_waits": {kind: blocked for kind, (_, blocked) in medians.items() if kind != "none"},
  }


if __name__ == "__main__":
  common.run(benchmark)
