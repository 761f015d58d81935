"""The exact training step of a replica, alone or of many, as XLA's HLO, without running it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops  # No public name: TPUs know them as CrossReplicaSum.

from albert_tf import compat
from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.modeling import AlbertForPreTraining, named_variables
from albert_tf.optim.config import OptimizerConfig
from albert_tf.optim.optimizer import build_optimizer
from albert_tf.planning.estimate import StepShape
from albert_tf.training.distribution import precision_policy
from albert_tf.training.settings import StepConfig
from albert_tf.training.step import TrainStep


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


def lower_train_step(config: AlbertConfig, shape: StepShape, *, num_replicas: int = 1) -> bytes:
  """Lowers the step function that training runs: forward, losses, backward, clip, optimizer.

  With several replicas the program holds their sums as collectives: of the masked-LM weights, the gradients and the
  metrics. It is every replica's, and is compiled for all of them together.

  Args:
    config: the architecture.
    shape: the step of one replica.
    num_replicas: cores that share the update; with 1 the program has no collectives.

  Returns:
    A serialized `HloModuleProto`; its arguments are the batch, the weights and the optimizer's state.

  Raises:
    UserError: this TensorFlow cannot lower it, or the model or the step refuses the settings.

  Example:
    >>> hlo = lower_train_step(AlbertConfig.from_name("base"), StepShape(per_core_batch_size=8))
  """
  if not compat.HOST_XLA:
    raise UserError(
      "Lowering a step needs a TensorFlow with XLA for the CPU. Received: one with TPU kernels, which has none. "
      "Use the default stack, or --estimate_only."
    )
  # The column of ones is for TPUs, and left out where a GPU is seen.
  tf.config.set_visible_devices([], "GPU")
  strategy = _ReplicasToCompile(num_replicas)
  model = AlbertForPreTraining(
    config,
    encoder_options={
      "accelerated": shape.mixed_precision != "float32",
      "remat": shape.remat,
      "layer_loop": shape.layer_loop,
    },
    read_positions_only=True,
    dtype=precision_policy(shape.mixed_precision),
  )
  step = TrainStep(
    strategy=strategy,
    model=model,
    optimizer=build_optimizer(OptimizerConfig(name=shape.optimizer), named_variables(model)),
    config=StepConfig(
      global_batch_size=shape.examples * num_replicas,
      gradient_accumulation_steps=shape.gradient_accumulation_steps,
    ),
  )
  function = tf.function(partial(strategy.trace, step.on_replica), autograph=False, jit_compile=True)
  try:
    return bytes(function.experimental_get_compiler_ir(_empty_batch(shape))(stage="hlo_serialized"))
  except ValueError as error:
    if "XlaAllReduce" not in str(error):
      raise
    raise UserError(
      "Many cores together are lowered by a TensorFlow that has XLA's all-reduce for the CPU, such as 2.21. Received: "
      f"{tf.__version__}, which has not. Use the default stack."
    ) from error


def _empty_batch(shape: StepShape) -> dict[str, tf.Tensor]:
  """Zeros with the shapes and types of a replica's batch, as `parse_pretraining_batch` makes it."""
  rows = [shape.examples, shape.max_seq_length]
  predictions = [shape.examples, shape.max_predictions_per_seq]
  return {
    **{name: tf.zeros(rows, tf.int32) for name in ("input_ids", "input_mask", "segment_ids")},
    **{name: tf.zeros(predictions, tf.int32) for name in ("masked_lm_positions", "masked_lm_ids")},
    "masked_lm_weights": tf.zeros(predictions, tf.float32),
    "sentence_order_labels": tf.zeros([shape.examples], tf.int32),
  }
