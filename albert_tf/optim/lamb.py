"""LAMB as the original ALBERT release applies it: one pure function of one variable. Without adaptation it is AdamW."""

from typing import NamedTuple

import tensorflow as tf

from albert_tf.optim.config import MomentHyperparameters


class UpdateResult(NamedTuple):
  """What one update of one variable gives; all of the parameter's shape."""

  p: tf.Tensor  # New parameter.
  m: tf.Tensor  # New first moment.
  v: tf.Tensor  # New second moment.
  delta: tf.Tensor  # η r u, what was subtracted from the parameter.


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
  """One LAMB update of one variable; with `adapt=False` one AdamW update.

  m ← β₁ m + (1 - β₁) g;  v ← β₂ v + (1 - β₂) g²
  u = m̂ / (√v̂ + ε) + λ p;  r = ‖p‖ / ‖u‖;  p ← p - η r u

  where m̂ = m and v̂ = v, or with bias correction m / (1 - β₁^t) and v / (1 - β₂^t).

  Args:
    p: the parameter, any shape, float32.
    g: its gradient, same shape, already aggregated and clipped.
    m: first moment, same shape, 0 before the first update.
    v: second moment, same shape, 0 before the first update.
    learning_rate: η, a scalar.
    step: the number t of this update, 1 for the first; read only with bias correction.
    hyperparameters: β₁, β₂, ε, λ and the bias correction.
    decay: whether λ p joins u for this variable (not LayerNorm, not biases).
    adapt: whether the trust ratio r applies (by default to the variables that decay); else r = 1.

  Example:
    >>> p, g, m, v = tf.ones([3]), tf.ones([3]), tf.zeros([3]), tf.zeros([3])
    >>> settings = {"hyperparameters": MomentHyperparameters(), "decay": True, "adapt": True}
    >>> lamb_update(p, g, m, v, learning_rate=0.1, step=1, **settings).p.shape
    TensorShape([3])

  Reference: LAMB, arXiv 1904.00962, algorithm 2; AdamW, arXiv 1711.05101; both with the constants of the
    original ALBERT release.
  """
  h = hyperparameters
  m = h.beta_1 * m + (1.0 - h.beta_1) * g
  v = h.beta_2 * v + (1.0 - h.beta_2) * tf.square(g)
  m_hat, v_hat = m, v
  if h.bias_correction:
    t = tf.cast(step, tf.float32)
    m_hat = m / (1.0 - tf.pow(tf.constant(h.beta_1, tf.float32), t))
    v_hat = v / (1.0 - tf.pow(tf.constant(h.beta_2, tf.float32), t))
  u = m_hat / (tf.sqrt(v_hat) + h.epsilon)
  if decay:
    u += h.weight_decay * p
  delta = learning_rate * trust_ratio(p, u) * u if adapt else learning_rate * u
  return UpdateResult(p=p - delta, m=m, v=v, delta=delta)


def moving_average(e: tf.Tensor, p: tf.Tensor, *, step: tf.Tensor, decay: float) -> tf.Tensor:
  """e ← d e + (1 - d) p; the first update, t = 1, starts the average at its p."""
  return tf.where(step == 1, p, decay * e + (1.0 - decay) * p)


def trust_ratio(p: tf.Tensor, u: tf.Tensor) -> tf.Tensor:
  """r = ‖p‖₂ / ‖u‖₂ over the whole variable when both norms are positive, else 1; not clamped."""
  p_norm = tf.norm(p)
  u_norm = tf.norm(u)
  usable = tf.logical_and(p_norm > 0.0, u_norm > 0.0)
  return tf.where(usable, p_norm / tf.where(usable, u_norm, 1.0), 1.0)
