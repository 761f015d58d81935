"""LAMB as the original ALBERT release applies it: one pure function of one variable."""

import tensorflow as tf

from albert_tf.optim.moments import MomentHyperparameters, UpdateResult, update_direction


def trust_ratio(p: tf.Tensor, u: tf.Tensor) -> tf.Tensor:
  """r = ‖p‖₂ / ‖u‖₂ over the whole variable when both norms are positive, else 1; not clamped.

  Args:
    p: the parameter, any shape, float32.
    u: the update direction, decay included, same shape.

  Returns:
    A scalar.
  """
  p_norm = tf.norm(p)
  u_norm = tf.norm(u)
  usable = tf.logical_and(p_norm > 0.0, u_norm > 0.0)
  return tf.where(usable, p_norm / tf.where(usable, u_norm, 1.0), 1.0)


def lamb_update(
  p: tf.Tensor,
  g: tf.Tensor,
  m: tf.Tensor,
  v: tf.Tensor,
  *,
  learning_rate: tf.Tensor | float,
  step: tf.Tensor | int,
  hyperparameters: MomentHyperparameters,
  decay: bool,
  adapt: bool,
) -> UpdateResult:
  """One LAMB update of one variable.

  u = m̂ / (√v̂ + ε) + λ p;  r = ‖p‖ / ‖u‖;  p ← p - η r u

  Args:
    p: the parameter, any shape, float32.
    g: its gradient, same shape, already aggregated and clipped.
    m: first moment, same shape, 0 before the first update.
    v: second moment, same shape, 0 before the first update.
    learning_rate: η, a scalar.
    step: the number t of this update, 1 for the first; read only with bias correction.
    hyperparameters: β₁, β₂, ε, λ and the bias correction.
    decay: whether this variable decays (not LayerNorm, not biases).
    adapt: whether the trust ratio applies (by default to the variables that decay); else r = 1.

  Returns:
    New `p`, `m`, `v`, and `delta` = η r u.

  Example:
    >>> p, g, m, v = tf.ones([3]), tf.ones([3]), tf.zeros([3]), tf.zeros([3])
    >>> settings = {"hyperparameters": MomentHyperparameters(), "decay": True, "adapt": True}
    >>> lamb_update(p, g, m, v, learning_rate=0.1, step=1, **settings).p.shape
    TensorShape([3])

  Reference: LAMB, arXiv 1904.00962, algorithm 2, with the constants of the original ALBERT release.
  """
  u, m, v = update_direction(p, g, m, v, step=step, hyperparameters=hyperparameters, decay=decay)
  r = trust_ratio(p, u) if adapt else 1.0
  delta = learning_rate * r * u
  return UpdateResult(p=p - delta, m=m, v=v, delta=delta)
