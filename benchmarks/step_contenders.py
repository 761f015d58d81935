"""The contenders of `train_step.py`: how each package makes its step, and the step that only multiplies."""

from collections.abc import Callable
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
FLOPS_MARK = "flops: "  # Printed before the operations of a step's matrix products.
_LEARNING_RATE = 1e-5
_PRODUCTS = 16  # Products in a step of the floor.
Step = Callable[[], Any]


class Batch:
  """Random tokens, masks and labels, the same for every package."""

  def __init__(self, config: AlbertConfig, shape: tuple[int, int], num_predictions: int):
    rng = np.random.default_rng(0)
    self.ids = rng.integers(5, config.vocab_size, size=shape).astype(np.int32)
    self.mask = np.ones(shape, np.int32)
    self.segments = np.tile((np.arange(shape[1]) >= shape[1] // 2).astype(np.int32), (shape[0], 1))
    choices = [rng.choice(shape[1], num_predictions, replace=False) for _ in range(shape[0])]
    self.positions = np.sort(np.stack(choices), axis=1).astype(np.int32)
    self.targets = np.take_along_axis(self.ids, self.positions, axis=1)
    self.labels = rng.integers(0, 2, size=shape[0]).astype(np.int32)


class Work(NamedTuple):
  """Sizes of a step; `dtype` is "float32" or "bfloat16"."""

  config: AlbertConfig
  batch: Batch
  dtype: str


def _tensorflow_step(
  model: Any, loss_of: Callable[[Any], tf.Tensor], inputs: Any, *, jit: bool
) -> Step:
  """Forward, backward and AdamW in one graph."""
  optimizer = keras.optimizers.AdamW(_LEARNING_RATE)
  model(inputs)
  weights = model.trainable_variables
  optimizer.build(weights)

  @tf.function(jit_compile=jit)
  def step(inputs: Any) -> tf.Tensor:
    with tf.GradientTape() as tape:
      loss = loss_of(model(inputs, training=True))
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
    return loss

  tensors = tf.nest.map_structure(tf.constant, inputs)
  print(FLOPS_MARK, product_flops(step.get_concrete_function(tensors).graph), flush=True)
  return lambda: step(tensors).numpy()


def product_flops(graph: Any) -> float:
  """Operations of a graph's matrix products; a multiply and an add are two. Every shape in it must be known."""
  flops = 0.0
  for op in graph.get_operations():
    if op.type in ("MatMul", "BatchMatMulV2"):
      transposed = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
      flops += (
        2.0 * op.outputs[0].shape.num_elements() * op.inputs[0].shape[-2 if transposed else -1]
      )
    elif op.type == "Einsum":
      sides, result = op.get_attr("equation").decode().split("->")
      sizes: dict[str, int] = {}
      for letters, tensor in zip(sides.split(","), op.inputs, strict=True):
        sizes |= dict(zip(letters, tensor.shape, strict=True))
      summed = (sizes[letter] for letter in sizes.keys() - set(result))
      flops += 2.0 * op.outputs[0].shape.num_elements() * math.prod(summed)
  return flops


def floor_step(work: Work) -> Step:
  """The products of the feed-forward sublayers, most of a step's, one after the other and nothing else."""
  rows, width, inner = work.batch.ids.size, work.config.hidden_size, work.config.intermediate_size
  shapes = [width, inner], [inner, width]
  up, down = (tf.cast(tf.random.normal(shape) * shape[0] ** -0.5, work.dtype) for shape in shapes)
  x = tf.cast(tf.random.normal([rows, width]), work.dtype)

  @tf.function
  def step() -> tf.Tensor:
    y = x
    for _ in range(_PRODUCTS // 2):
      y = tf.matmul(tf.matmul(y, up), down)
    return tf.cast(y[0, 0], tf.float32)

  print(FLOPS_MARK, product_flops(step.get_concrete_function().graph), flush=True)
  return lambda: step().numpy()


def _cross_entropy(labels: np.ndarray) -> Callable[[tf.Tensor], tf.Tensor]:
  return lambda logits: tf.reduce_mean(
    tf.nn.sparse_softmax_cross_entropy_with_logits(
      labels=labels, logits=tf.cast(logits, tf.float32)
    )
  )


def albert_tf_step(work: Work, *, jit: bool) -> Step:
  config, batch = work.config, work.batch
  inputs = {"input_ids": batch.ids, "input_mask": batch.mask, "segment_ids": batch.segments}
  masked_lm, sentence_order = _cross_entropy(batch.targets), _cross_entropy(batch.labels)
  return _tensorflow_step(
    AlbertForPreTraining(config, read_positions_only=True),
    lambda outputs: masked_lm(outputs["mlm_logits"]) + sentence_order(outputs["sop_logits"]),
    {**inputs, "masked_lm_positions": batch.positions},
    jit=jit,
  )


def keras_hub_step(work: Work, *, jit: bool) -> Step:
  import keras_hub

  config, batch = work.config, work.batch
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
  inputs = {"token_ids": batch.ids, "segment_ids": batch.segments, "padding_mask": batch.mask}
  model = keras_hub.models.AlbertMaskedLM(backbone)
  inputs["mask_positions"] = batch.positions
  return _tensorflow_step(model, _cross_entropy(batch.targets), inputs, jit=jit)


def huggingface_torch_step(work: Work) -> Step:
  import torch
  import transformers

  config, batch = work.config, work.batch

  theirs = transformers.AlbertConfig.from_dict(config.to_huggingface_dict())
  inputs = {"input_ids": batch.ids, "attention_mask": batch.mask, "token_type_ids": batch.segments}
  model: Any = transformers.AlbertForPreTraining(theirs)
  tensors = {key: torch.tensor(value, dtype=torch.int64) for key, value in inputs.items()}
  labels, targets = torch.tensor(batch.labels).long(), torch.tensor(batch.targets).long()
  positions = torch.tensor(batch.positions).long()[:, :, None].expand(-1, -1, config.hidden_size)
  cross_entropy = torch.nn.functional.cross_entropy

  def loss_of() -> Any:
    encoded = model.albert(**tensors)  # The whole model would compute logits at every position.
    logits = model.predictions(encoded.last_hidden_state.gather(1, positions)).float()
    order = model.sop_classifier(encoded.pooler_output).float()
    return cross_entropy(logits.flatten(0, 1), targets.flatten()) + cross_entropy(order, labels)

  optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE)
  model.train()

  def step() -> float:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=work.dtype == "bfloat16"):
      loss = loss_of()
    loss.backward()
    optimizer.step()
    return float(loss.detach())

  return step


def contenders(work: Work) -> dict[str, Callable[[], Step] | str]:
  """Name → how to build its step in a precision, or why it is left out."""

  def installed(*packages: str) -> bool:
    return all(importlib.util.find_spec(package) for package in packages)

  found: dict[str, Callable[[], Step] | str] = {
    FLOOR: lambda: floor_step(work),
    "albert_tf": lambda: albert_tf_step(work, jit=False),
    "albert_tf_xla": lambda: albert_tf_step(work, jit=True),
    "huggingface_torch": "torch or transformers is not installed",
    "keras_hub": "keras_hub is not installed, or the stack has no Keras 3",
  }
  if installed("torch", "transformers"):
    found["huggingface_torch"] = lambda: huggingface_torch_step(work)
  if installed("keras_hub") and work.dtype == "bfloat16":
    found["keras_hub"] = "its masked-LM head adds float32 to bfloat16 and raises"
  elif installed("keras_hub") and KERAS_3:
    found["keras_hub"] = lambda: keras_hub_step(work, jit=False)
    found["keras_hub_xla"] = lambda: keras_hub_step(work, jit=True)
  return found
