"""Texts to measure a model's numbers with, before it is exported in 8 or 16 bits."""

from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.keras_api.batches import Batching, plan_by_length
from albert_tf.keras_api.examples import Examples
from albert_tf.serving.precision import Batch, Calibration

_BATCH_SIZE = 32
_MOST_TEXTS = 1000  # Of a long table: each takes a forward pass in Python.
# One text in so many is kept to compare the answers.
_COMPARED = 5


def calibration_of(model: Any, x: Any) -> Calibration:
  """Batches of some texts, or other inputs that `predict` takes; a fifth of them for the comparison."""
  if model.export_kind == "fill_mask":
    # Of a text without a mask it has nothing to say.
    x = tf.strings.join([model.columns(x)["text"], " [MASK]"]).numpy()
  examples = model.examples(x)
  # Evenly over all: of sorted texts the first are alike.
  count = min(len(examples), _MOST_TEXTS)
  numbers = np.arange(count) * len(examples) // max(count, 1)
  is_compared = np.arange(count) % _COMPARED == 0
  compared = _batches(model, examples.take(numbers[is_compared]))
  measured = _batches(model, examples.take(numbers[~is_compared]))
  return Calibration(measured or compared, compared)


def _batches(model: Any, examples: Examples) -> list[Batch]:
  """The inputs in batches of similar length."""
  if not len(examples):
    return []
  plan = plan_by_length(examples.lengths, Batching.of(model, examples, _BATCH_SIZE))
  return [examples.take(rows).padded()[0] for rows in plan]
