"""What decides an update apart from the gradient: moments, schedule, optimizer. No TensorFlow."""

import dataclasses
import math
from typing import Literal, get_args

from albert_tf.errors import UserError

REFERENCE_BATCH_SIZE = 4096  # ALBERT section 4.1: batch 4096, learning rate 0.00176.

OptimizerName = Literal["lamb", "adamw", "tfa_lamb"]
ScheduleName = Literal["continuous", "original"]
ScalingRule = Literal["none", "sqrt", "linear"]
OPTIMIZER_NAMES: tuple[OptimizerName, ...] = get_args(OptimizerName)
SCHEDULE_NAMES: tuple[ScheduleName, ...] = get_args(ScheduleName)
SCALING_RULES: tuple[ScalingRule, ...] = get_args(ScalingRule)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MomentHyperparameters:
  """Hyper-parameters of the update; the defaults are those of the original ALBERT release.

  Attributes:
    beta_1: β₁, decay of the first moment, in [0, 1).
    beta_2: β₂, decay of the second moment, in [0, 1).
    epsilon: ε, added to sqrt(v), positive.
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
  """Linear warm-up, then polynomial decay.

  Attributes:
    learning_rate: η₀, the peak rate.
    num_train_steps: T, the update at which the rate has fallen to `end_learning_rate`.
    num_warmup_steps: W, updates of linear rise; 0 for none.
    start_warmup_step: s₀, completed steps at which the warm-up begins; the rate is 0 before.
    poly_power: a, the power of the decay; 1 is linear.
    end_learning_rate: η_T, the rate at T and after.
    schedule: "continuous" decays from η₀ at the end of the warm-up; "original" counts the decay from
      step 0, as the original release does, so that the rate jumps down to η₀ (1 - (s₀ + W) / T) there.
  """

  learning_rate: float
  num_train_steps: int
  num_warmup_steps: int = 0
  start_warmup_step: int = 0
  poly_power: float = 1.0
  end_learning_rate: float = 0.0
  schedule: ScheduleName = "continuous"

  def __post_init__(self) -> None:
    if not self.learning_rate > 0.0 or math.isinf(self.learning_rate):
      raise UserError(
        f"learning_rate must be positive. Received: {self.learning_rate}. ALBERT uses 0.00176 at batch 4096."
      )
    if self.num_train_steps < 1:
      raise UserError(
        f"num_train_steps must be at least 1. Received: {self.num_train_steps}. Choose a longer run."
      )
    if self.num_warmup_steps < 0 or self.start_warmup_step < 0:
      raise UserError(
        "num_warmup_steps and start_warmup_step must not be negative. "
        f"Received: num_warmup_steps={self.num_warmup_steps}, start_warmup_step={self.start_warmup_step}. "
        "Use 0 for none."
      )
    if self.start_warmup_step + self.num_warmup_steps > self.num_train_steps:
      raise UserError(
        "The warm-up must end within the run. Received: "
        f"start_warmup_step={self.start_warmup_step}, num_warmup_steps={self.num_warmup_steps}, "
        f"num_train_steps={self.num_train_steps}. Shorten the warm-up (ALBERT warms up for 2.5% of the run)."
      )
    if not self.poly_power > 0.0:
      raise UserError(f"poly_power must be positive. Received: {self.poly_power}. ALBERT uses 1.0 (linear).")
    if not 0.0 <= self.end_learning_rate <= self.learning_rate:
      raise UserError(
        "end_learning_rate must lie between 0 and learning_rate. "
        f"Received: end_learning_rate={self.end_learning_rate}, learning_rate={self.learning_rate}. "
        "Use 0 to decay fully."
      )
    if self.schedule not in SCHEDULE_NAMES:
      raise UserError(
        f"schedule must be continuous or original. Received: {self.schedule!r}. Choose one of the two."
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig(ScheduleConfig, MomentHyperparameters):
  """Everything that decides an update of pretraining; its own fields, and those of the schedule and the moments.

  Attributes:
    name: "lamb", "adamw", or "tfa_lamb" (TensorFlow Addons' own, on the addons stack only).
    clip_norm: bound on the global gradient norm; 0 turns clipping off.
    ema_decay: decay of the weight average; None keeps none.
  """

  name: OptimizerName = "lamb"
  learning_rate: float = 0.00176  # ALBERT section 4.1.
  num_train_steps: int = 125_000  # ALBERT section 4.1.
  num_warmup_steps: int = 3_125  # The original release's default.
  clip_norm: float = 1.0
  ema_decay: float | None = None

  def __post_init__(self) -> None:
    if self.name not in OPTIMIZER_NAMES:
      raise UserError(
        f"optimizer must be one of {', '.join(OPTIMIZER_NAMES)}. Received: {self.name!r}. Use lamb."
      )
    if not self.clip_norm >= 0.0:
      raise UserError(
        f"clip_norm must not be negative. Received: {self.clip_norm}. Use 1.0, or 0 for no clipping."
      )
    if self.ema_decay is not None and not 0.0 < self.ema_decay < 1.0:
      raise UserError(
        f"ema_decay must lie between 0 and 1. Received: {self.ema_decay}. Use 0.999 to 0.9999, or none."
      )
    MomentHyperparameters.__post_init__(self)
    ScheduleConfig.__post_init__(self)


def scale_learning_rate(learning_rate: float, batch_size: int, *, rule: ScalingRule) -> float:
  """Fits a rate η chosen for `REFERENCE_BATCH_SIZE` B₀ to another global batch B.

  none: η;  sqrt: η √(B / B₀);  linear: η B / B₀. "sqrt" suits LAMB (arXiv 1904.00962, section 4.3), "linear" SGD.

  Raises:
    UserError: a batch below 1 or an unknown rule.

  Example:
    >>> round(scale_learning_rate(0.00176, 1024, rule="sqrt"), 8)
    0.00088
  """
  if batch_size < 1:
    raise UserError(
      f"The batch size must be at least 1. Received: batch_size={batch_size}. Give the global batch."
    )
  if rule == "none":
    return learning_rate
  if rule == "sqrt":
    return learning_rate * math.sqrt(batch_size / REFERENCE_BATCH_SIZE)
  if rule == "linear":
    return learning_rate * batch_size / REFERENCE_BATCH_SIZE
  raise UserError(
    f"scale_learning_rate must be none, sqrt or linear. Received: {rule!r}. LAMB users choose sqrt."
  )
