"""What reports cost: their time beside that of the training steps between them, in one run.

Prints one JSON line. The claim: reporting costs at most 2% of the training time.

Example:
  python benchmarks/reporting.py --steps_per_report=10
"""

import os
import statistics
import tempfile
import time
from typing import Any

from absl import flags
import common
import tensorflow as tf

from albert_tf.configs import AlbertConfig
from albert_tf.optim.config import OptimizerConfig
from albert_tf.training.reporting.goodput import Goodput
from albert_tf.training.reporting.reporter import DRAWING_SHARE, Reporter
from albert_tf.training.settings import PretrainingSettings, StepConfig
from albert_tf.training.watch import TrainingWatch

_ROUNDS = flags.DEFINE_integer("rounds", 10, "Reports that are timed.", lower_bound=2)
_STEPS_PER_REPORT = flags.DEFINE_integer(
  "steps_per_report", 10, "Updates between two reports.", lower_bound=1
)
_REPORTS_PER_CHECKPOINT = flags.DEFINE_integer(
  "reports_per_checkpoint", 50, "Reports between two drawings of curves.png.", lower_bound=1
)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "Examples of an update.")
_MAX_SEQ_LENGTH = flags.DEFINE_integer("max_seq_length", 64, "Tokens of an example.")


def _settings(directory: str, config: AlbertConfig) -> PretrainingSettings:
  """What the watch reads of a run."""
  return PretrainingSettings(
    input_files=(),
    output_dir=directory,
    model=config,
    optimizer=OptimizerConfig(num_train_steps=10_000, num_warmup_steps=0),
    step=StepConfig(global_batch_size=_BATCH_SIZE.value),
    max_seq_length=_MAX_SEQ_LENGTH.value,
    max_predictions_per_seq=common.PREDICTIONS,
  )


def benchmark() -> dict[str, Any]:
  batch_size, length, chunk = _BATCH_SIZE.value, _MAX_SEQ_LENGTH.value, _STEPS_PER_REPORT.value
  config = AlbertConfig.from_name("tiny", vocab_size=4000)
  train_step, _ = common.training_step(config, batch_size=batch_size)
  batches = common.random_batches(batch_size, length, config.vocab_size)
  train_step.run(batches, tf.constant(1))  # Compile.
  training: list[float] = []
  reporting: list[float] = []
  with tempfile.TemporaryDirectory() as directory, open(os.devnull, "w") as nowhere:
    reporter = Reporter(directory, num_train_steps=10_000, stream=nowhere)
    goodput = Goodput(f"{directory}/goodput.json", began=time.time(), at_checkpoint={})
    watch = TrainingWatch(_settings(directory, config))
    for number in range(_ROUNDS.value + 1):
      started = time.perf_counter()
      metrics = train_step.run(batches, tf.constant(chunk))
      averages = metrics.averages(chunk)
      trained = time.perf_counter()
      goodput.mark("step", waited=float(metrics.input_seconds))
      reporter.train(
        number * chunk,
        {**averages, **goodput.fields()},
        updates=chunk,
        seconds=trained - started,
        examples=chunk * batch_size,
        tokens=int(metrics.tokens),
      )
      goodput.write()
      watch.observe(number * chunk, averages)
      if number:  # The first report opens files.
        training.append(trained - started)
        reporting.append(time.perf_counter() - trained)
    started = time.perf_counter()
    reporter.flush()
    reporter.refresh()
    drawing = time.perf_counter() - started
    reporter.close()
  # Medians: other work on the machine disturbs single chunks.
  plain = statistics.median(training)
  drawn = min(
    drawing / _REPORTS_PER_CHECKPOINT.value, DRAWING_SHARE * plain
  )  # The reporter leaves out the rest.
  cost = statistics.median(reporting) + drawn
  return {
    "steps_per_second_without": chunk / plain,
    "steps_per_second_with": chunk / (plain + cost),
    "cost": cost / plain,
    "claim": 0.02,
    "seconds_per_report": statistics.median(reporting),
    "seconds_per_drawing": drawing,
    "steps_per_report": chunk,
    "reports_per_checkpoint": _REPORTS_PER_CHECKPOINT.value,
  }


if __name__ == "__main__":
  common.run(benchmark)
