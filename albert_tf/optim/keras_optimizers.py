"""AdamW, LAMB, Muon and the schedule for `model.compile`, with the update functions of pretraining."""

from collections.abc import Sequence
import dataclasses
import re
from typing import Any, Literal

import keras
import tensorflow as tf

from albert_tf.compat import OptimizerBase, device_kind, raw_variable, variable_path
from albert_tf.optim.config import (
  MomentHyperparameters,
  MuonHyperparameters,
  OptimizerConfig,
  ScheduleConfig,
)
from albert_tf.optim.lamb import lamb_update, rate_after_steps
from albert_tf.optim.muon import MUON_PATTERN, muon_matrices, muon_update

# The original's LayerNorm|layer_norm|bias, as Keras users spell them: a bias, or any variable of a
# layer that normalizes. Whole names alone, so that a model named "debiased" is trained as any other.
KERAS_EXCLUDED_PATTERN = (
  r"(?i)(^|/)((\w+_)?bias|gamma|beta|(\w+_)?layer_?norm(alization)?(_\d+)?/\w+)$"
)


@keras.saving.register_keras_serializable(package="albert_tf")
class AdamW(OptimizerBase):
  """The original release's AdamW for `model.compile`.

  By default it has no bias correction, and clips nothing. LayerNorm and biases do not decay. Any
  Keras model may train with it. It keeps two more values for each trained one.

  Args:
    learning_rate: a float or a Keras schedule, such as `WarmupPolynomialDecay`, for all variables.
      `ReduceLROnPlateau` and others that set it need a float.
    beta_1, beta_2, epsilon: β₁ = 0.9 and β₂ = 0.999, the decay rates of the moments, and ε = 1e-6,
      added to sqrt(v).
    weight_decay_rate: λ = 0.01; an update subtracts η λ p.
    bias_correction: divide the moments by 1 - β₁^t and 1 - β₂^t.
    exclude_from_weight_decay: regular expression; variables with a matching path do not decay.
    name: the optimizer's name.
    **kwargs: arguments of every Keras optimizer, such as `global_clipnorm=1.0`, which the original
      has, `use_ema=True` or, in Keras 3, `gradient_accumulation_steps`, which counts batches.

  Raises:
    ValueError: `weight_decay` is given, which is Keras' own.

  Reference: see `albert_tf.optim.lamb.lamb_update`.
  """

  def __init__(
    self,
    learning_rate: Any = 2e-5,
    *,
    beta_1: float = MomentHyperparameters.beta_1,
    beta_2: float = MomentHyperparameters.beta_2,
    epsilon: float = MomentHyperparameters.epsilon,
    weight_decay_rate: float = MomentHyperparameters.weight_decay,
    bias_correction: bool = MomentHyperparameters.bias_correction,
    exclude_from_weight_decay: str = KERAS_EXCLUDED_PATTERN,
    name: str = "adamw",
    **kwargs: Any,
  ):
    if kwargs.get("weight_decay") is not None:
      raise ValueError(
        "Weight decay is part of the update; Keras' own is not used. Received: "
        f"weight_decay={kwargs['weight_decay']}. Use weight_decay_rate."
      )
    super().__init__(learning_rate, name=name, **kwargs)
    self.hyperparameters = MomentHyperparameters(
      beta_1=beta_1,
      beta_2=beta_2,
      epsilon=epsilon,
      weight_decay=weight_decay_rate,
      bias_correction=bias_correction,
    )
    # Not `exclude_from_weight_decay`, which is a method of Keras' optimizers.
    self.exclude_from_weight_decay_pattern = exclude_from_weight_decay

  def build(self, variables: Sequence[Any]) -> None:
    """Creates the slots `adam_m` and `adam_v`, and stores the variables' paths."""
    if getattr(self, "_built", False):
      return
    with_two_moments = self.with_two_moments(variables)
    super().build(variables)
    # By position: the stacks have other names for the arguments.
    self._m = [self.add_variable_from_reference(variable, "adam_m") for variable in variables]
    self._v = [
      self.add_variable_from_reference(variable, "adam_v") for variable in with_two_moments
    ]
    self._m_index = {self._var_key(variable): i for i, variable in enumerate(variables)}
    self._v_index = {self._var_key(variable): i for i, variable in enumerate(with_two_moments)}
    # Stored now: an update sees a replica's copy, which has another path.
    self._paths = [variable_path(variable) for variable in variables]
    self._built = True

  def with_two_moments(self, variables: Sequence[Any]) -> list[Any]:
    """The variables that have the slot `adam_v` besides `adam_m`; of `Muon` not all."""
    return list(variables)

  def decays(self, path: str) -> bool:
    """Whether the variable with this path has weight decay."""
    return not re.search(self.exclude_from_weight_decay_pattern, path)

  def adapts(self, path: str) -> bool:
    """Whether the trust ratio scales the updates of a variable; `Lamb` has one."""
    del path
    return False

  def update_step(self, gradient: Any, variable: Any, learning_rate: Any = None) -> None:
    """Makes one update of one variable; Keras calls it."""
    key = self._var_key(variable)
    path = self._paths[self._m_index[key]]
    m = raw_variable(self._m[self._m_index[key]])
    v = raw_variable(self._v[self._v_index[key]])
    if learning_rate is None:  # Keras 2 passes none.
      learning_rate = self.learning_rate

    # float32 also for a model of 16-bit variables: their updates are below such a type's rounding.
    result = lamb_update(
      tf.cast(variable, tf.float32),
      tf.cast(tf.convert_to_tensor(gradient), tf.float32),  # Indexed slices become dense, for ‖u‖.
      tf.cast(m, tf.float32),
      tf.cast(v, tf.float32),
      learning_rate=tf.cast(learning_rate, tf.float32),
      step=self.iterations + 1,
      hyperparameters=self.hyperparameters,
      decay=self.decays(path),
      adapt=self.adapts(path),
    )
    variable.assign(tf.cast(result.p, variable.dtype))
    m.assign(tf.cast(result.m, m.dtype))
    v.assign(tf.cast(result.v, v.dtype))

  def get_config(self) -> dict[str, Any]:
    """Every constructor argument."""
    config = super().get_config()
    config.pop("weight_decay", None)  # Keras' own, not used.
    moments = dataclasses.asdict(self.hyperparameters)
    config["weight_decay_rate"] = moments.pop("weight_decay")
    config["exclude_from_weight_decay"] = self.exclude_from_weight_decay_pattern
    return config | moments


@keras.saving.register_keras_serializable(package="albert_tf")
class Lamb(AdamW):
  """ALBERT's LAMB for `model.compile`: AdamW with a trust ratio.

  Args:
    learning_rate: a float or a Keras schedule.
    beta_1, beta_2, epsilon, weight_decay_rate, bias_correction, exclude_from_weight_decay: see
      `AdamW`.
    exclude_from_layer_adaptation: regular expression; variables with a matching path have no trust
      ratio; None: as `exclude_from_weight_decay`.
    name: the optimizer's name.
    **kwargs: arguments of every Keras optimizer, such as `global_clipnorm=1.0`.

  Example:
    >>> Lamb(1e-3, global_clipnorm=1.0).get_config()["epsilon"]
    1e-06

  Reference: see `albert_tf.optim.lamb.lamb_update`.
  """

  def __init__(
    self,
    learning_rate: Any = OptimizerConfig.learning_rate,
    *,
    beta_1: float = MomentHyperparameters.beta_1,
    beta_2: float = MomentHyperparameters.beta_2,
    epsilon: float = MomentHyperparameters.epsilon,
    weight_decay_rate: float = MomentHyperparameters.weight_decay,
    bias_correction: bool = MomentHyperparameters.bias_correction,
    exclude_from_weight_decay: str = KERAS_EXCLUDED_PATTERN,
    exclude_from_layer_adaptation: str | None = None,
    name: str = "lamb",
    **kwargs: Any,
  ):
    super().__init__(
      learning_rate,
      beta_1=beta_1,
      beta_2=beta_2,
      epsilon=epsilon,
      weight_decay_rate=weight_decay_rate,
      bias_correction=bias_correction,
      exclude_from_weight_decay=exclude_from_weight_decay,
      name=name,
      **kwargs,
    )
    self.exclude_from_layer_adaptation = exclude_from_layer_adaptation

  def adapts(self, path: str) -> bool:
    """Whether the trust ratio scales the updates of the variable with this path."""
    pattern = self.exclude_from_layer_adaptation
    if pattern is None:
      pattern = self.exclude_from_weight_decay_pattern
    return not re.search(pattern, path)

  def get_config(self) -> dict[str, Any]:
    """Every constructor argument."""
    config = super().get_config()
    config["exclude_from_layer_adaptation"] = self.exclude_from_layer_adaptation
    return config


@keras.saving.register_keras_serializable(package="albert_tf")
class Muon(AdamW):
  """Muon for the matrices of the encoder's blocks, AdamW for all other variables.

  AdamW and not LAMB, because an element of Muon's update has the size of one of AdamW's: one
  learning rate suits both, and a fine-tuned head has its usual optimizer.

  Args:
    learning_rate: a float or a Keras schedule.
    matrix_rate_ratio: the matrices' learning rate over `learning_rate`, in every update.
    momentum: μ of the matrices.
    matrices: regular expression; matrices (two axes) with a matching path are updated by Muon.
    beta_1, beta_2, epsilon, weight_decay_rate, bias_correction, exclude_from_weight_decay: see
      `AdamW`; the weight decay is that of the matrices, too.
    name: the optimizer's name.
    **kwargs: arguments of every Keras optimizer, such as `global_clipnorm=1.0`.

  Raises:
    UserError: a setting is out of its bounds; when it is built, no trained variable is a matrix
      with such a path.

  Example:
    >>> Muon(1e-4, matrix_rate_ratio=10.0, global_clipnorm=1.0).get_config()["momentum"]
    0.95

  Reference: see `albert_tf.optim.muon.muon_update`; arXiv 2502.16982, section 2.2, for AdamW beside it.
  """

  def __init__(
    self,
    learning_rate: Any = 2e-5,
    *,
    matrix_rate_ratio: float = MuonHyperparameters.matrix_rate_ratio,
    momentum: float = MuonHyperparameters.momentum,
    matrices: str = MUON_PATTERN,
    beta_1: float = MomentHyperparameters.beta_1,
    beta_2: float = MomentHyperparameters.beta_2,
    epsilon: float = MomentHyperparameters.epsilon,
    weight_decay_rate: float = MomentHyperparameters.weight_decay,
    bias_correction: bool = MomentHyperparameters.bias_correction,
    exclude_from_weight_decay: str = KERAS_EXCLUDED_PATTERN,
    name: str = "muon",
    **kwargs: Any,
  ):
    super().__init__(
      learning_rate,
      beta_1=beta_1,
      beta_2=beta_2,
      epsilon=epsilon,
      weight_decay_rate=weight_decay_rate,
      bias_correction=bias_correction,
      exclude_from_weight_decay=exclude_from_weight_decay,
      name=name,
      **kwargs,
    )
    self.muon_hyperparameters = MuonHyperparameters(
      momentum=momentum, matrix_rate_ratio=matrix_rate_ratio
    )
    self.matrices = matrices

  def with_two_moments(self, variables: Sequence[Any]) -> list[Any]:
    """The variables that Muon does not update: a matrix has its momentum alone, as `adam_m`."""
    shapes = {variable_path(variable): variable.shape for variable in variables}
    matrices = muon_matrices(shapes, self.matrices)
    return [variable for variable in variables if variable_path(variable) not in matrices]

  def update_step(self, gradient: Any, variable: Any, learning_rate: Any = None) -> None:
    """Makes one update of one variable; Keras calls it."""
    key = self._var_key(variable)
    if key in self._v_index:  # By AdamW.
      super().update_step(gradient, variable, learning_rate)
      return
    m = raw_variable(self._m[self._m_index[key]])
    if learning_rate is None:  # Keras 2 passes none.
      learning_rate = self.learning_rate
    weight_decay = 0.0
    if self.decays(self._paths[self._m_index[key]]):
      weight_decay = self.hyperparameters.weight_decay
    # CPUs have no fast products of 16 bits.
    product_dtype = tf.float32 if device_kind() == "cpu" else tf.bfloat16

    # float32 also for a model of 16-bit variables: their updates are below such a type's rounding.
    result = muon_update(
      tf.cast(variable, tf.float32),
      tf.cast(tf.convert_to_tensor(gradient), tf.float32),
      tf.cast(m, tf.float32),
      learning_rate=tf.cast(learning_rate, tf.float32)
      * self.muon_hyperparameters.matrix_rate_ratio,
      momentum=self.muon_hyperparameters.momentum,
      weight_decay=weight_decay,
      product_dtype=product_dtype,
    )
    variable.assign(tf.cast(result.p, variable.dtype))
    m.assign(tf.cast(result.m, m.dtype))

  def get_config(self) -> dict[str, Any]:
    """Every constructor argument."""
    config = super().get_config()
    config["matrices"] = self.matrices
    return config | dataclasses.asdict(self.muon_hyperparameters)


@keras.saving.register_keras_serializable(package="albert_tf")
class WarmupPolynomialDecay(keras.optimizers.schedules.LearningRateSchedule):
  """Linear warm-up and polynomial decay as a Keras schedule; see `rate_after_steps`.

  Args:
    learning_rate: the peak.
    num_train_steps: updates of the whole `fit`, epochs × ⌈rows / batch size⌉. Later ones have
      `end_learning_rate`, by default 0, and change nothing.
    num_warmup_steps: of these, updates of the warm-up; 0 for none.
    start_warmup_step: start of the warm-up; the rate is 0 before it.
    poly_power: power of the decay; 1 is linear.
    end_learning_rate: the rate of the last update.
    schedule: "continuous": the decay starts at the end of the warm-up; "original": at update 0, so
      that the rate drops a little after the warm-up.

  Raises:
    UserError: the warm-up does not end within the run.

  Example:
    >>> schedule = WarmupPolynomialDecay(1e-3, num_train_steps=100, num_warmup_steps=10)
    >>> round(float(schedule(0)), 6)
    0.0001
  """

  def __init__(
    self,
    learning_rate: float,
    *,
    num_train_steps: int,
    num_warmup_steps: int = ScheduleConfig.num_warmup_steps,
    start_warmup_step: int = ScheduleConfig.start_warmup_step,
    poly_power: float = ScheduleConfig.poly_power,
    end_learning_rate: float = ScheduleConfig.end_learning_rate,
    schedule: Literal["continuous", "original"] = ScheduleConfig.schedule,
  ):
    self.config = ScheduleConfig(
      learning_rate=learning_rate,
      num_train_steps=num_train_steps,
      num_warmup_steps=num_warmup_steps,
      start_warmup_step=start_warmup_step,
      poly_power=poly_power,
      end_learning_rate=end_learning_rate,
      schedule=schedule,
    )

  def __call__(self, step: Any) -> tf.Tensor:
    return rate_after_steps(step, self.config)

  def get_config(self) -> dict[str, Any]:
    """The fields of `ScheduleConfig`."""
    return dataclasses.asdict(self.config)
