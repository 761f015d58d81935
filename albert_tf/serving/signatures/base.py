"""What a SavedModel holds: a `tf.Module` that tracks plain variables, and its signatures.

The Keras model is used only while the functions are traced. Saving a Keras 3
model itself gives a SavedModel that no Session-style loader takes, TensorFlow
Serving's included; one that tracks the bare `tf.Variable`s loads everywhere, and
on either stack.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import re
import types
from typing import Any

import tensorflow as tf

from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.modeling import named_variables
from albert_tf.tokenization import Tokenizer
from albert_tf.tokenization.graph import graph_tokenizer
from albert_tf.tokenization.graph_inputs import at_least, cut

Tensors = dict[str, tf.Tensor]
Signatures = dict[str, Any]  # Of `tf.function`.
TOKEN_KEYS = ("input_ids", "input_mask", "segment_ids")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportSettings:
  """What an export may be told beside what is exported.

  Attributes:
    top_k: answers a mask that `fill_mask` gives.
    n_best: answers that `question_answering` gives, and the starts and ends tried in a window of SQuAD 1.1.
    max_windows: of a context that `question_answering` reads.
    max_seq_length: rows are cut here; None: the length that the model was fine-tuned with, else the
      longest that it knows.
    pad_to_max_length: every row has that length; else a batch has its longest row's.
    use_ema: the averages that a run kept instead of its weights.
    model_name: under which servers offer it; None: the kind of model.
  """

  top_k: int = 10
  n_best: int = 20
  max_windows: int = 32
  max_seq_length: int | None = None
  pad_to_max_length: bool = False
  use_ema: bool = False
  model_name: str | None = None

  def __post_init__(self) -> None:
    if self.model_name is not None and not re.fullmatch(r"[A-Za-z0-9_.-]+", self.model_name):
      raise UserError(
        "model_name is part of a URL and a path: letters, digits, '_', '-' and '.'. "
        f"Received: {self.model_name!r}."
      )
    for name in ("n_best", "max_windows"):
      if getattr(self, name) < 1:
        raise UserError(f"{name} must be at least 1. Received: {getattr(self, name)}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parts:
  """What every module is made of.

  Attributes:
    model: a built model of this package.
    tokenizer: its tokenizer.
    limit: the longest sequence that the model knows.
    task: what it was fine-tuned for; None for a pretrained model.
    settings: of the export.
    asset_files: local files that are copied into the SavedModel's `assets/`.
  """

  model: Any
  tokenizer: Tokenizer
  limit: int
  task: TaskSpec | None = None
  settings: ExportSettings = ExportSettings()
  asset_files: Sequence[str] = ()

  def __post_init__(self) -> None:
    if not 8 <= self.max_length <= self.limit:
      raise UserError(
        f"max_seq_length must be between 8 and the model's max_position_embeddings={self.limit}. "
        f"Received: {self.max_length}."
      )

  @property
  def max_length(self) -> int:
    """S at most."""
    return self.settings.max_seq_length or min(
      self.task.max_seq_length if self.task else self.limit, self.limit
    )


def graph(function: Callable[..., Tensors], inputs: Sequence[tf.TensorSpec]) -> Any:
  """The function as a graph with these inputs; without Python control flow to convert."""
  return tf.function(function, input_signature=inputs, autograph=False)


def strings(*names: str) -> tuple[tf.TensorSpec, ...]:
  """Inputs that are one string an example, `[B]`."""
  return tuple(tf.TensorSpec([None], tf.string, name=name) for name in names)


class ServingModule(tf.Module):
  """Tracks a model's variables, its tokenizer, and the files that must travel with it.

  Args:
    parts: of what it is made.
  """

  def __init__(self, parts: Parts):
    super().__init__(name="albert_serving")
    # A lambda hides the Keras model from what is tracked.
    self._call: Callable[..., Any] = lambda inputs: parts.model(inputs, training=False)
    self._limit = parts.limit
    self._max_length = parts.max_length
    # S where every row has it; None: a batch has its longest row's.
    self._fixed_length = parts.max_length if parts.settings.pad_to_max_length else None
    self.model_variables = list(named_variables(parts.model).values())
    self.tokenizer = graph_tokenizer(parts.tokenizer)
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
    return tf.TensorSpec([None, self._fixed_length], tf.int32, name=name)

  def token_inputs(self) -> tuple[tf.TensorSpec, ...]:
    return tuple(map(self.ids, TOKEN_KEYS))

  def pack(self, text: tf.Tensor, text_pair: tf.Tensor | None = None, *, allow_mask: bool = False) -> Tensors:
    """Strings as a batch."""
    batch = self.tokenizer(
      cut(text),
      None if text_pair is None else cut(text_pair),
      max_length=self._max_length,
      pad_to_max_length=self._fixed_length is not None,
      allow_mask=allow_mask,
    )
    return at_least(batch, 1)

  def run_model(self, *ids: tf.Tensor, **more: tf.Tensor) -> Any:
    """Calls the model with `TOKEN_KEYS` in order and other inputs by name."""
    # Outside of the check: ops that wait for one are harder to fold and to fuse.
    return self._call(self.checked(*ids, **more))

  def checked(self, *ids: tf.Tensor, **more: tf.Tensor) -> Tensors:
    """The inputs by name, once their length is known to be one that the model has positions for."""
    inputs = {**dict(zip(TOKEN_KEYS, ids, strict=True)), **more}
    length = tf.shape(inputs["input_ids"])[-1]
    message = f"A sequence must not be longer than max_position_embeddings={self._limit}."
    with tf.control_dependencies([tf.debugging.assert_less_equal(length, self._limit, message=message)]):
      return {name: tf.identity(tensor) for name, tensor in inputs.items()}


def parse_strings(serialized: tf.Tensor, *, required: Sequence[str], optional: Sequence[str] = ()) -> Tensors:
  """One string a feature and example.

  Args:
    serialized: [B] tf.Examples.
    required: features without which an example is an error that names them.
    optional: features that are "" where they are not given.

  Returns:
    Feature name → [B] strings.
  """
  features = {name: tf.io.FixedLenFeature([], tf.string) for name in required}
  features |= {name: tf.io.FixedLenFeature([], tf.string, default_value="") for name in optional}
  return dict(tf.io.parse_example(serialized, features))


def parse_texts_or_ids(serialized: tf.Tensor, text_names: Sequence[str]) -> tuple[Tensors, Tensors]:
  """Examples that hold either strings or the ids that training records hold.

  Args:
    serialized: [B] tf.Examples with every one of `text_names`, or with `input_ids`, `input_mask` and
      `segment_ids` of one length; both may occur in a batch.
    text_names: features of one string each.

  Returns:
    (feature name → [B] strings, "" where ids are given; `TOKEN_KEYS` → int32 ragged [B, (length)], empty
    where strings are).
  """
  features = {name: tf.io.RaggedFeature(tf.string, row_splits_dtype=tf.int64) for name in text_names}
  features |= {name: tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64) for name in TOKEN_KEYS}
  parsed = tf.io.parse_example(serialized, features)
  lengths = {name: parsed[name].row_lengths() for name in features}
  has_ids = lengths["input_ids"] > 0
  fits = [tf.where(has_ids, lengths[name] == 0, lengths[name] == 1) for name in text_names]
  fits += [lengths[name] == lengths["input_ids"] for name in TOKEN_KEYS]
  message = (
    f"An example must hold one string in each of {', '.join(text_names)}, or else {', '.join(TOKEN_KEYS)} "
    "of one length."
  )
  check = tf.debugging.assert_equal(tf.reduce_all(tf.stack(fits)), True, message=message)
  with tf.control_dependencies([check]):
    texts = {name: tf.strings.reduce_join(parsed[name], axis=-1) for name in text_names}
    ids = {name: tf.cast(parsed[name], tf.int32) for name in TOKEN_KEYS}
  return texts, ids


def merge_rows(packed: Tensors, given: Tensors) -> Tensors:
  """Rows of `given` where it has any, else of `packed`; all padded to the longest.

  Args:
    packed: name → [B, S].
    given: name → ragged [B, (length)].
  """
  merged = {}
  for name, tensor in packed.items():
    row = given[name].to_tensor()
    length = tf.maximum(tf.shape(tensor)[1], tf.shape(row)[1])
    has_row = given[name].row_lengths()[:, tf.newaxis] > 0
    padded = [tf.pad(rows, [[0, 0], [0, length - tf.shape(rows)[1]]]) for rows in (row, tensor)]
    merged[name] = tf.where(has_row, *padded)
  return merged
