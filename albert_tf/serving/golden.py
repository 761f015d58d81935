"""Golden outputs: what the Python model gave for sample inputs when it was exported, kept in `assets.extra/`."""

from collections.abc import Callable, Mapping, Sequence
import os
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf import files
from albert_tf.serving.bare_loader import Answer, Call, dump_calls, parse_calls
from albert_tf.serving.saved_model import EXTRA_DIR, Signature, read_signatures

GOLDEN_NAME = "golden.npz"  # Servers ignore it.

TEXTS = (
  "The capital of France is [MASK].",
  "A [MASK] of birds flew over the old [MASK] trees.",
  "Paris",
)
CHOICES = ("Paris", "the old trees", "the sea", "the grass")
_STRINGS = {  # By the name of an input; others: TEXTS.
  "text_pair": ("It lies on the river Seine.", "Trees do not fly, birds do.", "Is it a city?"),
  "question": ("Where does the river flow?", "Who sang all day long?", "What is green?"),
  "context": (
    "The Seine is a river. It flows through Paris, and then to the sea.",
    "Small birds sang all day long in the old trees, while the sky was blue.",
    "The grass is green and the sky is blue.",
  ),
}
_LENGTH = 12  # Of rows of ids, where the signature leaves it free.
_NUM_POSITIONS = 2


def write_golden(directory: str, signatures: Mapping[str, Callable[..., Mapping[str, Any]]]) -> None:
  """Records what `tf.function`s by signature name give for sample inputs of the SavedModel in `directory`.

  They are called eagerly, so that the Keras model in this process answers, not the saved graph.
  """
  calls = make_calls(read_signatures(directory))
  answers = [_call_python(signatures[call.signature], call) for call in calls]
  files.makedirs(os.path.join(directory, EXTRA_DIR))
  with files.atomic_writer(os.path.join(directory, EXTRA_DIR, GOLDEN_NAME)) as stream:
    stream.write(dump_calls(calls, answers))


def _call_python(function: Callable[..., Mapping[str, Any]], call: Call) -> Answer:
  """Runs one call eagerly. A refusal of an empty batch is an answer too."""
  python = getattr(function, "python_function", function)
  try:
    outputs = python(**{name: tf.constant(array) for name, array in call.inputs.items()})
  except tf.errors.InvalidArgumentError as error:
    if call.num_rows:
      raise
    return Answer({}, f"{type(error).__name__}: {error.message}")
  return Answer({name: np.asarray(array) for name, array in outputs.items()})


def read_golden(directory: str) -> tuple[list[Call], list[Answer]] | None:
  """The calls and their answers, or None where none were recorded."""
  path = os.path.join(directory, EXTRA_DIR, GOLDEN_NAME)
  return parse_calls(files.read_bytes(path)) if files.exists(path) else None


def make_calls(signatures: Mapping[str, Signature]) -> list[Call]:
  """Two calls of every signature: a batch of three, and an empty one."""
  calls = []
  for name, signature in signatures.items():
    inputs = make_inputs(signature)
    calls += [Call(name, inputs), Call(name, {key: array[:0] for key, array in inputs.items()})]
  return calls


def make_inputs(signature: Signature) -> dict[str, np.ndarray]:
  """A batch of three different rows, chosen by the names and shapes of the inputs."""
  return {
    name: _strings(name, spec) if spec.dtype == tf.string else _ids(name, spec)
    for name, spec in signature.inputs.items()
  }


def _strings(name: str, spec: tf.TensorSpec) -> np.ndarray:
  if spec.shape.rank == 1:
    return string_array(_STRINGS.get(name, TEXTS))
  return np.stack([string_array(CHOICES[row:] + CHOICES[:row]) for row in range(3)])


def string_array(texts: Sequence[str | bytes]) -> np.ndarray:
  """[B] bytes of any length, NULs included."""
  array = np.empty(len(texts), object)
  array[:] = [text.encode() if isinstance(text, str) else text for text in texts]
  return array


def _ids(name: str, spec: tf.TensorSpec) -> np.ndarray:
  """Ids of three rows, the second and third padded; all choices of a row are alike but for one id."""
  length = spec.shape[-1] or (_NUM_POSITIONS if name == "positions" else _LENGTH)
  array = np.zeros([3, *[len(CHOICES)] * (spec.shape.rank - 2), length], spec.dtype.as_numpy_dtype)
  for row, count in enumerate((length, max(length - 2, 1), max(length // 2, 1))):
    if name == "input_mask":
      array[row, ..., :count] = 1
    elif name == "segment_ids":
      array[row, ..., count // 2 : count] = 1
    elif name == "positions":
      array[row] = np.arange(length) + 1 + row
    elif name == "p_mask":
      array[row] = 1
      array[row, ..., count // 2 : count - 1] = 0
    else:
      array[row, ..., :count] = np.arange(count) % 10 + 5
      if array.ndim == 3:
        array[row, :, 1] += np.arange(array.shape[1], dtype=array.dtype)
  return array
