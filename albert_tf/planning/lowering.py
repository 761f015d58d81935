"""The exact training step of a replica as XLA's HLO, without running it.

compile_for_tpu.py and benchmarks/tpu_bound.py give it to the TPU compiler (`tpu_compiler`);
benchmarks/gpu_step.py runs it on a GPU.
"""

from typing import Any

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


def lower_train_step(config: AlbertConfig, shape: StepShape, *, device: str = "cpu") -> bytes:
  """Lowers the step function that training runs: forward, losses, backward, clip, optimizer.

  The program is of one replica, without the sums over replicas, which need no memory of their own.

  Args:
    config: the architecture.
    shape: the step of one replica.
    device: "gpu" for the program of a GPU, with its fused attention; no GPU is needed. The TPU
      compiler takes that of "cpu".

  Returns:
    A serialized `HloModuleProto`; its arguments are the batch, the weights and the optimizer's
    state.

  Raises:
    UserError: this TensorFlow cannot lower it, or the model or the step refuses the settings.

  Example:
    >>> hlo = lower_train_step(AlbertConfig.from_name("base"), StepShape(per_core_batch_size=8))
  """
  if not compat.HOST_XLA:
    raise UserError(
      "Lowering a step needs a TensorFlow with XLA for the CPU. Received: one with TPU kernels, "
      "which has none. Use the default stack, or --estimate_only."
    )
  # Lowered for the CPU, whatever devices there are.
  function = compiled_step(config, shape, device=device)
  with tf.device("/cpu:0"):
    lower = function.experimental_get_compiler_ir(_empty_batch(shape))
    return bytes(lower(stage="hlo_serialized"))


def compiled_step(config: AlbertConfig, shape: StepShape, *, device: str) -> Any:
  """A step of training on one device, forward to update, as one function for XLA: (batch) → metrics.

  The arguments are those of `lower_train_step`.
  """
  # The same model, optimizer and step as those of a run.
  # Without a GPU the variables are on the CPU. The model asks the strategy.
  strategy = tf.distribute.OneDeviceStrategy(f"/{device}:0")
  with strategy.scope():
    model = AlbertForPreTraining(
      config,
      encoder_options={
        "accelerated": shape.mixed_precision != "float32",
        "remat": shape.remat,
        "layer_loop": shape.layer_loop,
        "padding_at_end": True,
      },
      read_positions_only=True,
      dtype=precision_policy(shape.mixed_precision),
    )
    optimizer = build_optimizer(
      OptimizerConfig(name=shape.optimizer),
      named_variables(model),
      accelerated=model.encoder.accelerated,
    )
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

  def run_step(batch: dict[str, tf.Tensor]) -> tf.Tensor:
    return strategy.run(step.on_replica, args=(batch,))

  return tf.function(run_step, autograph=False, jit_compile=True)


def _empty_batch(shape: StepShape) -> dict[str, tf.Tensor]:
  """Zeros with the shapes and types of a replica's batch, as `parse_pretraining_batch` makes it."""
  tokens = tf.zeros([shape.examples, shape.max_seq_length], tf.int32)
  predictions = tf.zeros([shape.examples, shape.max_predictions_per_seq], tf.int32)
  return {
    "input_ids": tokens,
    "input_mask": tokens,
    "segment_ids": tokens,
    "masked_lm_positions": predictions,
    "masked_lm_ids": predictions,
    "masked_lm_weights": tf.cast(predictions, tf.float32),
    "sentence_order_labels": tf.zeros([shape.examples], tf.int32),
  }
