"""Inputs of every model: token ids, mask and segments, under this project's or Hugging Face's names."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from albert_tf.errors import UserError

# Ids, mask and segments `[B, S]` by name, and the further inputs of a model.
Inputs = Mapping[str, tf.Tensor]
TEXT_INPUTS = ("input_ids", "input_mask", "segment_ids")
# Hugging Face's name → ours.
SYNONYMS = {"attention_mask": "input_mask", "token_type_ids": "segment_ids"}


def integers(x: tf.Tensor) -> tf.Tensor:
  """Converts to int32."""
  # Under a strategy Keras 3 builds a model with means over replicas, which are floats.
  return tf.cast(x, tf.int32)


def check_has_ids(inputs: Any) -> None:
  """Raises `UserError` if inputs are no mapping, or lack ids."""
  if isinstance(inputs, Mapping) and "input_ids" in inputs:
    return
  received = repr(inputs)[:80]
  if isinstance(inputs, Mapping):
    received = ", ".join(map(str, inputs)) or "no input"
  raise UserError(
    "A model takes a mapping with input_ids, input_mask and segment_ids, int32 [B, S]. "
    f'Received: {received}. Write {{"input_ids": ids}}, with the mask of padded rows; '
    "an AlbertPreprocessor makes all three of texts."
  )


def text_inputs(inputs: Inputs) -> dict[str, tf.Tensor]:
  """Those of `input_ids`, `input_mask` and `segment_ids` that are in `inputs`, as int32.

  Args:
    inputs: inputs of a model. Hugging Face's `attention_mask` and `token_type_ids` are accepted as
      `input_mask` and `segment_ids`. Other keys are left to the model.

  Raises:
    UserError: `inputs` is no mapping, lacks ids, or has one input under both names.
  """
  check_has_ids(inputs)
  # Ours first, so that a synonym of the same input is noticed.
  tensors = {name: integers(inputs[name]) for name in TEXT_INPUTS if name in inputs}
  for synonym, name in SYNONYMS.items():
    if synonym not in inputs:
      continue
    if name in tensors:
      raise UserError(
        f"An input is given once. Received: {name} and {synonym}, which are the same. Drop one."
      )
    tensors[name] = integers(inputs[synonym])
  return tensors
