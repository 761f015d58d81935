"""The optimizers of the pretraining loop, with their slots, and the groups of variables."""

from collections.abc import Iterable, Mapping, Sequence
import re
from typing import NamedTuple

import tensorflow as tf

from albert_tf import compat
from albert_tf.errors import UserError
from albert_tf.optim.config import OptimizerConfig
from albert_tf.optim.lamb import clip_by_global_norm, global_norm, lamb_update
from albert_tf.optim.muon import muon_matrices, muon_update

Variables = Mapping[str, tf.Variable]  # By checkpoint name.

# The two groups. Decayed variables also adapt under LAMB; excluded ones do neither, as in the
# original's exclusion list. Both are of whole names: a layer named "debiased" decays.
DECAYED_PATTERN = r"(^|/)(kernel|(word|token_type|position)_embeddings|output_weights)$"
EXCLUDED_PATTERN = r"(^|/)(LayerNorm(_\d+)?/(gamma|beta)|(\w+_)?bias)$"


def assign_decay(names: Iterable[str]) -> dict[str, bool]:
  """Name → whether the variable decays (and adapts); each is in exactly one of the two groups.

  Raises:
    UserError: names match neither pattern or both.

  Example:
    >>> assign_decay(["bert/pooler/dense/bias"])
    {'bert/pooler/dense/bias': False}
  """
  decays = {name: bool(re.search(DECAYED_PATTERN, name)) for name in names}
  excluded = {name: bool(re.search(EXCLUDED_PATTERN, name)) for name in decays}
  leftovers = [name for name in decays if decays[name] == excluded[name]]
  if leftovers:
    raise UserError(
      "Every variable must match exactly one optimizer group. "
      f"Received: {'; '.join(leftovers)}. "
      "Change DECAYED_PATTERN or EXCLUDED_PATTERN in albert_tf/optim/optimizer.py."
    )
  return decays


class StepNorms(NamedTuple):
  """Global L2 norms of one update, float32 scalars."""

  gradient_norm: tf.Tensor  # ‖g‖ before clipping.
  weight_norm: tf.Tensor  # ‖p‖ before the update: the weights that the gradient belongs to.
  update_norm: tf.Tensor  # ‖η r u‖, what was subtracted.


class _NewState(NamedTuple):
  """What an update writes, by the names of variables and slots."""

  weights: dict[str, tf.Tensor]
  slots: dict[str, tf.Tensor]
  norms: StepNorms


def build_optimizer(
  config: OptimizerConfig,
  named_variables: Variables,
  *,
  accelerated: bool = False,
  use_xla: bool = False,
) -> "Optimizer":
  """Makes the optimizer `config.name` for these variables; call it under the strategy's scope.

  Args:
    named_variables: checkpoint name → float32 variable to train.
    accelerated: whether products of Muon have 16 bits: those of a model that is, see `Encoder`.
    use_xla: compile the update for CPU and GPU. TensorFlow Addons' is never compiled.

  Raises:
    UserError: Muon finds no matrix among them, or TensorFlow Addons are missing.

  Example:
    >>> optimizer = build_optimizer(OptimizerConfig(), {"kernel": tf.Variable(tf.ones([2, 3]))})
    >>> sorted(optimizer.slots())
    ['kernel/adam_m', 'kernel/adam_v']
  """
  if config.name == "tfa_lamb":
    return TfaLambOptimizer(config, named_variables)
  return Optimizer(config, named_variables, accelerated=accelerated, use_xla=use_xla)


class Optimizer(tf.Module):
  """Moments of every variable and the step, updated by `lamb_update` or `muon_update`.

  Build it under the scope of the strategy that made the variables. `apply` runs in replica context
  (inside `strategy.run`), inside `tf.function` and `tf.while_loop`, or without a strategy.

  Attributes:
    config: the settings.
    named_variables: checkpoint name → variable to train.
    step: number of completed updates, int64.
  """

  def __init__(
    self,
    config: OptimizerConfig,
    named_variables: Variables,
    *,
    accelerated: bool = False,
    use_xla: bool = False,
  ):
    super().__init__(name="optimizer")
    self.config = config
    self.named_variables = dict(named_variables)
    self._decays = assign_decay(named_variables)
    # Those that Muon updates.
    self._matrices: frozenset[str] = frozenset()
    if config.name == "muon":
      self._matrices = muon_matrices(
        {name: variable.shape for name, variable in named_variables.items()}
      )
    self._product_dtype = tf.bfloat16 if accelerated else tf.float32
    # For GPUs: a few fused kernels in place of hundreds. A CPU hardly gains (docs/log.md), and a TPU
    # compiles the update with the rest of the step.
    self._new_state = self._compute_new_state
    if use_xla:
      self._new_state = tf.function(self._compute_new_state, autograph=False, jit_compile=True)
    self._slots: dict[str, tf.Variable] = {}
    self._create_state()

  def _create_state(self) -> None:
    """Makes the step and the moments: two of every variable, one of those that Muon updates."""
    self.step = tf.Variable(0, trainable=False, dtype=tf.int64, name="global_step")
    for suffix in ("adam_m", "adam_v"):
      for name, variable in self.named_variables.items():
        if suffix == "adam_v" and name in self._matrices:
          continue
        slot = f"{name}/{suffix}"
        zeros = tf.zeros(variable.shape)
        self._slots[slot] = tf.Variable(zeros, trainable=False, dtype=tf.float32, name=slot)

  def slots(self) -> dict[str, tf.Variable]:
    """All per-variable state by checkpoint name: `<name>/adam_m`, `<name>/adam_v`.

    The momentum of Muon is a first moment, and named so.
    """
    return dict(self._slots)

  def apply(
    self, gradients: Mapping[str, tf.Tensor], learning_rate: tf.Tensor | float
  ) -> StepNorms:
    """Clips the gradients by `config.clip_norm` and makes one update of all variables.

    Args:
      gradients: name → dense gradient, already summed over replicas and micro-batches, so that all
        replicas hold the same values.
      learning_rate: η of this update, a scalar.
    """
    step = self.step + 1
    new = self._new_state(
      _read(self.named_variables), _read(self._slots), dict(gradients), learning_rate, step
    )
    # Assigned together: replicas meet once for an update, not once for each variable.
    assignments: list[tuple[tf.Variable, tf.Tensor]] = [(self.step, step)]
    assignments.extend((self.named_variables[name], value) for name, value in new.weights.items())
    assignments.extend((self._slots[name], value) for name, value in new.slots.items())
    assign_everywhere(assignments)
    return new.norms

  def _compute_new_state(
    self,
    weights: dict[str, tf.Tensor],
    slots: dict[str, tf.Tensor],
    gradients: dict[str, tf.Tensor],
    learning_rate: tf.Tensor | float,
    step: tf.Tensor,
  ) -> _NewState:
    """The values after update number `step`; assigns nothing."""
    gradients, gradient_norm = clip_by_global_norm(gradients, self.config.clip_norm)
    new_weights: dict[str, tf.Tensor] = {}
    new_slots: dict[str, tf.Tensor] = {}
    deltas: dict[str, tf.Tensor] = {}
    for name, weight in weights.items():
      if name in self._matrices:
        moved = muon_update(
          weight,
          gradients[name],
          slots[f"{name}/adam_m"],
          learning_rate=learning_rate * (self.config.muon_peak / self.config.learning_rate),
          momentum=self.config.muon_momentum,
          weight_decay=self.config.weight_decay,
          product_dtype=self._product_dtype,
        )
        new_weights[name] = moved.p
        new_slots[f"{name}/adam_m"] = moved.m
        deltas[name] = moved.delta
        continue
      decays = self._decays[name]
      result = lamb_update(
        weight,
        gradients[name],
        slots[f"{name}/adam_m"],
        slots[f"{name}/adam_v"],
        learning_rate=learning_rate,
        step=step,
        hyperparameters=self.config,
        decay=decays,
        adapt=decays and self.config.name != "adamw",
      )
      new_weights[name] = result.p
      new_slots[f"{name}/adam_m"] = result.m
      new_slots[f"{name}/adam_v"] = result.v
      deltas[name] = result.delta
    norms = StepNorms(gradient_norm, global_norm(weights), global_norm(deltas))
    return _NewState(new_weights, new_slots, norms)


def _read(variables: Mapping[str, tf.Variable]) -> dict[str, tf.Tensor]:
  """The values of this replica's copies."""
  return {name: tf.convert_to_tensor(variable) for name, variable in variables.items()}


class TfaLambOptimizer(Optimizer):
  """LAMB of TensorFlow Addons, which always corrects the bias of the moments.

  It has the slots, step and `apply` of `Optimizer`. It uses two Addons optimizers: one for
  variables with weight decay and trust ratio, one for the others. Addons itself can exclude only by
  variable names, not by checkpoint names.
  """

  def __init__(self, config: OptimizerConfig, named_variables: Variables):
    lamb = compat.tensorflow_addons().optimizers.LAMB
    self._learning_rate: tf.Tensor | float = 0.0  # Set by `apply` while it is traced.
    settings = {
      "learning_rate": lambda: self._learning_rate,
      "beta_1": config.beta_1,
      "beta_2": config.beta_2,
      "epsilon": config.epsilon,
      "weight_decay": config.weight_decay,
    }
    # Whether a variable decays → its optimizer; "" is found in every name.
    self._addons = {
      True: lamb(**settings),
      False: lamb(**settings, exclude_from_weight_decay=[""]),
    }
    super().__init__(config, named_variables)

  def _group(self, decays: bool) -> list[str]:
    """The names of the variables that decay, or of the others."""
    return [name for name in self.named_variables if self._decays[name] == decays]

  def _create_state(self) -> None:
    # Created now: the first update may be traced inside a loop.
    for decays, addons in self._addons.items():
      addons._create_all_weights([self.named_variables[name] for name in self._group(decays)])
    self.step = self._addons[True].iterations
    for slot in ("m", "v"):
      for name, variable in self.named_variables.items():
        addons = self._addons[self._decays[name]]
        self._slots[f"{name}/adam_{slot}"] = addons.get_slot(variable, slot)

  def apply(
    self, gradients: Mapping[str, tf.Tensor], learning_rate: tf.Tensor | float
  ) -> StepNorms:
    """Makes one update of all variables; see `Optimizer.apply`."""
    weights = {name: tf.identity(variable) for name, variable in self.named_variables.items()}
    # A checkpoint holds one step; it is also that of the other optimizer.
    assign_everywhere([(self._addons[False].iterations, tf.identity(self.step))])
    self._learning_rate = learning_rate
    gradients, gradient_norm = clip_by_global_norm(gradients, self.config.clip_norm)
    for decays in (False, True):
      pairs = [(gradients[name], self.named_variables[name]) for name in self._group(decays)]
      if pairs:
        # The gradients are summed over the replicas already.
        self._addons[decays].apply_gradients(pairs, experimental_aggregate_gradients=False)
    self._learning_rate = 0.0  # Keep no tensor of a finished trace.
    deltas = {name: weights[name] - variable for name, variable in self.named_variables.items()}
    return StepNorms(gradient_norm, global_norm(weights), global_norm(deltas))


def assign_everywhere(assignments: Sequence[tuple[tf.Variable, tf.Tensor]]) -> None:
  """Assigns values that are equal on all replicas, in replica context, to variables of any strategy.

  Each replica writes its own copy, without communication.
  """
  variables = [variable for variable, _ in assignments]
  values = [value for _, value in assignments]

  def assign_all(strategy: tf.distribute.Strategy, *values: tf.Tensor) -> None:
    for variable, value in zip(variables, values, strict=True):
      strategy.extended.update(variable, lambda copy, new: copy.assign(new), args=(value,))

  # As Keras does: under XLA on GPUs the strategies have no merge_call and update in replica context.
  distribute = tf.__internal__.distribute
  distribute.interim.maybe_merge_call(assign_all, tf.distribute.get_strategy(), *values)
