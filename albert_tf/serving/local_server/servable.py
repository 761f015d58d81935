"""A SavedModel loaded through a Session, as servers load it, and its signatures."""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import math
import os
import re
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text  # noqa: F401  Registers the ops of the exported tokenizer.

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.serving.local_server.errors import CODES, ApiError

DEFAULT_SIGNATURE = "serving_default"
INIT_SIGNATURE = "__saved_model_init_op"
# What a request may hold at most; bounds on memory.
MAX_BATCH_SIZE = 1024  # Rows; of choices, each is one.
MAX_ELEMENTS = 1 << 24
_MAX_POSITIONS = 1 << 14  # Each is answered with a whole vocabulary.


class Servable:
  """One version of one model.

  Args:
    name: the model's name for clients.
    directory: the version's directory, whose name is its number.
    max_batch_size: a request with more rows is refused.
  """

  def __init__(self, name: str, directory: str, *, max_batch_size: int = MAX_BATCH_SIZE):
    self.name = name
    self.directory = directory
    base = os.path.basename(files.normpath(directory))
    self.version = int(base) if base.isdigit() else 1
    self._max_batch_size = max_batch_size
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
    definition = self.signatures.get(name or DEFAULT_SIGNATURE)
    if definition is None:
      known = ", ".join(sorted(self.signatures))
      raise ApiError(
        f'Serving signature name: "{name or DEFAULT_SIGNATURE}" not found in signature def. Known: {known}.'
      )
    return definition

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
      code = CODES[error.error_code] if error.error_code < len(CODES) else "UNKNOWN"
      raise ApiError(_first_words(error.message), code=code) from error
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
      ("rows", self._max_batch_size, request_rows(name, array)),
      ("elements", MAX_ELEMENTS, array.size),
      ("positions", _MAX_POSITIONS, array.size if name == "positions" else 0),
    ):
      if count > most:
        raise ApiError(
          f'At most {most} {what} a request. Received: {count} in "{name}". Send smaller batches.'
        )

  def close(self) -> None:
    self._session.close()


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


@dataclasses.dataclass(frozen=True)
class ServableFolder:
  """A model's name and where its newest version is.

  Args:
    name: the model's name for clients.
    directory: the version's directory.
  """

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
    directory = find_newest_version(path)
    return cls(name or _name_of_config(os.path.dirname(directory)) or "albert", directory)


def _name_of_config(folder: str) -> str:
  """The one model that a folder's `models.config` names; empty where there is none."""
  try:
    text = files.read_bytes(os.path.join(folder, "models.config")).decode()
    names = re.findall(r'^\s*name:\s*"([^"/: ]+)"', text, re.MULTILINE)
  except (OSError, UnicodeDecodeError):
    return ""
  return names[0] if len(names) == 1 else ""


def find_newest_version(path: str) -> str:
  """The SavedModel at `path`, or the highest version in it."""
  path = files.abspath(path)
  if files.exists(os.path.join(path, "saved_model.pb")):
    return path
  versions = [n for n in files.listdir(path) if n.isdigit() and files.isdir(os.path.join(path, n))]
  if not versions:
    raise UserError(
      f"A SavedModel or a folder of numbered versions is needed. Received: {path}, which is neither. "
      "Make one with tpu_scripts/export_saved_model.py."
    )
  return os.path.join(path, max(versions, key=int))


def load_servables(
  folders: Sequence[ServableFolder], *, max_batch_size: int = MAX_BATCH_SIZE
) -> dict[str, Servable]:
  """Loads each model; a `UserError` where two have one name."""
  names = [folder.name for folder in folders]
  if len(set(names)) != len(names):
    raise UserError(f"Each model needs a name of its own. Received: {', '.join(names)}. Write NAME=PATH.")
  return {
    folder.name: Servable(folder.name, folder.directory, max_batch_size=max_batch_size) for folder in folders
  }
