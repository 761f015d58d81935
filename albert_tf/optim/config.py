"""Settings of an update: moments, schedule, optimizer. No TensorFlow."""

from typing import Literal

from albert_tf.errors import UserError
from albert_tf.settings import Settings, setting

REFERENCE_BATCH_SIZE = 4096  # ALBERT section 4.1: batch 4096, learning rate 0.00176.


class MomentHyperparameters(Settings):
  """Hyper-parameters of the update; the defaults are those of the original ALBERT release."""

  beta_1: float = setting(0.9, "β₁, decay of the first moment.", minimum=0.0, below=1.0, flag="")
  beta_2: float = setting(0.999, "β₂, decay of the second moment.", minimum=0.0, below=1.0, flag="")
  epsilon: float = setting(1e-6, "ε, added to sqrt(v).", above=0.0, flag="")
  weight_decay: float = setting(0.01, "λ, the decay, inside LAMB's trust ratio.", minimum=0.0)
  bias_correction: bool = setting(
    False, "Divide m by 1 - β₁^t and v by 1 - β₂^t, as the LAMB paper does; the original release does not."
  )


class ScheduleConfig(Settings):
  """Linear warm-up, then polynomial decay."""

  learning_rate: float = setting(help="η₀, the peak rate.", above=0.0)
  num_train_steps: int = setting(help="T, the updates; at the last the rate is the end rate.", minimum=1)
  num_warmup_steps: int = setting(0, "W, updates of linear warm-up; 0 for none.", minimum=0)
  start_warmup_step: int = setting(
    0, "Updates before the warm-up begins; the rate is 0 until then.", minimum=0
  )
  poly_power: float = setting(1.0, "a, the power of the decay; 1 is linear.", above=0.0)
  end_learning_rate: float = setting(0.0, "η_T, the rate at the end of the decay.", minimum=0.0)
  schedule: Literal["continuous", "original"] = setting(
    "continuous",
    "'continuous' decays from the end of the warm-up; 'original' from step 0, as the release does, so that the "
    "rate jumps down to η₀ (1 - (s₀ + W) / T) after the warm-up.",
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.start_warmup_step + self.num_warmup_steps > self.num_train_steps:
      raise UserError(
        "The warm-up must end within the run. Received: "
        f"start_warmup_step={self.start_warmup_step}, num_warmup_steps={self.num_warmup_steps}, "
        f"num_train_steps={self.num_train_steps}. Shorten the warm-up (ALBERT warms up for 2.5% of the run)."
      )


class OptimizerConfig(ScheduleConfig, MomentHyperparameters):
  """Everything that decides an update of pretraining, with the values of ALBERT's section 4.1 as defaults."""

  name: Literal["lamb", "adamw", "tfa_lamb"] = setting(
    "lamb", "'tfa_lamb' is TensorFlow Addons' own (addons stack only).", flag="optimizer"
  )
  learning_rate: float = setting(0.00176, "Peak learning rate.", above=0.0)
  num_train_steps: int = setting(125_000, "Updates.", minimum=1)
  num_warmup_steps: int = setting(3_125, "Updates of linear warm-up.", minimum=0)
  clip_norm: float = setting(1.0, "Bound on the global gradient norm; 0 for none.", minimum=0.0)


def scale_learning_rate(
  learning_rate: float, batch_size: int, *, rule: Literal["none", "sqrt", "linear"]
) -> float:
  """Fits a rate η chosen for `REFERENCE_BATCH_SIZE` B₀ to another global batch B.

  none: η;  sqrt: η √(B / B₀);  linear: η B / B₀. "sqrt" suits LAMB (arXiv 1904.00962, section 4.3), "linear" SGD.

  Example:
    >>> round(scale_learning_rate(0.00176, 1024, rule="sqrt"), 8)
    0.00088
  """
  exponent = {"none": 0.0, "sqrt": 0.5, "linear": 1.0}[rule]
  return learning_rate * (batch_size / REFERENCE_BATCH_SIZE) ** exponent
