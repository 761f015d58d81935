"""The exact training step of a replica, alone or of many, as XLA's HLO, without running it."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops  # No public name: TPUs know them as CrossReplicaSum.

from albert_tf import compat
from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.modeling import AlbertForPreTraining, named_variables
from albert_tf.optim.config import OptimizerConfig
from albert_tf.optim.optimizer import build_optimizer
from albert_tf.training.precision import precision_policy
from albert_tf.training.settings import StepConfig
from albert_tf.training.step import TrainStep


class LoweredStep(NamedTuple):
  """One replica's training step, ready for an XLA compiler."""

  hlo: bytes  # A serialized `HloModuleProto`; its arguments are the batch, the weights and the optimizer's state.
  batch_size: int  # Examples of one step on the replica, all micro-batches together.
  parameters: int  # Trainable numbers of the model.


class _Replica(tf.distribute.ReplicaContext):
  """What a step sees of its replica: any one of all, since they run one program."""

  def __init__(self, num_replicas: int):
    super().__init__(tf.distribute.get_strategy(), gen_xla_ops.xla_replica_id())
    self._num_replicas = num_replicas

  @property
  def num_replicas_in_sync(self) -> int:
    return self._num_replicas

  def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
    """One all-reduce a tensor, as TPUStrategy makes it; which are sent together is the compiler's choice."""
    assert reduce_op == tf.distribute.ReduceOp.SUM
    group = tf.constant([list(range(self._num_replicas))])
    return tf.nest.map_structure(
      lambda x: gen_xla_ops.xla_all_reduce(x, group, reduce_op="Add", mode="CrossReplica"), value
    )


class _ReplicasToCompile(tf.distribute.OneDeviceStrategy):
  """Many replicas without their devices: sums over them are XLA's own collectives, in a program that only compiles."""

  def __init__(self, num_replicas: int):
    super().__init__("/cpu:0")
    self._num_replicas = num_replicas

  @property
  def num_replicas_in_sync(self) -> int:
    return self._num_replicas

  def trace(self, function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls `function` as one replica; within a `tf.function` only."""
    if self._num_replicas == 1:
      return function(*arguments)
    with _Replica(self._num_replicas):
      return function(*arguments)


def _empty_batch(
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
    max_seq_length, max_predictions_per_seq: S and P.
    gradient_accumulation_steps: micro-batches of one step.
    num_replicas: cores that share the update; with 1 the program has no collectives.
    mixed_precision, all_reduce_dtype: "bfloat16" or "float32", of activations and of the sums of gradients.
    remat, encoder_options: see `AlbertEncoder`.
    optimizer_config: default LAMB.

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
  tf.config.set_visible_devices(
    [], "GPU"
  )  # The column of ones is for TPUs, and left out where a GPU is seen.
  for_tpus = {"accelerated": mixed_precision != "float32", "remat": remat}
  batch_size = per_core_batch_size * gradient_accumulation_steps
  strategy = _ReplicasToCompile(num_replicas)
  model = AlbertForPreTraining(
    config,
    encoder_options={**for_tpus, **(encoder_options or {})},
    read_positions_only=True,
    dtype=precision_policy(mixed_precision),
  )
  variables = named_variables(model)
  step = TrainStep(
    strategy=strategy,
    model=model,
    optimizer=build_optimizer(optimizer_config or OptimizerConfig(), variables),
    config=StepConfig(
      global_batch_size=batch_size * num_replicas,
      gradient_accumulation_steps=gradient_accumulation_steps,
      all_reduce_dtype=all_reduce_dtype if num_replicas > 1 else "float32",
    ),
  )
  function = tf.function(partial(strategy.trace, step.on_replica), autograph=False, jit_compile=True)
  batch = _empty_batch(
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
