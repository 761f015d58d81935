"""Progress of a run: a bar on a terminal, a line a report elsewhere."""

from collections.abc import Mapping
import datetime
import sys
from typing import TextIO

import tqdm

_METRICS = {"masked_lm": "masked LM", "sentence_order": "order", "next_sentence": "next sentence"}


class Progress:
  """Shows reports, evaluations and messages on one stream, standard error unless given."""

  def __init__(self, *, num_train_steps: int, start_step: int = 0, stream: TextIO | None = None):
    self._stream = stream or sys.stderr
    self._total = num_train_steps
    self._bar = tqdm.tqdm(
      total=num_train_steps,
      initial=start_step,
      file=self._stream,
      disable=not self._stream.isatty(),
      dynamic_ncols=True,
      bar_format="{n_fmt}/{total_fmt} {percentage:3.0f}%|{bar:16}| {desc}",
      desc="compiling the training step",
    )

  def train(self, step: int, values: Mapping[str, float], *, seconds_per_update: float) -> None:
    """Shows a training report."""
    left = f"ETA {datetime.timedelta(seconds=round((self._total - step) * seconds_per_update))}"
    told = f"{describe(values)} · {_speed(values)}"
    if self._bar.disable:
      self.message(f"step {step:,}/{self._total:,} ({step / self._total:.0%}) · {told} · {left}")
      return
    self._bar.set_description_str(f"{left} · {told}", refresh=False)  # A narrow terminal cuts the end.
    self._bar.update(step - self._bar.n)
    self._bar.refresh()

  def message(self, text: str) -> None:
    """Prints a line without breaking the bar."""
    if self._bar.disable:
      print(text, file=self._stream, flush=True)
    else:
      self._bar.write(text, file=self._stream)

  def close(self) -> None:
    """Leaves the bar on the screen as it is."""
    self._bar.close()


def describe(values: Mapping[str, float]) -> str:
  """Losses, accuracies, rate and norms of a report in a few words; what is absent is left out."""
  parts = [f"loss {values['loss']:.4g}"] if "loss" in values else []
  for name, label in _METRICS.items():
    if f"{name}_loss" in values:
      parts.append(f"{label} {values[f'{name}_loss']:.4g} {values[f'{name}_accuracy']:.1%}")
  if "learning_rate" in values:
    parts.append(f"rate {values['learning_rate']:.3g}")
  if "gradient_norm" in values:  # Absent where every update was left out.
    parts.append(f"grad {values['gradient_norm']:.3g}")
  return " · ".join(parts)


def _speed(values: Mapping[str, float]) -> str:
  examples, tokens = (
    f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    for value in (values["examples_per_second"], values["tokens_per_second"])
  )
  return f"{examples} ex/s · {tokens} tok/s · {values['model_tflops_per_second']:.3g} TFLOP/s"
