"""The optimizer of the custom training loop: holds the slots, calls the pure update functions."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.optim.adamw import adamw_update
from albert_tf.optim.clipping import global_norm
from albert_tf.optim.groups import VariableRule
from albert_tf.optim.lamb import lamb_update
from albert_tf.optim.moments import MomentHyperparameters, UpdateResult


class UpdateFunction(Protocol):
  """The update of one variable, with its hyper-parameters bound."""

  def __call__(
    self,
    p: tf.Tensor,
    g: tf.Tensor,
    m: tf.Tensor,
    v: tf.Tensor,
    *,
    learning_rate: tf.Tensor,
    step: tf.Tensor,
    rule: VariableRule,
  ) -> UpdateResult: ...


class StepNorms(NamedTuple):
  """Global L2 norms of one update, float32 scalars."""

  weight_norm: tf.Tensor  # ‖p‖ before the update: the weights that the gradient belongs to.
  update_norm: tf.Tensor  # ‖η r u‖, what was subtracted.


def lamb_rule(hyperparameters: MomentHyperparameters) -> UpdateFunction:
  """LAMB with these hyper-parameters, as `Optimizer` calls it."""

  def update(
    p: tf.Tensor, g: tf.Tensor, m: tf.Tensor, v: tf.Tensor, *, rule: VariableRule, **now: tf.Tensor
  ) -> UpdateResult:
    return lamb_update(p, g, m, v, hyperparameters=hyperparameters, decay=rule.decay, adapt=rule.adapt, **now)

  return update


def adamw_rule(hyperparameters: MomentHyperparameters) -> UpdateFunction:
  """AdamW with these hyper-parameters, as `Optimizer` calls it."""

  def update(
    p: tf.Tensor, g: tf.Tensor, m: tf.Tensor, v: tf.Tensor, *, rule: VariableRule, **now: tf.Tensor
  ) -> UpdateResult:
    return adamw_update(p, g, m, v, hyperparameters=hyperparameters, decay=rule.decay, **now)

  return update


def select(condition: tf.Tensor | None, new: tf.Tensor, old: tf.Tensor) -> tf.Tensor:
  """`new` where the scalar `condition` holds or is None, else `old`; a non-finite `new` leaves no trace."""
  return new if condition is None else tf.where(condition, new, old)


def assign_everywhere(assignments: list[tuple[tf.Variable, tf.Tensor]]) -> None:
  """Assigns values, equal on all replicas, to variables of any strategy; callable in replica context.

  Each replica writes its own copy from its own value: nothing is communicated.
  """
  variables, values = zip(*assignments, strict=True)

  def assign_all(strategy: tf.distribute.Strategy, *values: tf.Tensor) -> None:
    for variable, value in zip(variables, values, strict=True):
      strategy.extended.update(variable, lambda copy, new: copy.assign(new), args=(value,))

  # As Keras does: under XLA on GPUs the strategies have no merge_call and update in replica context.
  tf.__internal__.distribute.interim.maybe_merge_call(assign_all, tf.distribute.get_strategy(), *values)


class Optimizer(tf.Module):
  """Moments, step and weight average of every variable, updated by a pure function.

  Build it under the scope of the strategy that made the variables. `apply` runs in replica context (inside
  `strategy.run`), inside `tf.function` and `tf.while_loop`, or with no strategy at all.

  Attributes:
    step: number of completed updates, int64.
    rules: name → how that variable is updated.
  """

  def __init__(
    self,
    named_variables: Mapping[str, tf.Variable],
    *,
    update: UpdateFunction,
    rules: Mapping[str, VariableRule],
    ema_decay: float | None = None,
  ):
    """Creates the slots, all zero.

    Args:
      named_variables: checkpoint name → float32 variable.
      update: `lamb_rule(…)` or `adamw_rule(…)`.
      rules: name → decay, adaptation and rate multiplier; from `variable_rules`.
      ema_decay: d of the weight average e ← d e + (1 - d) p, or None for no average.

    Raises:
      UserError: a variable without a rule, a rule without a variable, or a decay out of range.
    """
    super().__init__(name="optimizer")
    if set(rules) != set(named_variables):
      raise UserError(
        "Every variable needs one rule. Received: differences "
        f"{sorted(set(rules) ^ set(named_variables))}. Build the rules from the same names."
      )
    if ema_decay is not None and not 0.0 < ema_decay < 1.0:
      raise UserError(
        f"ema_decay must lie between 0 and 1. Received: {ema_decay}. Use 0.999 to 0.9999, or none."
      )
    self.rules = dict(rules)
    self._update = update
    self._variables = dict(named_variables)
    self._ema_decay = ema_decay
    self._ema = self._zeros("ema") if ema_decay is not None else {}
    self.step, self._m, self._v = self._create_state()

  def _create_state(self) -> tuple[tf.Variable, dict[str, tf.Variable], dict[str, tf.Variable]]:
    """Step, first and second moments."""
    step = tf.Variable(0, trainable=False, dtype=tf.int64, name="global_step")
    return step, self._zeros("adam_m"), self._zeros("adam_v")

  def _zeros(self, suffix: str) -> dict[str, tf.Variable]:
    return {
      name: tf.Variable(tf.zeros(variable.shape), trainable=False, dtype=tf.float32, name=f"{name}/{suffix}")
      for name, variable in self._variables.items()
    }

  def slots(self) -> dict[str, tf.Variable]:
    """All per-variable state by checkpoint name: `<name>/adam_m`, `<name>/adam_v`, `<name>/ema` if kept."""
    families = {"adam_m": self._m, "adam_v": self._v, "ema": self._ema}
    return {f"{name}/{suffix}": slot for suffix, family in families.items() for name, slot in family.items()}

  def averaged_variables(self) -> dict[str, tf.Variable]:
    """Name → exponential moving average of the weights; empty when none is kept."""
    return dict(self._ema)

  def apply(
    self,
    gradients: Mapping[str, tf.Tensor],
    learning_rate: tf.Tensor | float,
    *,
    only_if: tf.Tensor | None = None,
  ) -> StepNorms:
    """Makes one update of all variables.

    Args:
      gradients: name → dense gradient, already summed over replicas and micro-batches and clipped, so
        that all replicas hold the same values.
      learning_rate: η of this update, a scalar.
      only_if: scalar bool, equal on all replicas: where it is false, weights, moments and averages stay bit
        for bit as they are and only the step moves on. None for always, at no cost.

    Returns:
      Norms of the weights before the update and of the update.

    Raises:
      UserError: gradients missing, or for unknown variables.
    """
    self._check_names(gradients)
    step = self.step + 1
    learning_rate = tf.cast(learning_rate, tf.float32)
    assignments: list[tuple[tf.Variable, tf.Tensor]] = [(self.step, step)]
    weights, deltas = {}, {}
    for name, variable in self._variables.items():
      rule = self.rules[name]
      p = weights[name] = tf.convert_to_tensor(variable)
      rate = (
        learning_rate * rule.learning_rate_multiplier
        if rule.learning_rate_multiplier != 1.0
        else learning_rate
      )
      g = tf.cast(gradients[name], tf.float32)
      m, v = tf.convert_to_tensor(self._m[name]), tf.convert_to_tensor(self._v[name])
      result = self._update(p, g, m, v, learning_rate=rate, step=step, rule=rule)
      deltas[name] = select(only_if, result.delta, tf.zeros_like(p))
      changes = [(variable, p, result.p), (self._m[name], m, result.m), (self._v[name], v, result.v)]
      if self._ema_decay is not None:
        # The average starts at the weights, whether or not the first update is made.
        average = self._ema[name] if only_if is None else tf.where(step == 1, p, self._ema[name])
        changes.append((self._ema[name], average, self._averaged(name, result.p, step)))
      assignments += [(target, select(only_if, new, old)) for target, old, new in changes]
    assign_everywhere(assignments)
    return StepNorms(weight_norm=global_norm(weights), update_norm=global_norm(deltas))

  def _averaged(self, name: str, p: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
    """e ← d e + (1 - d) p; the first update starts the average at p."""
    d = self._ema_decay or 0.0
    return tf.where(step == 1, p, d * self._ema[name] + (1.0 - d) * p)

  def _check_names(self, gradients: Mapping[str, tf.Tensor]) -> None:
    missing = sorted(
      set(self._variables) - {name for name, gradient in gradients.items() if gradient is not None}
    )
    unknown = sorted(set(gradients) - set(self._variables))
    if missing or unknown:
      raise UserError(
        f"Every variable needs one gradient. Received: none for {missing}, unknown names {unknown}. "
        "Leave unused variables out of the optimizer."
      )
