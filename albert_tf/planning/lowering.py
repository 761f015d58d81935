"""The exact training step of a replica as XLA's HLO, without running it."""

import tensorflow as tf

from albert_tf import compat
from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.modeling import AlbertForPreTraining, named_variables
from albert_tf.optim.config import OptimizerConfig
from albert_tf.optim.optimizer import build_optimizer
from albert_tf.planning.estimate import StepShape
from albert_tf.pretraining.settings import StepConfig
from albert_tf.pretraining.step import TrainStep
from albert_tf.runs.distribution import precision_policy


def lower_train_step(config: AlbertConfig, shape: StepShape) -> bytes:
  """Lowers the step function that training runs: forward, losses, backward, clip, optimizer.

  The program is of one replica, without the sums over replicas, which need no memory of their own.

  Args:
    config: the architecture.
    shape: the step of one replica.

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
  strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
  with strategy.scope():
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
    optimizer = build_optimizer(OptimizerConfig(name=shape.optimizer), named_variables(model))
  step = TrainStep(
    strategy=strategy,
    model=model,
    optimizer=optimizer,
    config=StepConfig(
      global_batch_size=shape.examples,
      gradient_accumulation_steps=shape.gradient_accumulation_steps,
      train_depths=shape.train_depths,
    ),
  )
  function = tf.function(
    lambda batch: strategy.run(step.on_replica, args=(batch,)), autograph=False, jit_compile=True
  )
  with tf.device("/cpu:0"):
    return bytes(function.experimental_get_compiler_ir(_empty_batch(shape))(stage="hlo_serialized"))


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
