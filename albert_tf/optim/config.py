"""Settings of the optimizer: moments, schedule, clipping. No TensorFlow, so that flags are read fast."""

from typing import Literal

from albert_tf.errors import UserError
from albert_tf.settings import Settings, setting

NEWTON_SCHULZ_ROUNDS = 5  # Of an update by Muon.


class MomentHyperparameters(Settings):
  """Hyper-parameters of an update; the defaults are those of the original ALBERT release."""

  # `flag=""` for this one and for ε: nobody tunes them from a command line, and the paper gives one
  # value for all sizes.
  beta_1: float = setting(
    0.9, "β₁, decay rate of the first moment.", minimum=0.0, below=1.0, flag=""
  )
  beta_2: float = setting(
    0.999,
    "β₂, decay rate of the second moment of LAMB and AdamW: a mean over about 1 / (1 - β₂) updates. "
    "Runs of a few thousand updates learned masked LM sooner with 0.95, but not sentence order "
    "(docs/fast_recipe.md); long ones were not compared.",
    minimum=0.0,
    below=1.0,
  )
  epsilon: float = setting(1e-6, "ε, the number added to sqrt(v).", above=0.0, flag="")
  weight_decay: float = setting(
    0.01,
    "λ, weight decay, with every optimizer not for biases and LayerNorm.",
    minimum=0.0,
  )
  bias_correction: bool = setting(
    False,
    "Divide m by 1 - β₁^t and v by 1 - β₂^t, as the LAMB paper does and the original release does "
    "not. Without it AdamW's first updates are up to 6.6 times as large, which the warm-up covers; "
    "the ratio of LAMB's matrices evens it out. Not compared.",
  )


class MuonHyperparameters(Settings):
  """Hyper-parameters of the matrices that Muon updates."""

  momentum: float = setting(0.95, "μ, decay rate of the momentum.", minimum=0.0, below=1.0)
  matrix_rate_ratio: float = setting(
    1.0, "The matrices' learning rate over that of the other variables.", above=0.0
  )


class ScheduleConfig(Settings):
  """Linear warm-up, then polynomial decay; `rate_after_steps` has the equation."""

  learning_rate: float = setting(help="η₀, the peak learning rate.", above=0.0)
  num_train_steps: int = setting(help="T, the number of updates.", minimum=1)
  num_warmup_steps: int = setting(
    0, "W, the number of updates of linear warm-up; 0 for none.", minimum=0
  )
  # `flag=""` for this one and for `end_learning_rate`: they are 0 in every recipe of the paper.
  start_warmup_step: int = setting(
    0, "s₀, start of the warm-up; the learning rate is 0 before it.", minimum=0, flag=""
  )
  poly_power: float = setting(1.0, "a, power of the learning rate's decay; 1 is linear.", above=0.0)
  end_learning_rate: float = setting(
    0.0, "η_T, the learning rate at the end of the run.", minimum=0.0, flag=""
  )
  schedule: Literal["continuous", "original"] = setting(
    "continuous",
    "Where the decay starts. continuous: at the end of the warm-up. original: at update 0, as in "
    "the original release; the learning rate then drops by the warm-up's share.",
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.start_warmup_step + self.num_warmup_steps > self.num_train_steps:
      raise UserError(
        "The warm-up must end within the run. Received: "
        f"start_warmup_step={self.start_warmup_step}, num_warmup_steps={self.num_warmup_steps}, "
        f"num_train_steps={self.num_train_steps}. "
        "Shorten the warm-up; ALBERT's is 2.5% of the run, here "
        f"num_warmup_steps={max(1, self.num_train_steps // 40)}."
      )


class OptimizerConfig(ScheduleConfig, MomentHyperparameters):
  """Settings of an update of pretraining; the defaults are those of ALBERT, section 4.1."""

  name: Literal["lamb", "adamw", "muon", "tfa_lamb"] = setting(
    "lamb",
    "The optimizer; muon is Muon for the matrices of the encoder's blocks and LAMB for the rest; "
    "tfa_lamb is the LAMB of TensorFlow Addons (addons stack only).",
    flag="optimizer",
  )
  learning_rate: float = setting(
    0.00176,
    "Peak learning rate, whatever the optimizer and the batch: nothing scales it, a warning names "
    "the scaled one. To choose it, compare the held-out losses of trials at the scaled rate, its half and "
    "its double, with a warm-up in proportion. A trial must end beyond the plateau "
    "(docs/training_trouble.md). Whether its best rate is that of a long run was not measured.",
    above=0.0,
  )
  num_train_steps: int = setting(
    125_000,
    "Number of updates, with those before a restart. A run that has as many ends at once. With fewer "
    "than before a run that goes on ends its schedule sooner: its rate falls at once to that of the "
    "new schedule, then to 0 (not tried).",
    minimum=1,
  )
  num_warmup_steps: int = setting(
    3_125,
    "Number of updates of linear warm-up, at most --num_train_steps; nothing scales it, so shorten "
    "both.",
    minimum=0,
  )
  clip_norm: float = setting(
    1.0,
    "Largest global norm of the gradient of the whole batch, with every optimizer; 0: no limit.",
    minimum=0.0,
  )
  muon_learning_rate: float | None = setting(
    None,
    "Peak learning rate of the matrices that Muon updates. Default: that of the rest.",
    above=0.0,
  )
  # `flag=""`: all published runs have this value.
  muon_momentum: float = setting(
    MuonHyperparameters.momentum,
    "μ, the decay rate of Muon's momentum.",
    minimum=0.0,
    below=1.0,
    flag="",
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.muon_learning_rate is not None and self.name != "muon":
      raise UserError(
        "--muon_learning_rate is a rate of Muon. Received: "
        f"{self.muon_learning_rate} with --optimizer={self.name}. Add --optimizer=muon."
      )

  @property
  def muon_peak(self) -> float:
    """The peak learning rate of Muon's matrices. It follows the schedule of `learning_rate`."""
    if self.muon_learning_rate is None:
      return self.learning_rate
    return self.muon_learning_rate
