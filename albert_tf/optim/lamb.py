"""The equations of an update, as pure functions: learning rate, clipping, LAMB and AdamW.

The training loop's optimizers (`optimizer.py`) and those of `model.compile`
(`keras_optimizers.py`) hold the state and call these.
"""

from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf

from albert_tf.optim.config import MomentHyperparameters, ScheduleConfig


def rate_after_steps(completed_steps: tf.Tensor | int, config: ScheduleConfig) -> tf.Tensor:
  """The learning rate η(t) of the update after `completed_steps`, t = `completed_steps` + 1; float32.

  warm-up, t - s₀ < W:  η₀ (t - s₀) / W, never negative
  decay, continuous:    η_T + (η₀ - η_T) (1 - (t - s₀ - W) / (T - s₀ - W))^a
  decay, original:      η_T + (η₀ - η_T) (1 - t / T)^a

  So the first update has a positive rate, and the last (t = T) has `end_learning_rate`, as in the
  original code.

  Reference: ALBERT, arXiv 1909.11942, section 4.1.
  """
  t = tf.cast(completed_steps, tf.float32) + 1.0
  since_start = t - float(config.start_warmup_step)  # t - s₀

  # Decay. Both forms are 1 - (share of the decay that is done), to the power a.
  decay_start = 0
  if config.schedule == "continuous":
    decay_start = config.start_warmup_step + config.num_warmup_steps
  decay_steps = max(config.num_train_steps - decay_start, 1)  # A run may end with its warm-up.
  done = (t - float(decay_start)) / float(decay_steps)
  remaining = 1.0 - tf.clip_by_value(done, 0.0, 1.0)
  if config.poly_power != 1.0:
    remaining = tf.pow(remaining, config.poly_power)
  decayed = config.end_learning_rate + (config.learning_rate - config.end_learning_rate) * remaining

  # Warm-up. Before s₀ the rate is 0.
  if config.num_warmup_steps == 0:
    return tf.where(since_start > 0.0, decayed, tf.zeros_like(decayed))
  num_warmup_steps = float(config.num_warmup_steps)
  warmup = config.learning_rate * tf.maximum(since_start, 0.0) / num_warmup_steps
  return tf.where(since_start < num_warmup_steps, warmup, decayed)


def global_norm(tensors: Mapping[str, tf.Tensor]) -> tf.Tensor:
  """√Σ‖x‖² over all tensors, a float32 scalar."""
  # float32: squares of 16-bit values would overflow or vanish.
  squares = [tf.square(tf.cast(x, tf.float32)) for x in tensors.values()]
  return tf.sqrt(tf.add_n([tf.reduce_sum(square) for square in squares]))


def clip_by_global_norm(
  gradients: Mapping[str, tf.Tensor], clip_norm: float
) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
  """Scales all gradients together so that their global norm is at most `clip_norm`.

  g ← g c / max(‖g‖, c)

  Args:
    gradients: name → dense gradient, aggregated over replicas and micro-batches.
    clip_norm: c; 0 turns clipping off.

  Returns:
    The clipped gradients, and ‖g‖ before clipping. If the norm is not finite, the gradients are
    not, so that the run can report it.

  Reference: ALBERT's original release, clip 1.0.
  """
  norm = global_norm(gradients)
  if not clip_norm:
    return dict(gradients), norm
  scale = clip_norm / tf.maximum(norm, clip_norm)
  # An infinite norm would give a scale of 0, and hide itself: inf·0 and NaN·0 are NaN.
  scale = tf.where(tf.math.is_finite(norm), scale, norm * 0.0)
  clipped = {name: gradient * scale for name, gradient in gradients.items()}
  return clipped, norm


class UpdateResult(NamedTuple):
  """The result of an update of one variable; all tensors have its shape."""

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
    decay: whether u contains λ p (not for LayerNorm and biases).
    adapt: whether r is the trust ratio (by default for the variables that decay); else r = 1.

  Example:
    >>> p, g, m, v = tf.ones([3]), tf.ones([3]), tf.zeros([3]), tf.zeros([3])
    >>> settings = {"hyperparameters": MomentHyperparameters(), "decay": True, "adapt": True}
    >>> lamb_update(p, g, m, v, learning_rate=0.1, step=1, **settings).p.shape
    TensorShape([3])

  Reference: LAMB, arXiv 1904.00962, algorithm 2; AdamW, arXiv 1711.05101; both with the constants
    of the original ALBERT release.
  """
  h = hyperparameters
  m = h.beta_1 * m + (1.0 - h.beta_1) * g
  v = h.beta_2 * v + (1.0 - h.beta_2) * tf.square(g)

  # Moments that start at 0 are too small at first; the original release leaves them so.
  m_hat = m
  v_hat = v
  if h.bias_correction:
    t = tf.cast(step, tf.float32)
    m_hat = m / (1.0 - tf.pow(tf.constant(h.beta_1, tf.float32), t))
    v_hat = v / (1.0 - tf.pow(tf.constant(h.beta_2, tf.float32), t))

  u = m_hat / (tf.sqrt(v_hat) + h.epsilon)
  if decay:
    u += h.weight_decay * p
  # This is AdamW. LAMB scales the step by the trust ratio.
  if adapt:
    learning_rate = learning_rate * trust_ratio(p, u)
  delta = learning_rate * u
  return UpdateResult(p=p - delta, m=m, v=v, delta=delta)


def trust_ratio(p: tf.Tensor, u: tf.Tensor) -> tf.Tensor:
  """r = ‖p‖₂ / ‖u‖₂ over the whole variable when both norms are positive, else 1; not clamped."""
  p_norm = tf.norm(p)
  u_norm = tf.norm(u)
  usable = tf.logical_and(p_norm > 0.0, u_norm > 0.0)
  # The inner `where` keeps 0 / 0 out of the branch that is not taken.
  return tf.where(usable, p_norm / tf.where(usable, u_norm, 1.0), 1.0)
