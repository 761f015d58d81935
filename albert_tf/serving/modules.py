"""What a SavedModel holds: a `tf.Module` that tracks plain variables, and its signatures.

The Keras model is used only while the functions are traced. Saving a Keras 3
model itself gives a SavedModel that no Session-style loader takes, TensorFlow
Serving's included; one that tracks the bare `tf.Variable`s loads everywhere, and
on either stack.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from albert_tf.configs import AlbertConfig
from albert_tf.modeling import named_variables
from albert_tf.tokenization import AlbertTokenizer

Tensors = dict[str, tf.Tensor]
Signatures = dict[str, Any]  # Of `tf.function`.


def _ids(name: str) -> tf.TensorSpec:
  return tf.TensorSpec([None, None], tf.int32, name=name)


TOKEN_INPUTS = (_ids("input_ids"), _ids("input_mask"), _ids("segment_ids"))


class ServingModule(tf.Module):
  """Tracks a model's variables and the files that must travel with it.

  Args:
    model: a built model of this package.
    config: its configuration.
    asset_files: local files that are copied into the SavedModel's `assets/`.
  """

  def __init__(self, model: Any, config: AlbertConfig, *, asset_files: Sequence[str] = ()):
    super().__init__(name="albert_serving")
    self._call: Callable[..., Tensors] = lambda inputs: model(
      inputs, training=False
    )  # Hides Keras from the tracking.
    self._limit = config.max_position_embeddings
    self.model_variables = list(named_variables(model).values())
    self.assets = [tf.saved_model.Asset(path) for path in asset_files]

  def signatures(self) -> Signatures:
    """The functions that clients call, by signature name."""
    raise NotImplementedError

  def run_model(self, inputs: Tensors) -> Tensors:
    """Calls the model, after a check that a dynamic length cannot have before."""
    length = tf.shape(inputs["input_ids"])[1]
    message = f"A sequence must not be longer than max_position_embeddings={self._limit}."
    with tf.control_dependencies([tf.debugging.assert_less_equal(length, self._limit, message=message)]):
      return self._call({name: tf.identity(tensor) for name, tensor in inputs.items()})


class EncoderModule(ServingModule):
  """Signature `tokens`: ids → `pooled_output` [B, H], `sequence_output` [B, S, H]."""

  def signatures(self) -> Signatures:
    tokens = tf.function(self.tokens, input_signature=TOKEN_INPUTS)
    return {"serving_default": tokens, "tokens": tokens}

  def tokens(self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> Tensors:
    outputs = self.run_model({"input_ids": input_ids, "input_mask": input_mask, "segment_ids": segment_ids})
    return {name: tf.cast(outputs[name], tf.float32) for name in ("pooled_output", "sequence_output")}


class FillMaskModule(ServingModule):
  """The masked-LM head.

  Signatures:
    tokens: ids and `positions` [B, P] → `top_ids` int32 and `top_probabilities` float32, [B, P, K],
      best first. Probabilities are those of the whole vocabulary; special pieces are never offered.
    mlm: the same inputs → `mlm_logits` float32 [B, P, V].

  Args:
    tokenizer: the model's tokenizer.
    top_k: K.
    model, config, asset_files: see `ServingModule`.
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
    super().__init__(model, config, asset_files=asset_files)
    self._top_k = top_k
    self._special_ids = special_ids(tokenizer)
    self._vocab_size = config.vocab_size

  def signatures(self) -> Signatures:
    inputs = (*TOKEN_INPUTS, _ids("positions"))
    tokens = tf.function(self.tokens, input_signature=inputs)
    return {"serving_default": tokens, "tokens": tokens, "mlm": tf.function(self.mlm, input_signature=inputs)}

  def mlm(
    self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor, positions: tf.Tensor
  ) -> Tensors:
    inputs = {"input_ids": input_ids, "input_mask": input_mask, "segment_ids": segment_ids}
    return {"mlm_logits": self.run_model({**inputs, "masked_lm_positions": positions})["mlm_logits"]}

  def tokens(
    self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor, positions: tf.Tensor
  ) -> Tensors:
    logits = self.mlm(input_ids, input_mask, segment_ids, positions)["mlm_logits"]
    ordinary = tf.reduce_sum(tf.one_hot(self._special_ids, self._vocab_size), axis=0) == 0  # [V]
    probabilities = tf.where(ordinary, tf.nn.softmax(logits), -1.0)  # [B, P, V]
    top = tf.math.top_k(probabilities, k=self._top_k)
    return {"top_ids": top.indices, "top_probabilities": top.values}


def special_ids(tokenizer: AlbertTokenizer) -> list[int]:
  """Ids that no answer may be: padding, unknown, [CLS], [SEP], [MASK]."""
  return sorted({tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id})
