"""From a configuration to an optimizer with its parameter groups and schedule."""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any, Literal

import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.optim.groups import DEFAULT_GROUPS, ParameterGroup, layerwise_multipliers, variable_rules
from albert_tf.optim.moments import MomentHyperparameters
from albert_tf.optim.optimizer import Optimizer, adamw_rule, lamb_rule
from albert_tf.optim.schedules import ScheduleConfig, ScheduleName, rate_after_steps

OptimizerName = Literal["lamb", "adamw", "tfa_lamb"]
OPTIMIZER_NAMES = ("lamb", "adamw", "tfa_lamb")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
  """Everything that decides an update, apart from the gradient.

  Attributes:
    name: "lamb", "adamw", or "tfa_lamb" (TensorFlow Addons' own, on the addons stack only).
    learning_rate: peak rate, already scaled to the batch.
    num_train_steps: updates until the rate has decayed.
    num_warmup_steps, start_warmup_step, poly_power, end_learning_rate, schedule: see `ScheduleConfig`.
    beta_1, beta_2, epsilon, weight_decay, bias_correction: see `MomentHyperparameters`.
    clip_norm: bound on the global gradient norm; 0 turns clipping off.
    layer_decay: rate multiplier a level below the head, for fine-tuning; 1 for none.
    ema_decay: decay of the weight average; None keeps none.
  """

  name: OptimizerName = "lamb"
  learning_rate: float = 0.00176  # ALBERT section 4.1.
  num_train_steps: int = 125_000  # ALBERT section 4.1.
  num_warmup_steps: int = 3_125  # The original release's default.
  start_warmup_step: int = 0
  poly_power: float = 1.0
  end_learning_rate: float = 0.0
  schedule: ScheduleName = "continuous"
  beta_1: float = 0.9
  beta_2: float = 0.999
  epsilon: float = 1e-6
  weight_decay: float = 0.01
  bias_correction: bool = False
  clip_norm: float = 1.0
  layer_decay: float = 1.0
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
    self.moments()
    self.rate_schedule()

  def moments(self) -> MomentHyperparameters:
    """The part that the update functions read."""
    return MomentHyperparameters(**self._part(MomentHyperparameters))

  def rate_schedule(self) -> ScheduleConfig:
    """The part that the schedule reads."""
    return ScheduleConfig(**self._part(ScheduleConfig))

  def _part(self, cls: type) -> dict[str, Any]:
    return {field.name: getattr(self, field.name) for field in dataclasses.fields(cls)}

  def get_config(self) -> dict[str, Any]:
    """A plain dict that `from_config` accepts; fit for JSON."""
    return dataclasses.asdict(self)

  @classmethod
  def from_config(cls, config: Mapping[str, Any]) -> "OptimizerConfig":
    """The inverse of `get_config`.

    Raises:
      UserError: unknown keys, or values out of range.
    """
    known = {field.name for field in dataclasses.fields(cls)}
    unknown = sorted(set(config) - known)
    if unknown:
      raise UserError(
        f"Optimizer settings must be among {sorted(known)}. Received: {unknown}. Remove or rename those keys."
      )
    return cls(**config)


def learning_rate_at(config: OptimizerConfig, completed_steps: tf.Tensor | int) -> tf.Tensor:
  """η of the update made after `completed_steps` updates, a float32 scalar."""
  return rate_after_steps(completed_steps, config.rate_schedule())


def build_optimizer(
  config: OptimizerConfig,
  named_variables: Mapping[str, tf.Variable],
  *,
  groups: Sequence[ParameterGroup] = DEFAULT_GROUPS,
) -> Optimizer:
  """The optimizer for these variables, its slots zero; call it under the strategy's scope.

  Args:
    config: the settings.
    named_variables: checkpoint name → float32 variable to train.
    groups: which variables decay and adapt; every name must match exactly one.

  Raises:
    UserError: a name in no group or several, or "tfa_lamb" without TensorFlow Addons.

  Example:
    >>> optimizer = build_optimizer(OptimizerConfig(), {"kernel": tf.Variable(tf.ones([2, 3]))})
    >>> sorted(optimizer.slots())
    ['kernel/adam_m', 'kernel/adam_v']
  """
  multipliers = None
  if config.layer_decay != 1.0:
    multipliers = layerwise_multipliers(named_variables, layer_decay=config.layer_decay)
  rules = variable_rules(named_variables, groups=groups, multipliers=multipliers)
  if config.name == "tfa_lamb":
    from albert_tf.optim.tfa_lamb import TfaLambOptimizer  # Deferred: needs the addons stack.

    return TfaLambOptimizer(
      named_variables, hyperparameters=config.moments(), rules=rules, ema_decay=config.ema_decay
    )
  rule = lamb_rule if config.name == "lamb" else adamw_rule
  return Optimizer(named_variables, update=rule(config.moments()), rules=rules, ema_decay=config.ema_decay)
