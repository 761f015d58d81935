"""All settings of a pretraining run, in one frozen object that the command's flags fill."""

from collections.abc import Mapping
import dataclasses
from typing import Any, TypeVar

from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.optim.build import OptimizerConfig
from albert_tf.pipelines.record_index import DataIdentity, OnBadRecord
from albert_tf.records import PretrainingSpec
from albert_tf.training.distribution import DistributionConfig
from albert_tf.training.step import StepConfig

Part = TypeVar("Part")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingSettings:
  """What one run does.

  Attributes:
    input_files: training records, expanded and sorted.
    eval_input_files: held-out records; empty for no evaluation.
    output_dir: the run directory.
    model: the model's configuration.
    encoder_options: see `AlbertEncoder`.
    optimizer: optimizer and schedule.
    step: batch, micro-batches, seed.
    distribution: where the replicas run.
    mixed_precision: "float32" or "bfloat16".
    max_seq_length, max_predictions_per_seq: lengths of the records.
    eval_batch_size, max_eval_steps: of the held-out evaluation.
    iterations_per_loop: updates between returns to the host (and reports).
    save_checkpoints_steps: updates between checkpoints (and evaluations).
    profile_steps: first and last update of a trace; None for none.
    keep_checkpoint_max: newest checkpoints that stay.
    init_checkpoint: weights to start from; the optimizer starts anew.
    tokenizer_path: SentencePiece model or directory to copy into the run directory; empty for none.
    on_bad_record: "error" or "skip".
    baselines: metric → what a model without input reaches, drawn into the curves.
  """

  input_files: tuple[str, ...]
  output_dir: str
  model: AlbertConfig
  optimizer: OptimizerConfig
  step: StepConfig
  max_seq_length: int
  max_predictions_per_seq: int
  eval_input_files: tuple[str, ...] = ()
  encoder_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  distribution: DistributionConfig = dataclasses.field(default_factory=DistributionConfig)
  mixed_precision: str = "float32"
  eval_batch_size: int = 64
  max_eval_steps: int = 100
  iterations_per_loop: int = 1000
  save_checkpoints_steps: int = 5000
  profile_steps: tuple[int, int] | None = None
  keep_checkpoint_max: int = 5
  init_checkpoint: str = ""
  tokenizer_path: str = ""
  on_bad_record: OnBadRecord = "error"
  baselines: Mapping[str, float] = dataclasses.field(default_factory=dict)

  def __post_init__(self) -> None:
    for name in (
      "iterations_per_loop",
      "save_checkpoints_steps",
      "keep_checkpoint_max",
      "eval_batch_size",
      "max_eval_steps",
    ):
      if getattr(self, name) < 1:
        raise UserError(f"{name} must be at least 1. Received: {getattr(self, name)}.")
    if self.profile_steps and not 1 <= self.profile_steps[0] <= self.profile_steps[1] <= self.num_train_steps:
      raise UserError(
        "profile_steps must lie within the run, the first update not behind the last. Received: "
        f"{self.profile_steps[0]},{self.profile_steps[1]}; the run has updates 1 to {self.num_train_steps}. "
        "Ten updates some way behind the first are enough."
      )
    if self.max_seq_length > self.model.max_position_embeddings:
      raise UserError(
        "max_seq_length must not exceed the model's max_position_embeddings. Received: "
        f"max_seq_length={self.max_seq_length}, max_position_embeddings={self.model.max_position_embeddings}. "
        "Make shorter records or configure a larger table."
      )

  @classmethod
  def from_dict(cls, values: Mapping[str, Any]) -> "PretrainingSettings":
    """The inverse of `to_dict`, for the settings that a run wrote into run.json.

    Raises:
      UserError: a setting that this program does not know, or a value out of range.
    """
    parts: dict[str, Any] = {
      "model": AlbertConfig.from_dict(dict(values["model"])),
      "optimizer": OptimizerConfig.from_config(values["optimizer"]),
      "step": _filled(StepConfig, values["step"]),
      "distribution": _filled(DistributionConfig, values["distribution"]),
    }
    plain = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return _filled(cls, {**plain, **parts})

  @property
  def spec(self) -> PretrainingSpec:
    """Lengths of the records."""
    return PretrainingSpec(self.max_seq_length, self.max_predictions_per_seq)

  @property
  def num_train_steps(self) -> int:
    return self.optimizer.num_train_steps

  def identity(self, data: DataIdentity) -> dict[str, Any]:
    """What must not change when a run is continued; everything else may."""
    return {
      "albert_config": self.model.to_dict(),
      "optimizer": self.optimizer.name,
      "ema_decay": self.optimizer.ema_decay,
      "seed": self.step.seed,
      "records": data.fingerprint,
      "record_content": data.content,
      "order_version": data.order_version,
    }

  def to_dict(self) -> dict[str, Any]:
    """Everything as plain JSON values."""
    plain = dataclasses.asdict(
      dataclasses.replace(self, encoder_options=dict(self.encoder_options), baselines=dict(self.baselines))
    )
    return {**plain, "model": self.model.to_dict()}


def _filled(cls: type[Part], values: Mapping[str, Any]) -> Part:
  known = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
  unknown = sorted(set(values) - known)
  if unknown:
    raise UserError(
      f"The settings of a run must be known. Received: {', '.join(unknown)}, unknown to {cls.__name__}. "
      "Use the version of this package that wrote them."
    )
  return cls(**values)
