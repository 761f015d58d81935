"""Which numbers a run computes with. Importing it does not import TensorFlow."""

import time
from typing import Any

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


def product_seconds(dtype: str) -> float:
  """How long a product of base's feed-forward layer takes on the CPU, at best."""
  import tensorflow as tf

  with tf.device("/cpu:0"):
    x, y = (tf.cast(tf.ones(shape), dtype) for shape in ([512, 768], [768, 3072]))
    seconds = []
    for _ in range(4):  # The first makes the kernel.
      began = time.perf_counter()
      tf.matmul(x, y).numpy()
      seconds.append(time.perf_counter() - began)
  return min(seconds)


def precision_warning(mixed_precision: str, strategy: Any) -> str:
  """What to say of a precision that this machine has no instructions for; else empty."""
  from albert_tf.devices import device_kind

  if mixed_precision != "bfloat16" or device_kind(strategy) != "cpu":
    return ""
  ratio = product_seconds("bfloat16") / product_seconds("float32")
  if ratio <= 1:
    return ""
  return (
    f"matrix products in bfloat16 take {ratio:.1f} times as long as in float32 on this CPU (those with AVX512_BF16 "
    "or AMX are faster); --mixed_precision=float32 trains faster"
  )
