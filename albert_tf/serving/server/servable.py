"""A SavedModel loaded through a Session, as servers load it, and its signatures."""

from collections.abc import Iterable, Mapping, Sequence
import math
import os
import re
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text  # noqa: F401  Registers the ops of the exported tokenizer.

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.serving.layout import MAX_BATCH_SIZE
from albert_tf.serving.samples import string_array
from albert_tf.serving.saved_model import CLASSIFY, INIT_SIGNATURE, REGRESS, find_version

# What a request may hold at most beside `MAX_BATCH_SIZE` rows (of choices, each is one): bounds on memory.
MAX_ELEMENTS = 1 << 24
_MAX_POSITIONS = 1 << 14  # Each is answered with a whole vocabulary.
# gRPC's statuses in the order of their numbers, which TensorFlow shares, and HTTP's.
HTTP_STATUS = {
  "OK": 200,
  "CANCELLED": 499,
  "UNKNOWN": 500,
  "INVALID_ARGUMENT": 400,
  "DEADLINE_EXCEEDED": 504,
  "NOT_FOUND": 404,
  "ALREADY_EXISTS": 409,
  "PERMISSION_DENIED": 403,
  "RESOURCE_EXHAUSTED": 429,
  "FAILED_PRECONDITION": 412,
  "ABORTED": 409,
  "OUT_OF_RANGE": 400,
  "UNIMPLEMENTED": 501,
  "INTERNAL": 500,
  "UNAVAILABLE": 503,
  "DATA_LOSS": 500,
  "UNAUTHENTICATED": 401,
}


class ApiError(Exception):
  """A request that cannot be answered.

  Args:
    message: for the client.
    code: gRPC's name of the status, a key of `HTTP_STATUS`.
  """

  def __init__(self, message: str, *, code: str = "INVALID_ARGUMENT"):
    super().__init__(message)
    self.message = message
    self.code = code


class Servable:
  """One version of one model.

  Args:
    name: the model's name for clients.
    directory: the version's directory, whose name is its number.
  """

  def __init__(self, name: str, directory: str):
    self.name = name
    self.directory = directory
    base = os.path.basename(files.normpath(directory))
    self.version = int(base) if base.isdigit() else 1
    self._session = tf.compat.v1.Session(graph=tf.Graph())
    try:
      with self._session.graph.as_default():
        meta_graph = tf.compat.v1.saved_model.load(self._session, ["serve"], directory)
    except (OSError, RuntimeError, ValueError, tf.errors.OpError) as error:
      raise UserError(
        f"A SavedModel with the tag `serve` is needed. Received: {directory} ({str(error).splitlines()[0]})."
      ) from error
    self.signatures = {
      key: definition for key, definition in meta_graph.signature_def.items() if key != INIT_SIGNATURE
    }

  def signature(self, name: str) -> Any:
    """The SignatureDef called `name`, by default `serving_default`."""
    name = name or "serving_default"
    if name not in self.signatures:
      known = ", ".join(sorted(self.signatures))
      raise ApiError(f'Serving signature name: "{name}" not found in signature def. Known: {known}.')
    return self.signatures[name]

  def run(
    self, signature_name: str, inputs: Mapping[str, np.ndarray], *, outputs: Sequence[str] = ()
  ) -> dict[str, np.ndarray]:
    """Runs a signature.

    Args:
      signature_name: empty for the default.
      inputs: an array for each of the signature's inputs.
      outputs: which outputs are wanted; none: all.

    Raises:
      ApiError: names, types or shapes are not the signature's, or the graph refuses the values.
    """
    definition = self.signature(signature_name)
    _check_names("inputs", inputs, definition.inputs, exact=True)
    _check_names("output_filter", outputs, definition.outputs, exact=False)
    for name, array in inputs.items():
      self._check_array(name, array, definition.inputs[name])
    fetches = {name: definition.outputs[name].name for name in (outputs or definition.outputs)}
    feeds = {definition.inputs[name].name: array for name, array in inputs.items()}
    try:
      return self._session.run(fetches, feeds)
    except tf.errors.OpError as error:
      raise ApiError(_first_words(error.message), code=list(HTTP_STATUS)[error.error_code]) from error
    except (TypeError, ValueError) as error:
      raise ApiError(_first_words(str(error))) from error

  def _check_array(self, name: str, array: np.ndarray, info: Any) -> None:
    wanted = tf.dtypes.as_dtype(info.dtype)
    given = tf.string if array.dtype == object else tf.dtypes.as_dtype(array.dtype)
    if given != wanted:
      raise ApiError(f'Input "{name}" must be of type {wanted.name}. Received: {given.name}.')
    shape = tf.TensorShape(info.tensor_shape)
    if not shape.is_compatible_with(array.shape):
      raise ApiError(f'Input "{name}" must have shape {shape}. Received: {array.shape}.')
    for what, most, count in (
      ("rows", MAX_BATCH_SIZE, request_rows(name, array)),
      ("elements", MAX_ELEMENTS, array.size),
      ("positions", _MAX_POSITIONS, array.size if name == "positions" else 0),
    ):
      if count > most:
        raise ApiError(
          f'At most {most} {what} a request. Received: {count} in "{name}". Send smaller batches.'
        )

  def classify(self, signature_name: str, examples: Sequence[bytes]) -> list[list[tuple[str, float]]]:
    """For each serialized tf.Example its classes, each a label (may be empty) with its score."""
    outputs = self._run_examples(signature_name, examples, CLASSIFY, {"classes", "scores"})
    shapes = {array.shape for array in outputs.values()}
    if len(shapes) != 1 or any(len(shape) != 2 or shape[0] != len(examples) for shape in shapes):
      raise ApiError(f"Expected Tensor shape: [batch_size num_classes] but got {shapes}", code="INTERNAL")
    shape = next(iter(shapes))
    labels = outputs.get("classes", np.full(shape, b"", object))
    scores = outputs.get("scores", np.zeros(shape, np.float32))
    return [
      [(label.decode("utf-8", "replace"), float(str(score))) for label, score in zip(*row, strict=True)]
      for row in zip(labels, scores, strict=True)
    ]

  def regress(self, signature_name: str, examples: Sequence[bytes]) -> list[float]:
    """For each serialized tf.Example its value."""
    values = self._run_examples(signature_name, examples, REGRESS, {"outputs"})["outputs"]
    if values.size != len(examples):
      raise ApiError(f"Expected one value an example, got {values.shape}", code="INTERNAL")
    return [float(str(value)) for value in values.reshape(-1)]

  def _run_examples(
    self, signature_name: str, examples: Sequence[bytes], method: str, known: set[str]
  ) -> dict[str, np.ndarray]:
    definition = self.signature(signature_name)
    if definition.method_name != method:
      raise ApiError(
        f"Expected signature method_name to be {method}. Was: {definition.method_name}. "
        "Name a signature that takes tf.Example, such as signature_name: examples."
      )
    if list(definition.inputs) != ["inputs"] or not set(definition.outputs) <= known:
      raise ApiError(f"The signature must take inputs and give {known}", code="FAILED_PRECONDITION")
    if not examples:
      raise ApiError("Input is empty.")
    return self.run(signature_name, {"inputs": string_array(examples)})


def find_servable(
  servables: Mapping[str, Servable], name: str, version: int | None, *, for_status: bool = False
) -> Servable:
  """Whom a request is for, None being the newest version; an `ApiError` with NOT_FOUND where there is none."""
  if not name:
    raise ApiError("Missing model name in request.")
  servable = servables.get(name)
  if servable is None or version not in (None, servable.version):
    which = f"Latest({name})" if version is None else f"Specific({name}, {version})"
    message = f"Servable not found for request: {which}"
    if for_status:
      message = f"Could not find any versions of model {name}"
    raise ApiError(message, code="NOT_FOUND")
  return servable


def request_rows(name: str, array: np.ndarray) -> int:
  """Rows that the model computes: `[B]` texts, `[B, S]` ids, `[B, C]` choices, `[B, C, S]` ids of choices."""
  by_choice = array.shape[:2] if name == "choices" or array.ndim == 3 else array.shape[:1]
  return math.prod(by_choice)


def _check_names(what: str, given: Iterable[str], known: Iterable[str], *, exact: bool) -> None:
  unknown, missing = sorted(set(given) - set(known)), sorted(set(known) - set(given))
  if unknown or (exact and missing):
    raise ApiError(
      f"{what} must be named as the signature names them: {', '.join(sorted(known))}. "
      f"Received: {', '.join(sorted(given)) or 'none'}."
    )


def _first_words(message: str) -> str:
  """An error of the graph without the nodes that it passed through."""
  lines = [line for line in message.splitlines() if line.strip() and "[[" not in line]
  kept = [line for line in lines if not line.startswith(("Errors may have", "Original stack trace"))]
  return "\n".join(kept[:4]) or message


class ServableFolder(NamedTuple):
  """A model's name for clients, and the directory of its newest version."""

  name: str
  directory: str

  @classmethod
  def parse(cls, text: str) -> "ServableFolder":
    """From `PATH` or `NAME=PATH`; without a name that of the `models.config` beside it, else `albert`."""
    name, equals, path = text.partition("=")
    if not equals:
      name, path = "", text
    if equals and (not name or any(character in name for character in "/: ")):
      raise UserError(f"A model's name has no '/', ':' or space. Received: {name!r}. Write NAME=PATH.")
    directory = find_version(path)
    return cls(name or _name_of_config(os.path.dirname(directory)) or "albert", directory)


def _name_of_config(folder: str) -> str:
  """The one model that a folder's `models.config` names; empty where there is none."""
  try:
    text = files.read_bytes(os.path.join(folder, "models.config")).decode()
    names = re.findall(r'^\s*name:\s*"([^"/: ]+)"', text, re.MULTILINE)
  except (OSError, UnicodeDecodeError):
    return ""
  return names[0] if len(names) == 1 else ""


def load_servables(folders: Sequence[ServableFolder]) -> dict[str, Servable]:
  """Loads each model; a `UserError` where two have one name."""
  names = [folder.name for folder in folders]
  if len(set(names)) != len(names):
    raise UserError(f"Each model needs a name of its own. Received: {', '.join(names)}. Write NAME=PATH.")
  return {folder.name: Servable(folder.name, folder.directory) for folder in folders}
