"""The original checkpoint name of every variable of a model."""

from typing import Any

import tensorflow as tf

from albert_tf.compat import raw_variable


def named_variables(model: Any) -> dict[str, tf.Variable]:
  """Maps the original release's names to a model's plain `tf.Variable`s.

  Each layer states its own part in `checkpoint_items()`; this walk joins them.
  A bare encoder gets the prefix `bert/`, so that the names match a pretraining
  checkpoint.

  Args:
    model: a model or layer of this package.

  Returns:
    Every weight once, in a fixed order. Keras wrappers are taken off.

  Raises:
    ValueError: a trainable weight has no name, or two have the same.
  """
  names: dict[str, tf.Variable] = {}

  def walk(prefix: str, item: Any) -> None:
    if not hasattr(item, "checkpoint_items"):
      if prefix in names:
        raise ValueError(f"Two variables must not share a checkpoint name. Received twice: {prefix}.")
      names[prefix] = raw_variable(item)
      return
    for name, child in item.checkpoint_items().items():
      walk(f"{prefix}/{name}" if prefix else name, child)

  walk("bert" if _is_encoder(model) else "", model)
  missing = {id(raw_variable(v)) for v in model.trainable_variables} - {id(v) for v in names.values()}
  if missing:
    raise ValueError(
      f"checkpoint_items() must name every trainable weight. Unnamed: {len(missing)} of {model.name}."
    )
  return names


def _is_encoder(model: Any) -> bool:
  from albert_tf.modeling.encoder import AlbertEncoder  # The encoder's own names are relative.

  return isinstance(model, AlbertEncoder)
