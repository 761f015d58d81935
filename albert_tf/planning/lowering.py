"""The exact training step of a replica, alone or of many, as XLA's HLO, without running it."""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf

from albert_tf import compat
from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.modeling import AlbertForPreTraining, named_variables
from albert_tf.optim.build import OptimizerConfig, build_optimizer
from albert_tf.planning.replicas import ReplicasToCompile
from albert_tf.training.precision import precision_policy
from albert_tf.training.step import StepConfig, TrainStep


class LoweredStep(NamedTuple):
  """One replica's training step, ready for an XLA compiler.

  Attributes:
    hlo: a serialized `HloModuleProto`; its arguments are the batch, the weights and the optimizer's state.
    batch_size: examples of one step on the replica, all micro-batches together.
    parameters: trainable numbers of the model.
  """

  hlo: bytes
  batch_size: int
  parameters: int


def empty_batch(
  *, batch_size: int, max_seq_length: int, max_predictions_per_seq: int
) -> dict[str, tf.Tensor]:
  """Zeros with the shapes and types of a batch, as `parse_pretraining_batch` makes it."""
  rows, predictions = [batch_size, max_seq_length], [batch_size, max_predictions_per_seq]
  return {
    **{name: tf.zeros(rows, tf.int32) for name in ("input_ids", "input_mask", "segment_ids")},
    **{name: tf.zeros(predictions, tf.int32) for name in ("masked_lm_positions", "masked_lm_ids")},
    "masked_lm_weights": tf.zeros(predictions, tf.float32),
    "sentence_order_labels": tf.zeros([batch_size], tf.int32),
  }


def lower_train_step(
  config: AlbertConfig,
  *,
  per_core_batch_size: int,
  max_seq_length: int,
  max_predictions_per_seq: int,
  gradient_accumulation_steps: int = 1,
  num_replicas: int = 1,
  mixed_precision: str = "bfloat16",
  all_reduce_dtype: str = "float32",
  remat: bool = False,
  optimizer_config: OptimizerConfig | None = None,
  encoder_options: Mapping[str, Any] | None = None,
) -> LoweredStep:
  """Lowers the step function that training runs: forward, losses, backward, clip, optimizer.

  With several replicas the program holds their sums as collectives: of the masked-LM weights, the gradients and the
  metrics. It is every replica's, and is compiled for all of them together.

  Args:
    config: the architecture.
    per_core_batch_size: examples a core computes at a time: one micro-batch.
    max_seq_length: S.
    max_predictions_per_seq: P.
    gradient_accumulation_steps: micro-batches of one step.
    num_replicas: cores that share the update; with 1 the program has no collectives.
    mixed_precision: "bfloat16" or "float32".
    all_reduce_dtype: type in which gradients are summed over replicas, "float32" or "bfloat16".
    remat: recompute activations in the backward pass.
    optimizer_config: default `OptimizerConfig()`, LAMB.
    encoder_options: more of `AlbertEncoder`'s arguments.

  Raises:
    UserError: a size below 1, or settings that the model or the step refuses.

  Example:
    >>> lowered = lower_train_step(
    ...   AlbertConfig.from_name("base"),
    ...   per_core_batch_size=8,
    ...   max_seq_length=512,
    ...   max_predictions_per_seq=77,
    ... )
  """
  sizes = {
    "per_core_batch_size": per_core_batch_size,
    "max_seq_length": max_seq_length,
    "max_predictions_per_seq": max_predictions_per_seq,
    "gradient_accumulation_steps": gradient_accumulation_steps,
    "num_replicas": num_replicas,
  }
  wrong = [f"{name}={value}" for name, value in sizes.items() if value < 1]
  if wrong:
    raise UserError(f"Sizes must be at least 1. Received: {', '.join(wrong)}. Give the sizes of the run.")
  if not compat.HOST_XLA:
    raise UserError(
      "Lowering a step needs a TensorFlow with XLA for the CPU. Received: one with TPU kernels, which has none. "
      "Use the default stack, or --estimate_only."
    )
  optimizer_config = optimizer_config or OptimizerConfig()
  batch_size = per_core_batch_size * gradient_accumulation_steps
  strategy = ReplicasToCompile(num_replicas)
  model = AlbertForPreTraining(
    config,
    encoder_options={**(encoder_options or {}), "remat": remat},
    read_positions_only=True,
    dtype=precision_policy(mixed_precision),
  )
  variables = named_variables(model)
  step = TrainStep(
    strategy=strategy,
    model=model,
    optimizer=build_optimizer(optimizer_config, variables),
    optimizer_config=optimizer_config,
    config=StepConfig(
      global_batch_size=batch_size * num_replicas,
      gradient_accumulation_steps=gradient_accumulation_steps,
      all_reduce_dtype=all_reduce_dtype if num_replicas > 1 else "float32",
    ),
  )
  function = tf.function(partial(strategy.trace, step.on_replica), autograph=False, jit_compile=True)
  batch = empty_batch(
    batch_size=batch_size, max_seq_length=max_seq_length, max_predictions_per_seq=max_predictions_per_seq
  )
  parameters = sum(variable.shape.num_elements() for variable in variables.values())
  return LoweredStep(hlo=_hlo(function, batch), batch_size=batch_size, parameters=parameters)


def _hlo(function: Any, batch: Mapping[str, tf.Tensor]) -> bytes:
  try:
    return function.experimental_get_compiler_ir(batch)(stage="hlo_serialized")
  except ValueError as error:
    if "XlaAllReduce" not in str(error):
      raise
    raise UserError(
      "Many cores together are lowered by a TensorFlow that has XLA's all-reduce for the CPU, such as 2.21. Received: "
      f"{tf.__version__}, which has not. Use the default stack."
    ) from error
