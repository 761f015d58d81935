"""The Adam moments that LAMB and AdamW share, and the hyper-parameters of both."""

from collections.abc import Mapping
import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf

from albert_tf.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class MomentHyperparameters:
  """Hyper-parameters of the update; the defaults are those of the original ALBERT release.

  Attributes:
    beta_1: decay of the first moment, in [0, 1).
    beta_2: decay of the second moment, in [0, 1).
    epsilon: added to sqrt(v), positive.
    weight_decay: λ, the multiple of the parameter that joins the update direction, at least 0.
    bias_correction: divide m by 1 - β₁^t and v by 1 - β₂^t (the LAMB paper); the original release does not.
  """

  beta_1: float = 0.9
  beta_2: float = 0.999
  epsilon: float = 1e-6
  weight_decay: float = 0.01
  bias_correction: bool = False

  def __post_init__(self) -> None:
    for name in ("beta_1", "beta_2"):
      value = getattr(self, name)
      if not 0.0 <= value < 1.0:
        raise UserError(
          f"{name} must be at least 0 and below 1. Received: {value}. The paper uses 0.9 and 0.999."
        )
    if not self.epsilon > 0.0:
      raise UserError(f"epsilon must be positive. Received: {self.epsilon}. ALBERT uses 1e-6.")
    if not self.weight_decay >= 0.0:
      raise UserError(f"weight_decay must not be negative. Received: {self.weight_decay}. ALBERT uses 0.01.")

  def get_config(self) -> dict[str, Any]:
    """A plain dict that `from_config` accepts."""
    return dataclasses.asdict(self)

  @classmethod
  def from_config(cls, config: Mapping[str, Any]) -> "MomentHyperparameters":
    """The inverse of `get_config`; unknown keys are an error."""
    known = {field.name for field in dataclasses.fields(cls)}
    unknown = sorted(set(config) - known)
    if unknown:
      raise UserError(
        f"Optimizer settings must be among {sorted(known)}. Received: {unknown}. Remove or rename those keys."
      )
    return cls(**config)


class UpdateResult(NamedTuple):
  """What one update of one variable gives: its new value, new moments, and the step that was taken."""

  p: tf.Tensor  # New parameter.
  m: tf.Tensor  # New first moment.
  v: tf.Tensor  # New second moment.
  delta: tf.Tensor  # η r u, what was subtracted from the parameter.


def update_direction(
  p: tf.Tensor,
  g: tf.Tensor,
  m: tf.Tensor,
  v: tf.Tensor,
  *,
  step: tf.Tensor | int,
  hyperparameters: MomentHyperparameters,
  decay: bool,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
  """Moments and direction u of Adam with the decay inside.

  m ← β₁ m + (1 - β₁) g;  v ← β₂ v + (1 - β₂) g²;  u = m̂ / (√v̂ + ε) + λ p

  where m̂ = m and v̂ = v, or with bias correction m / (1 - β₁^t) and v / (1 - β₂^t).

  Args:
    p: the parameter, any shape, float32.
    g: its gradient, same shape.
    m: first moment before the update, same shape.
    v: second moment before the update, same shape.
    step: the number t of this update, 1 for the first.
    hyperparameters: β₁, β₂, ε, λ and the bias correction.
    decay: whether λ p is added for this variable.

  Returns:
    `(u, m, v)`, all of the parameter's shape.

  Reference: ALBERT, arXiv 1909.11942, section 4.1; LAMB, arXiv 1904.00962, algorithm 2.
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
  return u, m, v
