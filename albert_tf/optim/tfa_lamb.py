"""TensorFlow Addons' own LAMB behind the interface of `Optimizer`; only on the addons stack."""

from collections.abc import Mapping

import tensorflow as tf

from albert_tf import compat
from albert_tf.optim.clipping import global_norm
from albert_tf.optim.config import OptimizerConfig
from albert_tf.optim.lamb import moving_average
from albert_tf.optim.optimizer import Optimizer, StepNorms, assign_everywhere, select


class TfaLambOptimizer(Optimizer):
  """Drives `tensorflow_addons.optimizers.LAMB`, which always corrects the bias of the moments.

  Same slots, step and `apply` as `Optimizer`, so that a run can switch between the two. There are two of it, because
  Addons excludes by the names of variables, which need not be those of the checkpoint: one for the variables that
  decay and adapt, and one that excludes all of its own.

  Raises:
    UserError: on a stack without TensorFlow Addons.
  """

  def __init__(self, config: OptimizerConfig, named_variables: Mapping[str, tf.Variable]):
    lamb = compat.tensorflow_addons().optimizers.LAMB
    settings = {
      "learning_rate": lambda: self._learning_rate,
      "beta_1": config.beta_1,
      "beta_2": config.beta_2,
      "epsilon": config.epsilon,
      "weight_decay": config.weight_decay,
    }
    self._learning_rate: tf.Tensor | float = 0.0  # Set by `apply` while it is traced.
    # Whether a variable decays → its optimizer; "" is found in every name.
    self._addons = {True: lamb(**settings), False: lamb(**settings, exclude_from_weight_decay=[""])}
    super().__init__(config, named_variables)

  def _create_state(self) -> tuple[tf.Variable, dict[str, tf.Variable], dict[str, tf.Variable]]:
    # Not during the first update, whose trace may hold them in a loop.
    for kind, addons in self._addons.items():
      addons._create_all_weights(
        [self._variables[name] for name, decays in self._decays.items() if decays == kind]
      )
    m, v = (
      {
        name: self._addons[self._decays[name]].get_slot(variable, slot)
        for name, variable in self._variables.items()
      }
      for slot in ("m", "v")
    )
    return self._addons[True].iterations, m, v

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
    self._update(gradients, tf.cast(learning_rate, tf.float32))
    if only_if is not None:  # Addons' optimizer assigns by itself: what must not have happened is taken back.
      changed = zip([*self._variables.values(), *moments], [*before.values(), *moments_before], strict=True)
      assign_everywhere([(target, select(only_if, tf.identity(target), old)) for target, old in changed])
    after = {name: tf.identity(variable) for name, variable in self._variables.items()}
    if self._ema:
      assign_everywhere(
        [(self._ema[name], self._average_after(name, after[name], only_if)) for name in after]
      )
    delta = {name: before[name] - after[name] for name in before}
    return StepNorms(weight_norm=global_norm(before), update_norm=global_norm(delta))

  def _update(self, gradients: Mapping[str, tf.Tensor], learning_rate: tf.Tensor) -> None:
    # A checkpoint holds one step; it is also that of the other optimizer.
    assign_everywhere([(self._addons[False].iterations, tf.identity(self.step))])
    self._learning_rate = learning_rate
    for decays in (False, True):
      pairs = [
        (tf.cast(gradients[name], tf.float32), variable)
        for name, variable in self._variables.items()
        if self._decays[name] == decays
      ]
      if pairs:
        self._addons[decays].apply_gradients(pairs, experimental_aggregate_gradients=False)
    self._learning_rate = 0.0  # Keep no tensor of a finished trace.

  def _average_after(self, name: str, p: tf.Tensor, only_if: tf.Tensor | None) -> tf.Tensor:
    averaged = moving_average(self._ema[name], p, step=self.step, decay=self.config.ema_decay or 0.0)
    # The average starts at the weights, whether or not the first update is made.
    return averaged if only_if is None else tf.where(only_if | (self.step == 1), averaged, self._ema[name])
