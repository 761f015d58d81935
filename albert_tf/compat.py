"""The differences between the two supported stacks, and nothing else.

`keras3`: TensorFlow 2.20-2.21 with Keras 3. `addons`: TensorFlow 2.15 with Keras
2.15 and TensorFlow Addons. No other module asks which one it runs on.
"""

from typing import Any

import keras
import tensorflow as tf

KERAS_3 = int(keras.__version__.split(".")[0]) >= 3
STACK = "keras3" if KERAS_3 else "addons"


def raw_variable(variable: Any) -> tf.Variable:
  """The `tf.Variable` behind a weight: Keras 3 wraps it, Keras 2 does not."""
  return variable.value if KERAS_3 and not isinstance(variable, tf.Variable) else variable
