"""Progress of a run: a bar on a terminal, plain lines elsewhere."""

from collections import deque
from collections.abc import Mapping
import datetime
import sys
from typing import TextIO

import tqdm

_METRICS = (("masked_lm", "masked LM"), ("sentence_order", "order"), ("next_sentence", "next sentence"))
_RECENT = 10  # Reports that the time left is estimated from.


class Progress:
  """Shows reports, evaluations and messages on one stream."""

  def __init__(self, *, num_train_steps: int, start_step: int = 0, stream: TextIO | None = None):
    """Starts at `start_step` of `num_train_steps`; `stream` is standard error unless given."""
    self._stream = sys.stderr if stream is None else stream
    self._total = num_train_steps
    self._step = start_step
    self._recent: deque[tuple[int, float]] = deque(maxlen=_RECENT)
    self._bar = None
    if self._stream.isatty():
      self._bar = tqdm.tqdm(
        total=num_train_steps,
        initial=start_step,
        unit="step",
        file=self._stream,
        dynamic_ncols=True,
        bar_format="{n_fmt}/{total_fmt} {percentage:3.0f}%|{bar:16}| {desc}",
        desc="compiling the training step",
      )

  def train(self, step: int, values: Mapping[str, float], *, updates: int, seconds: float) -> None:
    """Shows a training report; `updates` of those since the last one took `seconds`."""
    self._recent.append((updates, seconds))
    advanced, self._step = step - self._step, step
    left = f"ETA {_clock(self.seconds_left())}"
    parts = [describe(values), *_speed(values)]
    if self._bar is not None:  # What matters most first: a narrow terminal cuts the end.
      self._bar.set_description_str(" · ".join([left, *parts]), refresh=False)
      self._bar.update(advanced)
      self._bar.refresh()
    else:
      self._line(" · ".join([f"step {step:,}/{self._total:,} ({step / self._total:.0%})", *parts, left]))

  def eval(self, step: int, values: Mapping[str, float]) -> None:
    """Shows the result of a held-out evaluation."""
    self.message(f"held-out at step {step:,} · {describe(values)}")
    for name in values:
      metric, _, source = name.partition("/")
      if source and metric == "loss":
        own = {key.removesuffix(f"/{source}"): values[key] for key in values if key.endswith(f"/{source}")}
        self.message(f"  {source}: {describe(own)}")

  def message(self, text: str) -> None:
    """Prints a line without breaking the bar."""
    if self._bar is not None:
      self._bar.write(text, file=self._stream)
    else:
      self._line(text)

  def seconds_left(self) -> float:
    """Estimate from the recent reports, without the first, which holds the compilation."""
    reports = list(self._recent)
    if len(reports) > 1 and len(reports) < _RECENT:
      reports = reports[1:]
    steps = sum(count for count, _ in reports)
    seconds = sum(duration for _, duration in reports)
    return (self._total - self._step) * seconds / steps if steps else 0.0

  def close(self) -> None:
    """Leaves the bar on the screen as it is."""
    if self._bar is not None:
      self._bar.close()

  def _line(self, text: str) -> None:
    print(text, file=self._stream, flush=True)


def describe(values: Mapping[str, float]) -> str:
  """Losses, accuracies, rate and norms of a report in a few words; what is absent is left out."""
  parts = []
  if "loss" in values:
    parts.append(f"loss {values['loss']:.4g}")
  for name, label in _METRICS:
    loss, accuracy = values.get(f"{name}_loss"), values.get(f"{name}_accuracy")
    shown = [f"{loss:.4g}"] if loss is not None else []
    shown += [f"{accuracy:.1%}"] if accuracy is not None else []
    if shown:
      parts.append(f"{label} {' '.join(shown)}")
  if "learning_rate" in values:
    parts.append(f"rate {values['learning_rate']:.3g}")
  if "gradient_norm" in values:
    parts.append(f"grad {values['gradient_norm']:.3g}")
  return " · ".join(parts)


def _speed(values: Mapping[str, float]) -> list[str]:
  parts = []
  if "examples_per_second" in values:
    parts.append(f"{_amount(values['examples_per_second'])} ex/s")
  if "tokens_per_second" in values:
    parts.append(f"{_amount(values['tokens_per_second'])} tok/s")
  if values.get("model_tflops_per_second"):
    parts.append(f"{values['model_tflops_per_second']:.3g} TFLOP/s")
  return parts


def _amount(value: float) -> str:
  return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _clock(seconds: float) -> str:
  return str(datetime.timedelta(seconds=round(seconds)))
