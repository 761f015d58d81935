"""Clipping by the global norm of the true gradient."""

from collections.abc import Mapping

import tensorflow as tf


def global_norm(tensors: Mapping[str, tf.Tensor]) -> tf.Tensor:
  """√Σ‖x‖² over all tensors, a float32 scalar."""
  return tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(tf.cast(x, tf.float32))) for x in tensors.values()]))


def clip_by_global_norm(
  gradients: Mapping[str, tf.Tensor], clip_norm: float
) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
  """Scales all gradients together so that their global norm is at most `clip_norm`.

  g ← g c / max(‖g‖, c)

  Args:
    gradients: name → dense gradient, aggregated over replicas and micro-batches.
    clip_norm: c; 0 turns clipping off.

  Returns:
    The clipped gradients and ‖g‖ before clipping. A non-finite norm leaves non-finite gradients, so that a
    run can notice.

  Reference: ALBERT's original release, clip 1.0.
  """
  norm = global_norm(gradients)
  if not clip_norm:
    return dict(gradients), norm
  scale = clip_norm / tf.maximum(norm, clip_norm)
  scale = tf.where(tf.math.is_finite(norm), scale, norm * 0.0)  # inf·0 and NaN·0 are NaN.
  return {name: gradient * scale for name, gradient in gradients.items()}, norm
