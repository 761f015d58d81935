"""Golden outputs: what the Python model gave when it was exported, kept in the export.

They lie in `assets.extra/`, which servers ignore but for the warm-up file.
"""

from collections.abc import Callable, Mapping, Sequence
import os
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf import files
from albert_tf.serving.conformance import tensor_file
from albert_tf.serving.conformance.samples import make_calls
from albert_tf.serving.conformance.signatures import read_signatures
from albert_tf.serving.conformance.tensor_file import Answer, Call

EXTRA_DIR = "assets.extra"
CALLS_NAME = "golden_calls.bin"
ANSWERS_NAME = "golden_answers.bin"

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
  with files.atomic_writer(_path(directory, CALLS_NAME)) as stream:
    tensor_file.dump_calls(stream, calls)
  with files.atomic_writer(_path(directory, ANSWERS_NAME)) as stream:
    tensor_file.dump_answers(stream, answers)
  return len(calls)


def call_python(function: PythonSignature, call: Call) -> Answer:
  """Runs one call eagerly; a `tf.function` is unwrapped. A refusal of an empty batch is an answer too."""
  python = getattr(function, "python_function", function)
  try:
    outputs = python(**{name: tf.constant(array) for name, array in call.inputs.items()})
  except tf.errors.InvalidArgumentError as error:
    if call.num_rows:
      raise
    return Answer({}, int(error.error_code), error.message)
  return Answer({name: np.asarray(outputs[name]) for name in call.outputs})


def read_golden(directory: str) -> tuple[Sequence[Call], Sequence[Answer]] | None:
  """The calls and their answers, or None where none were recorded."""
  if not files.exists(_path(directory, CALLS_NAME)):
    return None
  calls = tensor_file.read_calls(_path(directory, CALLS_NAME))
  return calls, tensor_file.read_answers(_path(directory, ANSWERS_NAME))


def _path(directory: str, name: str) -> str:
  return os.path.join(directory, EXTRA_DIR, name)
