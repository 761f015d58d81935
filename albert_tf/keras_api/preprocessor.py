"""The tokenizer as a Keras layer, which converts strings to batches.

It runs in `tf.data`, inside a model, and before `fit` of the models here.
"""

import base64
from collections.abc import Iterator, Mapping
import pathlib
import tempfile
from typing import Any
import zlib

import keras
import numpy as np
import tensorflow as tf

from albert_tf import files
from albert_tf.configs.albert_config import MOST_POSITIONS
from albert_tf.configs.task import SHORTEST_ROW
from albert_tf.errors import UserError, whole_number
from albert_tf.tokenization import AlbertTokenizer, Tokenizer, load_tokenizer
from albert_tf.tokenization.graph import graph_tokenizer
from albert_tf.tokenization.graph_inputs import (
  Tensors,
  choice_batch,
  holds_text,
  limit_characters,
  question_batch,
  text_batch,
  word_batch,
)

# Kind → names of its inputs. Those in `_OPTIONAL` may be left out after the first.
INPUT_NAMES: Mapping[str, tuple[str, ...]] = {
  "text": ("text", "text_pair"),
  "sentences": ("text", "positive", "negative"),
  "masked_text": ("text",),
  "choices": ("context", "question", "choices"),
  "words": ("words",),
  "question": ("question", "context"),
}
_OPTIONAL = ("text_pair", "positive", "negative")
# Inputs that are `[B, N]`; the others are `[B]`.
_MATRICES = ("words", "choices")
# Kinds for SentencePiece alone: answers need its offsets, choices its normalisation.
_SENTENCEPIECE_KINDS = ("choices", "question")


@keras.saving.register_keras_serializable("albert_tf")
class AlbertPreprocessor(keras.layers.Layer):
  """Converts strings to `input_ids`, `input_mask` and `segment_ids`, int32 `[B, S]`.

  The ids are exactly the original's. The layer's configuration contains the vocabulary, and so does
  every saved file of the layer. Of each string the first 131,072 characters are read.

  Args:
    tokenizer: an `AlbertTokenizer` or another `Tokenizer`, with vocabulary and settings.
    kind: meaning of the strings, and further outputs.
      "text": a text or a pair of texts (an empty second text makes a single segment).
      "sentences": one to three texts; two or three become rows `[B, N, S]`.
      "masked_text": a text with "[MASK]" in it; `masked_lm_positions` `[B, M]` are the positions of
        the masks.
      "words": the words of a text, `[B, N]`, padded with "".
        `word_positions` `[B, N]` are the words' first tokens, 0 for none.
      "choices": a context and a question `[B]`, and choices `[B, C]`; outputs are `[B, C, S]`.
      "question": a question and a context, cut to one window; `p_mask` `[B, S]` is 1 where no
        answer can be.
    max_length: tokens of a row, [CLS] and [SEP] among them. Longer rows are cut at the end, of a
      pair the longer text first; no output says so.
    max_qa_length: "choices": number of last tokens of question and choice to keep.
    max_query_length: "question": number of tokens of a question to keep.
    pad_to_max_length: whether S is `max_length`, or the length of the batch's longest row.

  Call args:
    inputs: strings `[B]`; for several inputs a tuple, or a mapping by name (`INPUT_NAMES`).

  Raises:
    UserError: an input is no string, such as None, NaN or a number, or no batch of strings.

  Example:
    >>> preprocessor = AlbertPreprocessor.from_pretrained("run/", max_length=128)
    >>> dataset = dataset.map(lambda x, y: (preprocessor(x), y), num_parallel_calls=4)
    >>> model.fit(dataset.cache(), epochs=3)  # Tokenized in the first epoch alone.
    >>> batch = preprocessor(keras.Input([], dtype="string"))
  """

  output_shape = (None, None)  # Of `input_ids`, for `summary`.

  def __init__(
    self,
    tokenizer: Any,
    *,
    kind: str = "text",
    max_length: int = 512,
    max_qa_length: int = 128,
    max_query_length: int = 64,
    pad_to_max_length: bool = False,
    **kwargs: Any,
  ):
    super().__init__(**{"name": "preprocessor"} | kwargs, autocast=False)
    if kind in _SENTENCEPIECE_KINDS and not isinstance(tokenizer, AlbertTokenizer):
      raise UserError(
        f"{' and '.join(_SENTENCEPIECE_KINDS)} are tokenized with SentencePiece. Received: "
        f"kind={kind!r} with a {type(tokenizer).__name__}. Tokenize before, and give a model with "
        "preprocessor=None ids."
      )
    self.max_length = whole_number(
      max_length, "max_length", minimum=SHORTEST_ROW, maximum=MOST_POSITIONS
    )
    if kind == "question" and max_length <= max_query_length + 3:
      raise UserError(
        "max_length must be more than max_query_length + 3, else no text is left to answer from. "
        f"Received: {max_length}, with max_query_length={max_query_length}. Give a smaller "
        f"max_query_length, such as {max_length // 4}; or a larger max_length, where the model has "
        "so many positions."
      )
    self.tokenizer = tokenizer
    self.kind = kind
    self.max_qa_length = max_qa_length
    self.max_query_length = max_query_length
    self.pad_to_max_length = pad_to_max_length
    self._graph: Any = graph_tokenizer(tokenizer)
    self.build((None,))

  @classmethod
  def from_pretrained(cls, path: files.Path, **options: Any) -> "AlbertPreprocessor":
    """Loads the tokenizer of a run, a released model, a Hugging Face folder, or of a file."""
    return cls(load_tokenizer(path), **options)

  def named(self, inputs: Any, names: tuple[str, ...] = ()) -> dict[str, Any]:
    """The inputs by name, lists as arrays or tensors.

    Args:
      inputs: see the class.
      names: those of the inputs, in order; empty: those of this layer's kind.

    Raises:
      UserError: wrong number or names of inputs, or inputs that are not strings.
    """
    names = names or INPUT_NAMES[self.kind]
    if hasattr(inputs, "columns"):  # A data frame of pandas.
      inputs = {name: inputs[name] for name in inputs.columns}
      # Its only column is the text, whatever its name.
      if len(inputs) == 1:
        inputs = tuple(inputs.values())
    if not isinstance(inputs, Mapping):
      if not isinstance(inputs, tuple):
        inputs = (inputs,)
      # The last name is of none: an input with it is one too many.
      inputs = dict(zip(names + ("one more",), inputs, strict=False))

    needed = set(names).difference(_OPTIONAL)
    if not needed <= set(inputs) <= set(names):
      may_be_left_out = " (may be left out)" if names[-1] in _OPTIONAL else ""
      raise UserError(
        f"A preprocessor of the kind {self.kind!r} takes {' and '.join(names)}{may_be_left_out}. "
        f"Received: {', '.join(inputs) or 'none'}. "
        "Give a mapping with these names, or a tuple in this order."
      )
    return {name: _strings(inputs[name], name) for name in names if name in inputs}

  def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    # Before Keras, which takes no lists of strings.
    return super().__call__(self.named(inputs), *args, **kwargs)

  def call(self, inputs: Tensors) -> Tensors:
    return self.pack(inputs, pad_to_max_length=self.pad_to_max_length)

  def pack(self, inputs: Mapping[str, Any], *, pad_to_max_length: bool = False) -> Tensors:
    """The outputs of a call, for inputs by name."""
    columns = {
      name: limit_characters(tf.convert_to_tensor(value)) for name, value in inputs.items()
    }
    sizes: dict[str, Any] = {"max_length": self.max_length, "length": None}
    if pad_to_max_length:
      sizes["length"] = self.max_length
    if self.kind == "choices":
      return choice_batch(self._graph, **columns, max_qa_length=self.max_qa_length, **sizes)
    if self.kind == "question":
      return question_batch(self._graph, **columns, max_query_length=self.max_query_length, **sizes)
    if self.kind == "words":
      return word_batch(self._graph, **columns, **sizes)
    if self.kind == "sentences":
      # All texts of an example get one length, so they are packed as rows of one batch.
      batch = text_batch(self._graph, tf.concat(list(columns.values()), axis=0), **sizes)
      if len(columns) == 1:
        return batch
      by_column = {name: tf.split(tensor, len(columns)) for name, tensor in batch.items()}
      return {name: tf.stack(tensors, axis=1) for name, tensors in by_column.items()}  # [B, N, S]
    return text_batch(self._graph, **columns, allow_mask=self.kind == "masked_text", **sizes)

  def get_config(self) -> dict[str, Any]:
    config = super().get_config()
    config["tokenizer"] = _packed(self.tokenizer)
    for name in ("kind", "max_length", "max_qa_length", "max_query_length", "pad_to_max_length"):
      config[name] = getattr(self, name)
    return config

  @classmethod
  def from_config(cls, config: dict[str, Any]) -> "AlbertPreprocessor":
    return cls(**config | {"tokenizer": _unpacked(config["tokenizer"])})


def _packed(tokenizer: Tokenizer) -> dict[str, str]:
  """The tokenizer's files as text, by name: a Keras configuration is JSON."""
  packed = {}
  with tempfile.TemporaryDirectory() as folder:
    tokenizer.save_pretrained(folder)
    for path in sorted(pathlib.Path(folder).iterdir()):
      packed[path.name] = base64.b64encode(zlib.compress(path.read_bytes(), 9)).decode()
  return packed


def _unpacked(packed: Mapping[str, str]) -> Tokenizer:
  """The inverse of `_packed`."""
  with tempfile.TemporaryDirectory() as folder:
    for name, text in packed.items():
      # A file of someone else must not write outside the folder.
      path = pathlib.Path(folder, pathlib.Path(name).name)
      path.write_bytes(zlib.decompress(base64.b64decode(text)))
    return load_tokenizer(folder)


def _strings(value: Any, name: str) -> Any:
  """The strings as an array or tensor; lists of words of different lengths are padded with ""."""
  # One string would be taken for a list of characters.
  if isinstance(value, (str, bytes)):
    raise UserError(
      f"{name} is a batch of strings. Received: one string, {value!r:.60}. Put it in a list."
    )
  if isinstance(value, tf.RaggedTensor):
    value = _of_ragged(value, name)

  # Lists, iterators and columns of pandas become arrays. Tensors stay.
  if isinstance(value, Iterator):
    value = list(value)
  if isinstance(value, (list, tuple)) and name in _MATRICES:
    value = _matrix(value, name)
  elif not hasattr(value, "dtype") or hasattr(value, "to_numpy"):
    value = np.asarray(value, dtype=object)
  # A column of lists.
  if name in _MATRICES and isinstance(value, np.ndarray) and value.ndim == 1:
    value = _matrix(value.tolist(), name)
  if isinstance(value, np.ndarray) and value.dtype.kind in "OUT":
    value = value.astype(object)
    for text in value.ravel():
      _check_string(text, name)
  if not holds_text(value):
    raise UserError(
      f"A preprocessor takes strings. Received: {name} of "
      f"{getattr(value.dtype, 'name', value.dtype)}. Ids go into the model itself, as a mapping "
      "with input_ids; a functional model, or a Sequential, begins with keras.Input([], "
      'dtype="string").'
    )

  rank = 1
  axes = "[B]"
  if name in _MATRICES:
    rank = 2
    axes = "[B, N]"
  if tf.TensorShape(value.shape).rank not in (None, rank):
    raise UserError(
      f"{name} must be strings {axes}. Received: the shape {tuple(value.shape)}. Batch a data set "
      "first, and give pairs as a tuple of two."
    )
  return value


def _of_ragged(value: tf.RaggedTensor, name: str) -> Any:
  """Its rows as lists or, in a graph, padded with ""."""
  if tf.executing_eagerly():
    return value.to_list()
  if name != "choices":
    return value.to_tensor()
  lengths = value.row_lengths()
  message = f"All rows of {name} need the same length. Give each as many."
  with tf.control_dependencies([tf.debugging.assert_equal(lengths, lengths[:1], message)]):
    return value.to_tensor()


def _matrix(rows: Any, name: str) -> np.ndarray:
  """Lists of strings as `[B, N]`, padded with ""."""
  # Arrays, tensors and columns as lists. Not mappings and sets: theirs is another order.
  rows = [np.asarray(row, object).tolist() if hasattr(row, "dtype") else row for row in rows]
  for number, row in enumerate(rows):
    if not isinstance(row, (list, tuple)):
      raise UserError(
        f"Each row of {name} must be a list of strings. Received in row {number}: {row!r:.60}. "
        "Split the texts."
      )
  lengths = {len(row) for row in rows}
  # A choice without text would be scored; a word without text is left out.
  if name == "choices" and len(lengths) > 1:
    raise UserError(
      f"All rows of {name} need the same length. Received: {rows!r:.60}. Give each as many."
    )
  matrix = np.full([len(rows), max(lengths, default=0)], "", dtype=object)
  for number, row in enumerate(rows):
    for place, text in enumerate(row):
      matrix[number, place] = text
  return matrix


def _check_string(text: Any, name: str) -> None:
  """Raises `UserError` for a value that is no string, or one that UTF-8 cannot hold."""
  if not isinstance(text, (str, bytes)):
    raise UserError(
      f"A preprocessor takes strings. Received: {name} with {text!r:.60} among them. Leave rows "
      'without a text out, or write ""; several inputs are a tuple; ids go into the model itself, as '
      "a mapping with input_ids."
    )
  try:
    if isinstance(text, str):
      text.encode()
  except UnicodeEncodeError as error:
    raise UserError(
      f"A text must be valid Unicode. Received: {name} with {text!r:.60}, which has half of a "
      'surrogate pair. Read its file again, or write text.encode("utf-8", "replace").decode().'
    ) from error
