"""Base class of exported modules: a `tf.Module` that tracks plain variables, and its signatures.

The Keras model is used only while the functions are traced. TensorFlow Serving loads models in a Session. A saved
Keras 3 model does not load in a Session; a module that tracks the bare `tf.Variable`s does.
"""

from collections.abc import Callable, Sequence
import copy
import dataclasses
import types
from typing import Any

import tensorflow as tf

from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.modeling import named_variables
from albert_tf.serving.settings import ExportSettings
from albert_tf.tokenization import Tokenizer
from albert_tf.tokenization.graph import graph_tokenizer
from albert_tf.tokenization.graph_inputs import Tensors as Tensors
from albert_tf.tokenization.graph_inputs import limit_characters, text_batch

Signatures = dict[str, Any]  # Of `tf.function`.
TOKEN_KEYS = ("input_ids", "input_mask", "segment_ids")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parts:
  """Constructor arguments of every module; see `export_model`.

  Attributes:
    asset_files: copied into the SavedModel's `assets/`.
    depth: see `Encoder`.
  """

  model: Any
  settings: ExportSettings
  task: TaskSpec | None = None
  asset_files: Sequence[str] = ()
  depth: int | None = None

  def __post_init__(self) -> None:
    if not 8 <= self.max_length <= self.limit:
      raise UserError(
        f"max_seq_length must be between 8 and the model's max_position_embeddings={self.limit}. "
        f"Received: {self.max_length}."
      )

  @property
  def tokenizer(self) -> Tokenizer:
    return self.model.preprocessor.tokenizer

  @property
  def limit(self) -> int:
    """The longest sequence of the model."""
    return self.model.config.max_position_embeddings

  @property
  def max_length(self) -> int:
    """The largest S."""
    if self.settings.max_seq_length:
      return self.settings.max_seq_length
    if self.task is not None:
      return min(self.task.max_seq_length, self.limit)
    return self.limit


def strings(*names: str) -> tuple[tf.TensorSpec, ...]:
  """String inputs `[B]`."""
  return tuple(tf.TensorSpec([None], tf.string, name=name) for name in names)


def ids(*names: str) -> tuple[tf.TensorSpec, ...]:
  """int32 inputs `[B, S]`."""
  return tuple(tf.TensorSpec([None, None], tf.int32, name=name) for name in names)


class ServingModule(tf.Module):
  """Tracks a model's variables, tokenizer and asset files.

  Signatures of every kind:
    serving_default: strings → outputs of `text`; with `depths` also `depth_N`, the same with N layers.
    tokens: ids → outputs of `tokens`.
  """

  text: Callable[..., Tensors]
  tokens: Callable[..., Tensors]

  def __init__(self, parts: Parts):
    super().__init__(name="albert_serving")
    self._parts = parts  # A dataclass is not tracked, so neither is the Keras model in it.
    self.model_variables = list(named_variables(parts.model).values())
    self.tokenizer = graph_tokenizer(parts.tokenizer)
    # A namespace is not tracked, so its functions are not saved twice.
    self._shared = types.SimpleNamespace(functions={})
    self.assets = [tf.saved_model.Asset(path) for path in parts.asset_files]

  def at_depth(self, depth: int) -> "ServingModule":
    """The same variables and tokenizer with functions of `depth` layers."""
    other = copy.copy(self)
    other._parts = dataclasses.replace(self._parts, depth=depth)
    # Functions of its own: those of this module have its number of layers.
    other._shared = types.SimpleNamespace(functions={})
    return other

  def signatures(self) -> Signatures:
    """The functions that clients call, by signature name."""
    return {
      "serving_default": self.shared(self.text, self.text_inputs()),
      "tokens": self.shared(self.tokens, self.token_inputs()),
    }

  def shared(self, method: Callable[..., Tensors], inputs: Sequence[tf.TensorSpec]) -> Any:
    """A method as one function in the SavedModel, however many signatures call it."""
    functions = self._shared.functions
    if method.__name__ not in functions:
      functions[method.__name__] = tf.function(method, input_signature=inputs, autograph=False)
    return functions[method.__name__]

  @property
  def task(self) -> TaskSpec:
    """The task of a fine-tuned model."""
    assert self._parts.task is not None
    return self._parts.task

  def text_inputs(self) -> tuple[tf.TensorSpec, ...]:
    return strings("text")

  def token_inputs(self) -> tuple[tf.TensorSpec, ...]:
    return ids(*TOKEN_KEYS)

  def pack(
    self, text: tf.Tensor, text_pair: tf.Tensor | None = None, *, allow_mask: bool = False
  ) -> Tensors:
    """Tokenizes strings into a batch; see `text_batch`."""
    if text_pair is not None:
      text_pair = limit_characters(text_pair)
    return text_batch(
      self.tokenizer,
      limit_characters(text),
      text_pair,
      max_length=self._parts.max_length,
      pad_to_max_length=False,
      allow_mask=allow_mask,
    )

  def run_model(self, *ids: tf.Tensor, **more: tf.Tensor) -> Any:
    """Calls the model with `TOKEN_KEYS` in order and other inputs by name."""
    # Not under the control dependencies of `checked`, which would prevent folding and fusing of ops.
    return self._parts.model(self.checked(*ids, **more), training=False, depth=self._parts.depth)

  def checked(self, *ids: tf.Tensor, **more: tf.Tensor) -> Tensors:
    """The inputs by name, after a check of their length."""
    inputs = dict(zip(TOKEN_KEYS, ids, strict=True), **more)
    # Of `positions` too: logits of the whole vocabulary at many thousands of them take all memory.
    length = tf.reduce_max([tf.shape(tensor)[-1] for tensor in inputs.values()])
    limit = self._parts.limit
    message = f"A sequence must not be longer than max_position_embeddings={limit}."
    with tf.control_dependencies([tf.debugging.assert_less_equal(length, limit, message=message)]):
      return {name: tf.identity(tensor) for name, tensor in inputs.items()}
