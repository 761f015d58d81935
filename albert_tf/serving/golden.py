"""Golden outputs: what the Python model gave when it was exported, kept in the export; and how near answers are.

They lie in `assets.extra/`, which servers ignore but for the warm-up file.
"""

from collections.abc import Callable, Mapping
import os
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf import files
from albert_tf.serving.bare_loader import Answer, Call, dump_calls, parse_calls
from albert_tf.serving.samples import make_calls
from albert_tf.serving.saved_model import EXTRA_DIR, read_signatures

GOLDEN_NAME = "golden.npz"
TOLERANCE = 1e-5

PythonSignature = Callable[..., Mapping[str, Any]]


def write_golden(directory: str, signatures: Mapping[str, PythonSignature]) -> int:
  """Records what Python functions give for sample inputs of an export's signatures.

  Args:
    directory: the SavedModel, already written.
    signatures: by signature name, a function of the input tensors by name. Called
      eagerly, so that the Keras model in this process answers, not the saved graph.

  Returns:
    How many calls were recorded.
  """
  calls = make_calls(read_signatures(directory))
  answers = [call_python(signatures[call.signature], call) for call in calls]
  files.makedirs(os.path.join(directory, EXTRA_DIR))
  with files.atomic_writer(os.path.join(directory, EXTRA_DIR, GOLDEN_NAME)) as stream:
    stream.write(dump_calls(calls, answers))
  return len(calls)


def call_python(function: PythonSignature, call: Call) -> Answer:
  """Runs one call eagerly; a `tf.function` is unwrapped. A refusal of an empty batch is an answer too."""
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


def difference(outputs: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> tuple[str, float]:
  """The first difference in words, "" where there is none, and max |a − b| / max(1, |b|) of the floats."""
  if set(outputs) != set(expected):
    return f"outputs {sorted(outputs)} instead of {sorted(expected)}", 0.0
  largest = 0.0
  for name, array in outputs.items():
    wanted = np.asarray(expected[name])
    if (array.shape, array.dtype.kind) != (wanted.shape, wanted.dtype.kind):
      return f"{name} is {array.dtype} {array.shape} instead of {wanted.dtype} {wanted.shape}", largest
    if array.dtype.kind == "f":
      if not np.isfinite(array).all():
        return f"{name} holds values that are not finite", largest
      gaps = np.abs(array.astype(np.float64) - wanted) / np.maximum(1.0, np.abs(wanted))
      largest = max(largest, float(gaps.max(initial=0.0)))
      if largest > TOLERANCE:
        return f"{name} differs by {largest:.2e}", largest
    elif not np.array_equal(array, wanted):
      place = tuple(int(i) for i in np.argwhere(array != wanted)[0])
      return f"{name}{list(place)} is {array[place]!r} instead of {wanted[place]!r}", largest
  return "", largest
