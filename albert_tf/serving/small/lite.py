"""LiteRT (TensorFlow Lite) files: ids in, and every shared weight stored once.

The converter keeps equal constants in one buffer, so twelve uses of one block cost one block's bytes.
"""

from collections.abc import Iterator, Mapping
import contextlib
from typing import Any
import warnings

import numpy as np
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.modeling import named_variables
from albert_tf.serving.small.ids_model import Arrays, IdsModel, Sizes, Tensors
from albert_tf.startup import native_stderr_kept_back

_SIGNATURE = "serving_default"
WEIGHTS = ("float32", "float16", "int8")


@contextlib.contextmanager
def _chatter_left_out() -> Iterator[None]:
  """Keeps back native libraries' messages, and one known warning of Python's; others are shown afterwards."""
  with warnings.catch_warnings(record=True) as caught, native_stderr_kept_back():
    # TensorFlow 2.20 and later: the interpreter moves to the package ai-edge-litert.
    warnings.filterwarnings("ignore", r"\s*Warning: tf\.lite\.Interpreter is deprecated", UserWarning)
    yield
  for warning in caught:
    warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def to_tflite(model: IdsModel, sizes: Sizes, *, weights: str = "float32") -> bytes:
  """Converts a model to a file for LiteRT's interpreters.

  Args:
    model: what to convert.
    sizes: of the inputs; a free batch makes interpreters run more slowly.
    weights: "float32"; "float16": stored in half precision, computed in float32; "int8": dynamic range, that
      is matrices in int8, activations quantised where they are multiplied.

  Returns:
    The file's content; its signature `serving_default` has the inputs and outputs of `IdsModel`.

  Raises:
    UserError: `weights` is none of `WEIGHTS`.
  """
  if weights not in WEIGHTS:
    raise UserError(f"weights must be one of {', '.join(WEIGHTS)}. Received: {weights!r}.")
  specs = model.input_specs(sizes)

  def call(**inputs: tf.Tensor) -> Tensors:
    return model(inputs)

  function = tf.function(call, autograph=False).get_concrete_function(**{spec.name: spec for spec in specs})
  holder = tf.Module()
  # Without one of them the file has no signature.
  holder.captured = list(named_variables(model.model).values())
  converter = tf.lite.TFLiteConverter.from_concrete_functions([function], holder)
  if weights != "float32":
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
  if weights == "float16":
    converter.target_spec.supported_types = [tf.float16]
  if model.kind == "fill_mask":
    # A scale a row would be stored with a copy of the word embeddings for the head; the lookup takes one scale.
    converter._experimental_disable_per_channel_quantization_for_dense_layers = True
  with _chatter_left_out():
    return bytes(converter.convert())


class LiteRunner:
  """Runs a LiteRT file with the interpreter that TensorFlow brings.

  Args:
    content: of the file.
    num_threads: that compute; 0: the interpreter's choice.

  Example:
    >>> LiteRunner(pathlib.Path("classifier.tflite").read_bytes())(batch)["probabilities"]
  """

  def __init__(self, content: bytes, *, num_threads: int = 0):
    with _chatter_left_out():
      self._interpreter: Any = tf.lite.Interpreter(model_content=content, num_threads=num_threads or None)
      self._interpreter.allocate_tensors()
      self._run: Any = self._interpreter.get_signature_runner(_SIGNATURE)

  def __call__(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
    """Outputs by name; a free batch takes the size of the inputs."""
    return dict(self._run(**inputs))
