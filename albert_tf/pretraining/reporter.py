"""Reports of a run: metrics.jsonl, TensorBoard, curves.png and progress."""

from collections.abc import Callable, Mapping
import datetime
import sys
import time
from typing import Any, NamedTuple

import tensorflow as tf

from albert_tf import files
from albert_tf.compat import on_coordinator
from albert_tf.pretraining.curves import draw_curves
from albert_tf.pretraining.settings import PretrainingSettings
from albert_tf.runs.interruption import silence_lost_output
from albert_tf.runs.metrics_log import MetricsLog, Report
from albert_tf.runs.run_directory import METRICS_FILE

# The splits of a report.
TRAIN = "train"
EVAL = "eval"
DRAWING_SHARE = 0.01  # Largest share of the run's time.
# Task → its name in a line of progress.
_TASKS = {"masked_lm": "masked LM", "sentence_order": "order", "next_sentence": "next sentence"}


class Machine(NamedTuple):
  """Peak FLOP/s of all devices of a run together; 0 if unknown."""

  model_flops_per_example: float = 0.0  # Of one example in a training step.
  peak_flops: float = 0.0


class Reporter:
  """Writes all reports of a run; every process may call it, only the chief writes.

  Args:
    start_step: step of the restored checkpoint; later reports are removed.
    may_write: raises if another process owns the directory; called before the last write.
  """

  def __init__(
    self,
    settings: PretrainingSettings,
    *,
    start_step: int = 0,
    machine: Machine | None = None,
    is_chief: bool = True,
    may_write: Callable[[], None] = lambda: None,
  ):
    self._is_chief = is_chief
    self._may_write = may_write
    self._machine = machine or Machine()
    self._num_train_steps = settings.num_train_steps
    self._next_drawing = 0.0
    if not is_chief:
      return
    run_dir = settings.output_dir.rstrip("/")
    files.makedirs(run_dir)
    self._curves_path = f"{run_dir}/curves.png"
    self._log = MetricsLog(f"{run_dir}/{METRICS_FILE}", start_step=start_step)
    self._tensorboard = _TensorBoard(f"{run_dir}/tensorboard")

  def train(
    self,
    step: int,
    metrics: Mapping[str, float],
    *,
    updates: int,
    seconds: float,
    examples: int,
    tokens: int,
  ) -> None:
    """Reports the training since the last report.

    `updates` timed updates took `seconds`, for `examples` examples and `tokens` tokens (no padding)
    on all replicas.
    """
    if not self._is_chief:
      return
    duration = max(seconds, 1e-9)
    flops_per_second = self._machine.model_flops_per_example * examples / duration
    values = dict(metrics)
    values["examples_per_second"] = examples / duration
    values["tokens_per_second"] = tokens / duration
    values["model_tflops_per_second"] = flops_per_second / 1e12
    if self._machine.peak_flops:
      values["model_flops_utilization"] = flops_per_second / self._machine.peak_flops
    self._tensorboard.write(self._log.append(step, TRAIN, values))

    # The line that a person watches.
    total = self._num_train_steps
    seconds_left = (total - step) * seconds / max(updates, 1)
    self.message(
      f"step {step:,}/{total:,} ({step / total:.0%}) · {_describe(values)} · "
      f"{_speed(values['examples_per_second'])} ex/s · {_speed(values['tokens_per_second'])} tok/s "
      f"· {flops_per_second / 1e12:.3g} TFLOP/s · ETA "
      f"{datetime.timedelta(seconds=round(seconds_left))}"
    )

  def eval(self, step: int, metrics: Mapping[str, float]) -> None:
    """Reports a held-out evaluation of the weights after `step` steps."""
    if self._is_chief:
      self._tensorboard.write(self._log.append(step, EVAL, metrics))
      self.message(f"held-out at step {step:,} · {_describe(metrics)}")

  def message(self, text: str) -> None:
    """Shows a line to the person watching."""
    if not self._is_chief:
      return
    try:
      print(text, file=sys.stderr, flush=True)
    except OSError:
      # The terminal or pipe is gone, as after a lost connection: no reason to end a run of days.
      silence_lost_output()

  def find(self, step: int, split: str) -> Report | None:
    """The report of a step, or None; always None on processes other than the chief."""
    if not self._is_chief:
      return None
    return self._log.find(step, split)

  def flush(self) -> None:
    """Writes all reports to the disk or bucket; call it before a checkpoint."""
    if self._is_chief:
      self._log.flush()
      self._tensorboard.flush()

  def draw(self, *, now: bool = False) -> None:
    """Draws curves.png, if `now` or if it takes less than `DRAWING_SHARE` of the run's time."""
    started = time.monotonic()
    if self._is_chief and (now or started >= self._next_drawing):
      draw_curves(self._log.records, self._curves_path)
      ended = time.monotonic()
      self._next_drawing = ended + (ended - started) / DRAWING_SHARE

  def close(self) -> None:
    """Draws the curves a last time and ends the log."""
    if self._is_chief:
      self._may_write()
      self.flush()
      self.draw(now=True)


def _describe(values: Mapping[str, float]) -> str:
  """Losses, accuracies, rate and norm of a report, as far as it has them."""
  words = []
  if "loss" in values:
    words.append(f"loss {values['loss']:.4g}")
  for task, name in _TASKS.items():
    if f"{task}_loss" in values:
      words.append(f"{name} {values[f'{task}_loss']:.4g} {values[f'{task}_accuracy']:.1%}")
  if "learning_rate" in values:
    words.append(f"rate {values['learning_rate']:.3g} · grad {values['gradient_norm']:.3g}")
  return " · ".join(words)


def _speed(number: float) -> str:
  """Three digits, without an exponent for large numbers: 12,345 or 1.23."""
  if number >= 100:
    return f"{number:,.0f}"
  return f"{number:.3g}"


class _TensorBoard:
  """One writer for each split, made at its first report.

  In a bucket every flush uploads the whole file again, so flushes are rare. Reports of a killed run
  after its last checkpoint stay: the continued run makes the same ones again.
  """

  def __init__(self, directory: str):
    self._directory = directory
    self._writers: dict[str, Any] = {}

  def write(self, record: Report) -> None:
    split = record["split"]
    with on_coordinator():
      if split not in self._writers:
        self._writers[split] = tf.summary.create_file_writer(
          f"{self._directory}/{split}", max_queue=10_000
        )
      with self._writers[split].as_default():
        for key, value in record.items():
          if key not in ("step", "split") and value is not None:
            tf.summary.scalar(key, value, step=record["step"])

  def flush(self) -> None:
    with on_coordinator():
      for writer in self._writers.values():
        writer.flush()
