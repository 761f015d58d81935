"""What a SavedModel holds: a `tf.Module` that tracks plain variables, and its signatures.

The Keras model is used only while the functions are traced. Saving a Keras 3
model itself gives a SavedModel that no Session-style loader takes, TensorFlow
Serving's included; one that tracks the bare `tf.Variable`s loads everywhere, and
on either stack.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.configs import AlbertConfig
from albert_tf.modeling import named_variables
from albert_tf.tokenization import AlbertTokenizer
from albert_tf.tokenization.graph import GraphTokenizer
from albert_tf.tokenization.word_starts import SPIECE_UNDERLINE as SPACE_MARK

Tensors = dict[str, tf.Tensor]
Signatures = dict[str, Any]  # Of `tf.function`.


def _ids(name: str) -> tf.TensorSpec:
  return tf.TensorSpec([None, None], tf.int32, name=name)


TEXT_INPUTS = (tf.TensorSpec([None], tf.string, name="text"),)
TOKEN_INPUTS = (_ids("input_ids"), _ids("input_mask"), _ids("segment_ids"))


def _graph(function: Callable[..., Tensors], inputs: Sequence[tf.TensorSpec]) -> Any:
  return tf.function(function, input_signature=inputs, autograph=False)  # No Python control flow to convert.


class ServingModule(tf.Module):
  """Tracks a model's variables, its tokenizer, and the files that must travel with it.

  Args:
    model: a built model of this package.
    config: its configuration.
    tokenizer: its tokenizer.
    asset_files: local files that are copied into the SavedModel's `assets/`.
  """

  def __init__(
    self, model: Any, config: AlbertConfig, *, tokenizer: AlbertTokenizer, asset_files: Sequence[str] = ()
  ):
    super().__init__(name="albert_serving")
    # A lambda hides the Keras model from what is tracked.
    self._call: Callable[..., Tensors] = lambda inputs: model(inputs, training=False)
    self._limit = config.max_position_embeddings
    self.model_variables = list(named_variables(model).values())
    self.tokenizer = GraphTokenizer(tokenizer)
    self.assets = [tf.saved_model.Asset(path) for path in asset_files]

  def signatures(self) -> Signatures:
    """The functions that clients call, by signature name."""
    raise NotImplementedError

  def tokenize(self, text: tf.Tensor, *, allow_mask: bool = False) -> Tensors:
    """A batch of at least one position, which even an empty one needs."""
    batch = self.tokenizer(text, max_length=self._limit, allow_mask=allow_mask)
    missing = tf.maximum(1 - tf.shape(batch["input_ids"])[1], 0)
    return {name: tf.pad(tensor, [[0, 0], [0, missing]]) for name, tensor in batch.items()}

  def run_model(self, inputs: Tensors) -> Tensors:
    """Calls the model, after a check that a dynamic length cannot have before."""
    length = tf.shape(inputs["input_ids"])[1]
    message = f"A sequence must not be longer than max_position_embeddings={self._limit}."
    with tf.control_dependencies([tf.debugging.assert_less_equal(length, self._limit, message=message)]):
      return self._call({name: tf.identity(tensor) for name, tensor in inputs.items()})


class EncoderModule(ServingModule):
  """Vectors of a text.

  Signatures:
    serving_default: `text` [B] strings → the outputs of `tokens`, and `input_ids`, `input_mask` [B, S].
      A longer text is cut at the model's `max_position_embeddings`.
    tokens: `input_ids`, `input_mask`, `segment_ids` → `pooled_output` [B, H], `sequence_output` [B, S, H].
  """

  def signatures(self) -> Signatures:
    return {
      "serving_default": _graph(self.text, TEXT_INPUTS),
      "tokens": _graph(self.tokens, TOKEN_INPUTS),
    }

  def text(self, text: tf.Tensor) -> Tensors:
    batch = self.tokenize(text)
    shown = {name: batch[name] for name in ("input_ids", "input_mask")}
    return {**self.tokens(**batch), **shown}

  def tokens(self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> Tensors:
    outputs = self.run_model({"input_ids": input_ids, "input_mask": input_mask, "segment_ids": segment_ids})
    return {name: tf.cast(outputs[name], tf.float32) for name in ("pooled_output", "sequence_output")}


class FillMaskModule(ServingModule):
  """The most likely pieces where a text has "[MASK]".

  Probabilities are those of the whole vocabulary; special pieces are never offered.

  Signatures:
    serving_default: `text` [B] strings → `words` strings and `probabilities` float32 [B, M, K], best
      first, for M masks at most in a text; `num_masks` int32 [B], behind which a row is padding.
      A word is the piece without its "▁". A longer text is cut at `max_position_embeddings`.
    tokens: ids and `positions` int32 [B, P] → `top_ids` int32 and `top_probabilities` float32, [B, P, K].
    mlm: the same inputs → `mlm_logits` float32 [B, P, V].

  Args:
    top_k: K.
    model, config, tokenizer, asset_files: see `ServingModule`.
  """

  def __init__(
    self,
    model: Any,
    config: AlbertConfig,
    *,
    tokenizer: AlbertTokenizer,
    top_k: int,
    asset_files: Sequence[str] = (),
  ):
    super().__init__(model, config, tokenizer=tokenizer, asset_files=asset_files)
    self._top_k = top_k
    self._mask_id = tokenizer.mask_id
    self._ordinary = np.ones(config.vocab_size, bool)
    self._ordinary[special_ids(tokenizer)] = False
    self._words = [piece.removeprefix(SPACE_MARK) or SPACE_MARK for piece in tokenizer.pieces]

  def signatures(self) -> Signatures:
    inputs = (*TOKEN_INPUTS, _ids("positions"))
    return {
      "serving_default": _graph(self.text, TEXT_INPUTS),
      "tokens": _graph(self.tokens, inputs),
      "mlm": _graph(self.mlm, inputs),
    }

  def text(self, text: tf.Tensor) -> Tensors:
    batch = self.tokenize(text, allow_mask=True)
    is_mask = batch["input_ids"] == self._mask_id  # [B, S]
    places = tf.RaggedTensor.from_value_rowids(
      tf.where(is_mask)[:, 1], tf.where(is_mask)[:, 0], nrows=tf.shape(text, tf.int64)[0]
    )
    top = self.tokens(**batch, positions=tf.cast(places.to_tensor(), tf.int32))
    num_masks = tf.reduce_sum(tf.cast(is_mask, tf.int32), axis=1)
    real = tf.sequence_mask(num_masks, tf.shape(top["top_ids"])[1])[:, :, tf.newaxis]  # [B, M, 1]
    return {
      "words": tf.where(real, tf.gather(tf.constant(self._words), top["top_ids"]), ""),
      "probabilities": tf.where(real, top["top_probabilities"], 0.0),
      "num_masks": num_masks,
    }

  def mlm(
    self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor, positions: tf.Tensor
  ) -> Tensors:
    inputs = {"input_ids": input_ids, "input_mask": input_mask, "segment_ids": segment_ids}
    return {"mlm_logits": self.run_model({**inputs, "masked_lm_positions": positions})["mlm_logits"]}

  def tokens(
    self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor, positions: tf.Tensor
  ) -> Tensors:
    logits = self.mlm(input_ids, input_mask, segment_ids, positions)["mlm_logits"]
    probabilities = tf.where(self._ordinary, tf.nn.softmax(logits), -1.0)  # [B, P, V]
    top = tf.math.top_k(probabilities, k=self._top_k)
    return {"top_ids": top.indices, "top_probabilities": top.values}


def special_ids(tokenizer: AlbertTokenizer) -> list[int]:
  """Ids that no answer may be: padding, unknown, [CLS], [SEP], [MASK]."""
  return sorted({tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id})
