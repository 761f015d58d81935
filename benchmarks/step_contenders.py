"""The contenders of `train_step.py`: how each package makes its step, and the step that only multiplies."""

from collections.abc import Callable
import functools
import importlib.util
import math
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from albert_tf.compat import KERAS_3
from albert_tf.configs import AlbertConfig
from albert_tf.modeling import AlbertForPreTraining

FLOOR = "floor"  # The contender that only multiplies.
_LEARNING_RATE = 1e-5
_PRODUCTS = 16  # In a step of the floor.


class Batch(NamedTuple):
  """Random tokens, masks and labels, the same for every package."""

  ids: np.ndarray  # [B, S]
  mask: np.ndarray  # [B, S]
  segments: np.ndarray  # [B, S]
  positions: np.ndarray  # [B, P]: masked ones, ascending.
  targets: np.ndarray  # [B, P]: their tokens.
  labels: np.ndarray  # [B]: of the sentence order.


def random_batch(config: AlbertConfig, *, size: int, length: int, num_predictions: int) -> Batch:
  """A batch of B = size, S = length, P = num_predictions."""
  rng = np.random.default_rng(0)
  # The first five ids are special tokens.
  ids = rng.integers(5, config.vocab_size, size=(size, length)).astype(np.int32)
  second_half = np.arange(length) >= length // 2
  # No position twice.
  drawn = [rng.choice(length, num_predictions, replace=False) for _ in range(size)]
  positions = np.sort(np.stack(drawn), axis=1).astype(np.int32)
  return Batch(
    ids=ids,
    mask=np.ones((size, length), np.int32),
    segments=np.tile(second_half.astype(np.int32), (size, 1)),
    positions=positions,
    targets=np.take_along_axis(ids, positions, axis=1),
    labels=rng.integers(0, 2, size=size).astype(np.int32),
  )


class Work(NamedTuple):
  """What a step computes."""

  config: AlbertConfig
  batch: Batch
  dtype: str  # "float32" or "bfloat16".


class Contender(NamedTuple):
  """A step that can be timed."""

  step: Callable[[], Any]  # Makes one update; returns the loss.
  flops: float = 0.0  # Of its matrix products; 0 where they cannot be counted.


# ---------------------------------------------------------------------- TensorFlow


def floor_contender(work: Work) -> Contender:
  """The products of the feed-forward sublayers, most of a step's, one after the other and nothing else."""
  hidden = work.config.hidden_size
  inner = work.config.intermediate_size
  rows = _random_matrix(work.batch.ids.size, hidden, work.dtype)
  up = _random_matrix(hidden, inner, work.dtype)
  down = _random_matrix(inner, hidden, work.dtype)

  @tf.function
  def step() -> tf.Tensor:
    x = rows
    for _ in range(_PRODUCTS // 2):
      x = tf.matmul(tf.matmul(x, up), down)
    # One number, so that nothing is left out and little is read back.
    return tf.cast(tf.reshape(x, [-1])[0], tf.float32)

  flops = product_flops(step.get_concrete_function().graph)
  return Contender(lambda: step().numpy(), flops)


def _random_matrix(height: int, width: int, dtype: str) -> tf.Tensor:
  """Values that keep the size of what is multiplied with them."""
  return tf.cast(tf.random.normal([height, width]) * height**-0.5, dtype)


def albert_tf_contender(work: Work, *, jit: bool) -> Contender:
  batch = work.batch
  inputs = {
    "input_ids": batch.ids,
    "input_mask": batch.mask,
    "segment_ids": batch.segments,
    "masked_lm_positions": batch.positions,
  }

  # Means over the batch. They are sums over global counts in a run, which costs the same.
  def loss(outputs: Any) -> tf.Tensor:
    masked_lm = _cross_entropy(outputs["mlm_logits"], batch.targets)
    sentence_order = _cross_entropy(outputs["sop_logits"], batch.labels)
    return masked_lm + sentence_order

  # As run_pretrain.py makes it: the last block is computed where the heads read.
  model = AlbertForPreTraining(work.config, read_positions_only=True)
  return _tensorflow_contender(model, loss, inputs, jit=jit)


def keras_hub_contender(work: Work, *, jit: bool) -> Contender:
  import keras_hub

  config = work.config
  batch = work.batch
  backbone = keras_hub.models.AlbertBackbone(
    vocabulary_size=config.vocab_size,
    num_layers=config.num_hidden_layers,
    num_heads=config.num_attention_heads,
    embedding_dim=config.embedding_size,
    hidden_dim=config.hidden_size,
    intermediate_dim=config.intermediate_size,
    num_groups=config.num_hidden_groups,
    num_inner_repetitions=config.inner_group_num,
    dropout=config.hidden_dropout_prob,
    max_sequence_length=config.max_position_embeddings,
    num_segments=config.type_vocab_size,
  )
  inputs = {
    "token_ids": batch.ids,
    "segment_ids": batch.segments,
    "padding_mask": batch.mask,
    "mask_positions": batch.positions,
  }

  # Its model has no head for the order of sentences.
  def loss(logits: Any) -> tf.Tensor:
    return _cross_entropy(logits, batch.targets)

  return _tensorflow_contender(keras_hub.models.AlbertMaskedLM(backbone), loss, inputs, jit=jit)


def _tensorflow_contender(
  model: Any, loss_of: Callable[[Any], tf.Tensor], inputs: Any, *, jit: bool
) -> Contender:
  """Forward, backward and AdamW in one graph."""
  optimizer = keras.optimizers.AdamW(_LEARNING_RATE)
  model(inputs)  # Makes the weights.
  weights = model.trainable_variables
  optimizer.build(weights)

  @tf.function(jit_compile=jit)
  def step(inputs: Any) -> tf.Tensor:
    with tf.GradientTape() as tape:
      loss = loss_of(model(inputs, training=True))
    gradients = tape.gradient(loss, weights)
    optimizer.apply_gradients(zip(gradients, weights, strict=True))
    return loss

  # On the device already: a copy is no part of the step.
  tensors = tf.nest.map_structure(tf.constant, inputs)
  flops = product_flops(step.get_concrete_function(tensors).graph)
  # `numpy` waits for the end of the step.
  return Contender(lambda: step(tensors).numpy(), flops)


def _cross_entropy(logits: tf.Tensor, labels: np.ndarray) -> tf.Tensor:
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
    labels=labels, logits=tf.cast(logits, tf.float32)
  )
  return tf.reduce_mean(losses)


def product_flops(graph: Any) -> float:
  """Operations of a graph's matrix products; a multiply and an add are two. Every shape in it must be known."""
  flops = 0.0
  for operation in graph.get_operations():
    if operation.type in ("MatMul", "BatchMatMulV2", "Einsum"):
      (result,) = operation.outputs
      # Each number of the result is a sum of so many products.
      flops += 2.0 * result.shape.num_elements() * _summed_length(operation)
  return flops


def _summed_length(operation: Any) -> int:
  """How many products are summed for one number of the result."""
  if operation.type == "Einsum":
    # "bsh,hd->bsd": h is summed.
    operands, result = operation.get_attr("equation").decode().split("->")
    lengths: dict[str, int] = {}
    for letters, tensor in zip(operands.split(","), operation.inputs, strict=True):
      lengths |= dict(zip(letters, tensor.shape, strict=True))
    return math.prod(lengths[letter] for letter in lengths.keys() - set(result))
  # Of the left operand: its width, or its height where it is transposed.
  attribute = {"MatMul": "transpose_a", "BatchMatMulV2": "adj_x"}[operation.type]
  height, width = operation.inputs[0].shape[-2:]
  return int(height if operation.get_attr(attribute) else width)


# ---------------------------------------------------------------------- PyTorch


def torch_contender(work: Work) -> Contender:
  import torch
  import transformers

  config = work.config
  batch = work.batch

  def int64(values: np.ndarray) -> Any:
    return torch.tensor(values, dtype=torch.int64)

  inputs = {
    "input_ids": int64(batch.ids),
    "attention_mask": int64(batch.mask),
    "token_type_ids": int64(batch.segments),
  }
  targets = int64(batch.targets).flatten()
  labels = int64(batch.labels)
  # The index of a row for each of its H numbers, as `gather` wants it.
  positions = int64(batch.positions)[:, :, None].expand(-1, -1, config.hidden_size)
  model: Any = transformers.AlbertForPreTraining(
    transformers.AlbertConfig.from_dict(config.to_huggingface_dict())
  )
  optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE)
  cross_entropy = torch.nn.functional.cross_entropy
  model.train()

  def forward() -> Any:
    # The whole model would compute logits at every position.
    encoded = model.albert(**inputs)
    rows = encoded.last_hidden_state.gather(1, positions)
    masked_lm = model.predictions(rows).float().flatten(0, 1)
    sentence_order = model.sop_classifier(encoded.pooler_output).float()
    return cross_entropy(masked_lm, targets) + cross_entropy(sentence_order, labels)

  def step() -> float:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=work.dtype == "bfloat16"):
      loss = forward()
    loss.backward()
    optimizer.step()
    return float(loss.detach())

  return Contender(step)


# ---------------------------------------------------------------------- all of them


class Offers(NamedTuple):
  """The contenders of a precision."""

  makers: dict[str, Callable[[], Contender]]
  left_out: dict[str, str]  # Name → the reason.


def offers(work: Work) -> Offers:
  makers: dict[str, Callable[[], Contender]] = {
    FLOOR: functools.partial(floor_contender, work),
    "albert_tf": functools.partial(albert_tf_contender, work, jit=False),
    "albert_tf_xla": functools.partial(albert_tf_contender, work, jit=True),
  }
  left_out = {}

  if _are_installed("torch", "transformers"):
    makers["huggingface_torch"] = functools.partial(torch_contender, work)
  else:
    left_out["huggingface_torch"] = "torch or transformers is not installed"

  if not _are_installed("keras_hub") or not KERAS_3:
    left_out["keras_hub"] = "keras_hub is not installed, or the stack has no Keras 3"
  elif work.dtype == "bfloat16":
    left_out["keras_hub"] = "its masked-LM head adds float32 to bfloat16 and raises"
  else:
    makers["keras_hub"] = functools.partial(keras_hub_contender, work, jit=False)
    makers["keras_hub_xla"] = functools.partial(keras_hub_contender, work, jit=True)
  return Offers(makers, left_out)


def _are_installed(*packages: str) -> bool:
  return all(importlib.util.find_spec(package) for package in packages)
