"""A report in a line: what a person who watches a run reads."""

from collections.abc import Mapping
import datetime

_METRICS = {"masked_lm": "masked LM", "sentence_order": "order", "next_sentence": "next sentence"}


def training_line(
  step: int, values: Mapping[str, float], *, num_train_steps: int, seconds_per_update: float
) -> str:
  """The training report after `step` updates."""
  left = datetime.timedelta(seconds=round((num_train_steps - step) * seconds_per_update))
  done = f"step {step:,}/{num_train_steps:,} ({step / num_train_steps:.0%})"
  return f"{done} · {describe(values)} · {_speed(values)} · ETA {left}"


def describe(values: Mapping[str, float]) -> str:
  """Losses, accuracies, rate and norm of a report; what is absent is left out."""
  parts = [f"loss {values['loss']:.4g}"] if "loss" in values else []
  for name, label in _METRICS.items():
    if f"{name}_loss" in values:
      parts.append(f"{label} {values[f'{name}_loss']:.4g} {values[f'{name}_accuracy']:.1%}")
  if "learning_rate" in values:
    parts.append(f"rate {values['learning_rate']:.3g} · grad {values['gradient_norm']:.3g}")
  return " · ".join(parts)


def _speed(values: Mapping[str, float]) -> str:
  examples, tokens = (
    f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    for value in (values["examples_per_second"], values["tokens_per_second"])
  )
  return f"{examples} ex/s · {tokens} tok/s · {values['model_tflops_per_second']:.3g} TFLOP/s"
