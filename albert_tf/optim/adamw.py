"""AdamW as the original ALBERT release applies it: LAMB without the trust ratio."""

import tensorflow as tf

from albert_tf.optim.moments import MomentHyperparameters, UpdateResult, update_direction


def adamw_update(
  p: tf.Tensor,
  g: tf.Tensor,
  m: tf.Tensor,
  v: tf.Tensor,
  *,
  learning_rate: tf.Tensor | float,
  step: tf.Tensor | int,
  hyperparameters: MomentHyperparameters,
  decay: bool,
) -> UpdateResult:
  """One AdamW update of one variable.

  u = m̂ / (√v̂ + ε) + λ p;  p ← p - η u

  Args:
    p: the parameter, any shape, float32.
    g: its gradient, same shape, already aggregated and clipped.
    m: first moment, same shape, 0 before the first update.
    v: second moment, same shape, 0 before the first update.
    learning_rate: η, a scalar.
    step: the number t of this update, 1 for the first; read only with bias correction.
    hyperparameters: β₁, β₂, ε, λ and the bias correction.
    decay: whether this variable decays (not LayerNorm, not biases).

  Returns:
    New `p`, `m`, `v`, and `delta` = η u.

  Reference: AdamW, arXiv 1711.05101, with the constants of the original ALBERT release.
  """
  u, m, v = update_direction(p, g, m, v, step=step, hyperparameters=hyperparameters, decay=decay)
  delta = learning_rate * u
  return UpdateResult(p=p - delta, m=m, v=v, delta=delta)
