"""What a SavedModel holds: a `tf.Module` that tracks plain variables, and its signatures.

The Keras model is used only while the functions are traced. Saving a Keras 3
model itself gives a SavedModel that no Session-style loader takes, TensorFlow
Serving's included; one that tracks the bare `tf.Variable`s loads everywhere, and
on either stack.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import types
from typing import Any, NamedTuple

import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.modeling import named_variables
from albert_tf.tokenization import AlbertTokenizer
from albert_tf.tokenization.graph import GraphTokenizer

Tensors = dict[str, tf.Tensor]
Signatures = dict[str, Any]  # Of `tf.function`.
TOKEN_KEYS = ("input_ids", "input_mask", "segment_ids")
# Characters that are read of a text. SentencePiece takes a time that grows with the square of a run of unknown
# characters: 5 s for a megabyte of them, less than one for these.
LONGEST_TEXT = 1 << 17


class Packing(NamedTuple):
  """How long rows are.

  Attributes:
    max_length: S at most; longer texts are cut.
    fixed: S is always `max_length`; else the longest row's length.
  """

  max_length: int
  fixed: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parts:
  """What every module is made of.

  Attributes:
    model: a built model of this package.
    tokenizer: its tokenizer.
    packing: the lengths of its rows.
    limit: the longest sequence that the model knows.
    asset_files: local files that are copied into the SavedModel's `assets/`.
  """

  model: Any
  tokenizer: AlbertTokenizer
  packing: Packing
  limit: int
  asset_files: Sequence[str] = ()

  def __post_init__(self) -> None:
    if not 8 <= self.packing.max_length <= self.limit:
      raise UserError(
        f"max_seq_length must be between 8 and the model's max_position_embeddings={self.limit}. "
        f"Received: {self.packing.max_length}."
      )


def graph(function: Callable[..., Tensors], inputs: Sequence[tf.TensorSpec]) -> Any:
  """The function as a graph with these inputs; without Python control flow to convert."""
  return tf.function(function, input_signature=inputs, autograph=False)


def strings(*names: str) -> tuple[tf.TensorSpec, ...]:
  """Inputs that are one string an example, `[B]`."""
  return tuple(tf.TensorSpec([None], tf.string, name=name) for name in names)


def cut(texts: tf.Tensor) -> tf.Tensor:
  """The first `LONGEST_TEXT` characters of each string, valid UTF-8 or not."""
  return tf.strings.substr(texts, 0, LONGEST_TEXT, unit="UTF8_CHAR")


class ServingModule(tf.Module):
  """Tracks a model's variables, its tokenizer, and the files that must travel with it.

  Args:
    parts: of what it is made.
  """

  def __init__(self, parts: Parts):
    super().__init__(name="albert_serving")
    # A lambda hides the Keras model from what is tracked.
    self._call: Callable[..., Any] = lambda inputs: parts.model(inputs, training=False)
    self._packing = parts.packing
    self._limit = parts.limit
    self.model_variables = list(named_variables(parts.model).values())
    self.tokenizer = GraphTokenizer(parts.tokenizer)
    self._shared = types.SimpleNamespace(functions={})  # Not tracked: it would be saved once more.
    self.assets = [tf.saved_model.Asset(path) for path in parts.asset_files]

  def signatures(self) -> Signatures:
    """The functions that clients call, by signature name."""
    raise NotImplementedError

  def method_names(self) -> Mapping[str, str]:
    """Signatures that a server offers as Classify or Regress, by name; all others are Predict."""
    return {}

  def shared(self, method: Callable[..., Tensors], inputs: Sequence[tf.TensorSpec]) -> Any:
    """A method as one function in the SavedModel, however many signatures call it."""
    functions = self._shared.functions
    if method.__name__ not in functions:
      functions[method.__name__] = graph(method, inputs)
    return functions[method.__name__]

  def ids(self, name: str) -> tf.TensorSpec:
    """An input `[B, S]`."""
    length = self._packing.max_length if self._packing.fixed else None
    return tf.TensorSpec([None, length], tf.int32, name=name)

  def token_inputs(self) -> tuple[tf.TensorSpec, ...]:
    return tuple(map(self.ids, TOKEN_KEYS))

  def pack(self, text: tf.Tensor, text_pair: tf.Tensor | None = None, *, allow_mask: bool = False) -> Tensors:
    """Strings as a batch of at least one position, which even an empty one needs."""
    batch = self.tokenizer(
      cut(text),
      None if text_pair is None else cut(text_pair),
      max_length=self._packing.max_length,
      pad_to_max_length=self._packing.fixed,
      allow_mask=allow_mask,
    )
    if self._packing.fixed:
      return batch
    missing = tf.maximum(1 - tf.shape(batch["input_ids"])[1], 0)
    return {name: tf.pad(tensor, [[0, 0], [0, missing]]) for name, tensor in batch.items()}

  def run_model(self, inputs: Tensors) -> Any:
    """Calls the model, after a check that a dynamic length cannot have before."""
    return self._call(
      self.checked(inputs)
    )  # Outside: ops that wait for a check are harder to fold and to fuse.

  def checked(self, inputs: Tensors) -> Tensors:
    """The inputs, once their length is known to be one that the model has positions for."""
    length = tf.shape(inputs["input_ids"])[-1]
    message = f"A sequence must not be longer than max_position_embeddings={self._limit}."
    with tf.control_dependencies([tf.debugging.assert_less_equal(length, self._limit, message=message)]):
      return {name: tf.identity(tensor) for name, tensor in inputs.items()}
