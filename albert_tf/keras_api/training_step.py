"""One update of `fit`: forward pass, loss, micro-batches, gradient, optimizer.

`TaskModel.train_step` is this function; Keras calls it on each replica with the replica's rows. The
differences between Keras 2 and 3 are primitives of `compat`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from albert_tf import compat
from albert_tf.modeling.early_exit import EXIT_RULES
from albert_tf.modeling.encoder import integers
from albert_tf.modeling.micro_batches import count_equal_parts, sum_over_micro_batches

# An input of training, int32 `[B, 2]`; its first row seeds the dropout of the call.
DROPOUT_SEED = "dropout_seed"


def train_step(model: Any, data: Any) -> dict[str, Any]:
  """Makes an update with a batch, and returns the metrics; see `keras.Model.train_step`.

  The gradient is that of the mean loss over the rows of all replicas, for any number of replicas
  and of `model.gradient_accumulation_steps`.

  Args:
    model: a compiled `TaskModel`.
    data: the rows of this replica, `(x, y, sample_weight)` as Keras packs them.
  """
  batch = [part for part in keras.utils.unpack_x_y_sample_weight(data) if part is not None]
  variables = model.trainable_variables
  count: int | tf.Tensor = 1
  if model.gradient_accumulation_steps > 1:
    # As many equal parts as are needed: 30 rows for 4 are 5 micro-batches of 6.
    count = count_equal_parts(tf.nest.flatten(batch)[0], at_least=model.gradient_accumulation_steps)

  def gradients_of(rows: Any) -> list[Any]:
    with tf.GradientTape() as tape:
      loss = training_loss(model, *rows)
      # The mean over the batch is the mean over its equal parts.
      loss /= tf.cast(count, loss.dtype)
      # 16-bit gradients of a small loss would be 0.
      scaled_loss = compat.scale_loss(model.optimizer, loss)
    return tape.gradient(scaled_loss, variables)

  def dense_gradients_of(rows: Any, number: tf.Tensor) -> list[tf.Tensor]:
    del number  # Each micro-batch has its own dropout seed.
    # A loop cannot add up the gradients of lookups.
    return [tf.convert_to_tensor(gradient) for gradient in gradients_of(rows)]

  gradients: Sequence[Any]
  if model.gradient_accumulation_steps == 1:
    gradients = gradients_of(batch)
  else:
    zeros = [tf.zeros(variable.shape, variable.dtype) for variable in variables]
    gradients = sum_over_micro_batches(dense_gradients_of, batch, count, zeros)

  # The optimizer sums over the replicas, clips the sum, and updates: `compat.OptimizerBase`.
  gradients = compat.unscale_gradients(model.optimizer, gradients)
  model.optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))
  return model.get_metrics_result()


def training_loss(model: Any, x: Any, y: Any = None, sample_weight: Any = None) -> tf.Tensor:
  r"""The loss of some rows, this replica's share of it; updates the metrics.

  With several `train_depths` it is the mean over the depths,
  $L = \sum_d d\, (L_d + W D_d) / \sum_d d$, where $D_d$ is the distance of depth d's answers from
  the deepest ones, which get no gradient from it; see `ExitRule`.

  Reference: arXiv 2006.04152, equation 5.
  """
  options = {}
  # The rows bring a seed along where a training can be continued, which repeats its dropout.
  if isinstance(x, Mapping) and DROPOUT_SEED in x:
    options["seed"] = integers(x[DROPOUT_SEED][0])

  if not model.train_depths:
    deepest = model(x, training=True, **options)
    loss = model.compute_loss(x, y, deepest, sample_weight)
  else:
    outputs = model.outputs_at(model.train_depths, x, training=True, **options)
    deepest = outputs[-1]
    loss = 0.0
    for depth, of_depth in zip(model.train_depths, outputs, strict=True):
      loss_of_depth = model.compute_loss(x, y, of_depth, sample_weight)
      if model.depth_distillation and of_depth is not deepest:
        distance = _mean_distance(model, of_depth, deepest, sample_weight)
        loss_of_depth += model.depth_distillation * distance
      loss += depth / sum(model.train_depths) * loss_of_depth
  compat.update_metrics(model, loss, x, y, deepest, sample_weight)
  return loss


def _mean_distance(model: Any, outputs: Any, deepest: Any, sample_weight: Any) -> tf.Tensor:
  """The mean distance of the outputs of a depth from the deepest, this replica's share of it."""
  distances = EXIT_RULES[model.task.kind].distance(outputs, tf.stop_gradient(deepest))
  if sample_weight is not None:
    distances *= tf.cast(tf.reshape(sample_weight, [-1]), distances.dtype)
  # As Keras' losses: the mean of this replica's rows, for a sum over the replicas.
  return tf.reduce_mean(distances) / tf.distribute.get_strategy().num_replicas_in_sync
