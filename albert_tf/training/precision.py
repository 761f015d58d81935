"""Which numbers a run computes with. Importing it does not import TensorFlow."""

from albert_tf.errors import UserError

PRECISIONS = ("float32", "bfloat16")


def precision_policy(mixed_precision: str) -> str:
  """The Keras dtype policy of a precision: matrix products in it, float32 weights.

  Softmax, LayerNorm, losses and the optimizer stay in float32 in either case.
  """
  if mixed_precision not in PRECISIONS:
    raise UserError(f"mixed_precision must be one of {', '.join(PRECISIONS)}. Received: {mixed_precision!r}.")
  return "float32" if mixed_precision == "float32" else "mixed_bfloat16"


def set_precision(mixed_precision: str) -> None:
  """Makes the precision that of every layer built from now on."""
  from albert_tf.compat import keras  # Deferred: settings and flags name precisions too.

  keras.mixed_precision.set_global_policy(precision_policy(mixed_precision))
