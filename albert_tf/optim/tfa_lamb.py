"""TensorFlow Addons' own LAMB behind the protocol of `Optimizer`; only on the addons stack."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from albert_tf import compat
from albert_tf.errors import UserError
from albert_tf.optim.clipping import global_norm
from albert_tf.optim.groups import VariableRule
from albert_tf.optim.moments import MomentHyperparameters
from albert_tf.optim.optimizer import Optimizer, StepNorms, assign_everywhere, lamb_rule, select


class TfaLambOptimizer(Optimizer):
  """Drives `tensorflow_addons.optimizers.LAMB`, which always corrects the bias of the moments.

  Same slots, step and `apply` as `Optimizer`, so that a run can switch between the two.

  Raises:
    UserError: on a stack without TensorFlow Addons, or with learning-rate multipliers.
  """

  def __init__(
    self,
    named_variables: Mapping[str, tf.Variable],
    *,
    hyperparameters: MomentHyperparameters,
    rules: Mapping[str, VariableRule],
    ema_decay: float | None = None,
  ):
    if any(rule.learning_rate_multiplier != 1.0 for rule in rules.values()):
      raise UserError(
        "TensorFlow Addons' LAMB has one rate for all variables. Received: learning-rate multipliers. "
        "Use --optimizer=lamb."
      )
    self._learning_rate: tf.Tensor | float = 0.0  # Set by `apply` while it is traced.
    self._addons = self._build_addons(hyperparameters, rules, named_variables)
    super().__init__(named_variables, update=lamb_rule(hyperparameters), rules=rules, ema_decay=ema_decay)

  def _build_addons(
    self,
    hyperparameters: MomentHyperparameters,
    rules: Mapping[str, VariableRule],
    named_variables: Mapping[str, tf.Variable],
  ) -> Any:
    strategy = tf.distribute.get_strategy()
    rule_of = {}  # By identity: the names of variables need not be those of the checkpoint.
    for name, variable in named_variables.items():
      for copy in (variable, *strategy.experimental_local_results(variable)):
        rule_of[id(copy)] = rules[name]

    addons_lamb: Any = compat.tensorflow_addons().optimizers.LAMB

    class Lamb(addons_lamb):
      """The exclusions of the original follow from our groups."""

      def _do_use_weight_decay(self, variable: tf.Variable) -> bool:
        return rule_of[id(variable)].decay

      def _do_layer_adaptation(self, variable: tf.Variable) -> bool:
        return rule_of[id(variable)].adapt

    return Lamb(
      learning_rate=lambda: self._learning_rate,
      beta_1=hyperparameters.beta_1,
      beta_2=hyperparameters.beta_2,
      epsilon=hyperparameters.epsilon,
      weight_decay=hyperparameters.weight_decay,
    )

  def _create_state(self) -> tuple[tf.Variable, dict[str, tf.Variable], dict[str, tf.Variable]]:
    self._addons._create_all_weights(list(self._variables.values()))
    m, v = (
      {name: self._addons.get_slot(variable, slot) for name, variable in self._variables.items()}
      for slot in ("m", "v")
    )
    return self._addons.iterations, m, v

  def apply(
    self,
    gradients: Mapping[str, tf.Tensor],
    learning_rate: tf.Tensor | float,
    *,
    only_if: tf.Tensor | None = None,
  ) -> StepNorms:
    """As `Optimizer.apply`."""
    self._check_names(gradients)
    before = {name: tf.identity(variable) for name, variable in self._variables.items()}
    moments = [*self._m.values(), *self._v.values()] if only_if is not None else []
    moments_before = [tf.identity(moment) for moment in moments]
    self._learning_rate = tf.cast(learning_rate, tf.float32)
    self._addons.apply_gradients(
      [(tf.cast(gradients[name], tf.float32), variable) for name, variable in self._variables.items()],
      experimental_aggregate_gradients=False,
    )
    self._learning_rate = 0.0  # Keep no tensor of a finished trace.
    if only_if is not None:  # Addons' optimizer assigns by itself: what must not have happened is taken back.
      changed = [*self._variables.values(), *moments]
      olds = [*before.values(), *moments_before]
      assign_everywhere(
        [
          (target, select(only_if, tf.convert_to_tensor(target), old))
          for target, old in zip(changed, olds, strict=True)
        ]
      )
    after = {name: tf.identity(variable) for name, variable in self._variables.items()}
    if self._ema_decay is not None:
      assign_everywhere(
        [(self._ema[name], self._average_after(name, after[name], only_if)) for name in after]
      )
    delta = {name: before[name] - after[name] for name in before}
    return StepNorms(weight_norm=global_norm(before), update_norm=global_norm(delta))

  def _average_after(self, name: str, p: tf.Tensor, only_if: tf.Tensor | None) -> tf.Tensor:
    averaged = self._averaged(name, p, self.step)
    # The average starts at the weights, whether or not the first update is made.
    return averaged if only_if is None else tf.where(only_if | (self.step == 1), averaged, self._ema[name])
