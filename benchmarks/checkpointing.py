"""What checkpoints cost: training without them, with ones written beside it, and with ones it waits for, in one run.

Prints one JSON line. The claim: training waits for the copy into host memory alone, which takes less time than the
whole checkpoint. (On a CPU the writing also takes computing time from the updates; an accelerator has its own.)

Example:
  python benchmarks/checkpointing.py --size=base --steps_per_checkpoint=8
"""

from collections.abc import Callable, Sequence
import json
import os
import statistics
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from absl import app, flags
import step_on_random_batches
import tensorflow as tf

from albert_tf.configs import AlbertConfig, named_sizes
from albert_tf.errors import exit_on_user_error
from albert_tf.training.checkpoint_store import CheckpointStore, HostState

_SIZE = flags.DEFINE_enum("size", "base", named_sizes(), "The model whose checkpoints are written.")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Intervals of each kind.", lower_bound=2)
_STEPS = flags.DEFINE_integer("steps_per_checkpoint", 8, "Updates of an interval.", lower_bound=1)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 4, "Examples of an update.")
_MAX_SEQ_LENGTH = flags.DEFINE_integer("max_seq_length", 64, "Tokens of an example.")


@exit_on_user_error
def main(argv: Sequence[str]) -> None:
  del argv
  config = AlbertConfig.from_name(_SIZE.value)
  train_step, variables = step_on_random_batches.make_step(_BATCH_SIZE.value, config)
  batches = step_on_random_batches.random_batches(_BATCH_SIZE.value, _MAX_SEQ_LENGTH.value, config.vocab_size)
  train_step.run(batches, tf.constant(1))  # Compile.
  with tempfile.TemporaryDirectory() as directory:
    store = CheckpointStore(directory, variables, keep=1)

    def beside() -> None:
      store.save(1, HostState())

    def waiting() -> None:
      store.save(1, HostState())
      store.wait()

    kinds: dict[str, Callable[[], None]] = {"none": lambda: None, "beside": beside, "waiting": waiting}
    intervals: dict[str, list[float]] = {kind: [] for kind in kinds}
    blocked: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(_ROUNDS.value):
      for kind, save in kinds.items():  # In turn: other work on the machine disturbs all alike.
        started = time.perf_counter()
        save()
        saved = time.perf_counter()
        train_step.run(batches, tf.constant(_STEPS.value)).averages(_STEPS.value)
        intervals[kind].append(time.perf_counter() - started)
        blocked[kind].append(saved - started)
        store.wait()
    store.close()
    size = sum(os.path.getsize(entry.path) for entry in os.scandir(directory) if entry.is_file())
  print(
    json.dumps(
      {
        "benchmark": "checkpointing",
        "size": _SIZE.value,
        "checkpoint_mib": round(size / 2**20, 1),
        "steps_per_checkpoint": _STEPS.value,
        "seconds_per_step": {
          kind: statistics.median(values) / _STEPS.value for kind, values in intervals.items()
        },
        "seconds_training_waits": {
          kind: statistics.median(values) for kind, values in blocked.items() if kind != "none"
        },
      }
    )
  )


if __name__ == "__main__":
  app.run(main)
