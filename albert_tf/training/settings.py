"""All settings of a pretraining run, in one frozen object that the command's flags fill. No TensorFlow."""

from collections.abc import Mapping
import dataclasses
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.optim.config import OptimizerConfig
from albert_tf.settings import Settings, setting

if TYPE_CHECKING:  # At run time these would import NumPy, and the flags are read from here.
  from albert_tf.pipelines.record_index import DataIdentity, OnBadRecord
  from albert_tf.records import PretrainingSpec

OnNonfinite = Literal["stop", "skip"]
ON_NONFINITE: tuple[OnNonfinite, ...] = get_args(OnNonfinite)
MASKINGS = ("stored", "fresh")
SENTENCE_TASKS = ("sentence_order", "next_sentence", "")  # What reports call the sentence loss; "" is none.
SelectBest = Literal["held_out", "last"]
SELECT_BEST: tuple[SelectBest, ...] = get_args(SelectBest)
PRECISIONS = ("float32", "bfloat16")

Part = TypeVar("Part")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistributionConfig(Settings):
  """Where a command's replicas run, and what they compute with.

  Every command that trains or evaluates has these flags: `commands.define_flags(DistributionConfig)`, then
  `commands.from_flags(DistributionConfig)`. Without `distribution`: `tpu` if one is named, `multi_worker` if TF_CONFIG
  names several workers, else all GPUs if there is more than one, else one device.
  """

  tpu: str = setting(
    "",
    help="TPU: 'local', a name, or grpc://host:port, with commas between the hosts of a slice. Empty: GPUs if any, "
    "else CPU.",
    aliases=("tpu_name",),
  )
  tpu_zone: str = setting("", help="Zone of a TPU given by name.")
  gcp_project: str = setting("", help="Project of a TPU given by name.")
  distribution: Literal["", "tpu", "mirrored", "multi_worker", "one_device"] = setting(
    "", help="Overrides the choice by devices."
  )
  num_virtual_devices: int = setting(1, help="Split the CPU into this many replicas.", minimum=1)
  mixed_precision: Literal["float32", "bfloat16"] | None = setting(
    None, help="Default: bfloat16 on TPUs, else float32."
  )
  use_xla: bool = setting(False, help="Compile with XLA on GPU or CPU; a TPU always does.")

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.distribution == "tpu" and not self.tpu:
      raise UserError(
        "--distribution=tpu needs to know the TPU. Received: an empty --tpu. Use --tpu=local on a TPU VM."
      )
    if self.tpu and (self.distribution not in ("", "tpu") or self.use_xla):
      other = "use_xla" if self.use_xla else f"distribution={self.distribution}"
      raise UserError(f"--tpu and --{other} exclude each other. Received: --tpu={self.tpu}. Drop one.")

  @property
  def precision(self) -> str:
    """What matrix products are computed in: "float32" or "bfloat16"."""
    return self.mixed_precision or ("bfloat16" if self.tpu else "float32")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepConfig:
  """How a global batch becomes one update.

  Attributes:
    global_batch_size: examples of one update on all replicas and in all micro-batches.
    gradient_accumulation_steps: micro-batches a replica computes one after the other.
    seed: keys the dropout of every (step, replica, micro-batch).
    all_reduce_dtype: "float32", or "bfloat16" to halve the traffic at a loss of exactness.
    use_xla: compile forward and backward pass with XLA on CPU and GPU; TPUs always do.
    on_nonfinite: "stop" leaves a loss or gradient that is not finite to the loop, which stops; "skip" leaves
      that update out: weights, moments and averages stay as they are, step and data move on.
    sentence_task: one of `SENTENCE_TASKS`, what the labels of the records say; empty for no sentence loss: pooler and
      sentence head are then not trained, and keep their values.
  """

  global_batch_size: int
  gradient_accumulation_steps: int = 1
  seed: int = 12345
  all_reduce_dtype: str = "float32"
  use_xla: bool = False
  on_nonfinite: OnNonfinite = "stop"
  sentence_task: str = "sentence_order"

  def __post_init__(self) -> None:
    if self.sentence_task not in SENTENCE_TASKS:
      raise UserError(
        f"sentence_task must be one of {', '.join(map(repr, SENTENCE_TASKS))}. Received: {self.sentence_task!r}."
      )

  def micro_batch_size(self, num_replicas: int) -> int:
    """Examples of one forward pass on one replica."""
    parts = num_replicas * self.gradient_accumulation_steps
    if self.gradient_accumulation_steps < 1 or self.global_batch_size % parts:
      raise UserError(
        "train_batch_size must be divisible by replicas x gradient_accumulation_steps. Received: train_batch_size="
        f"{self.global_batch_size}, {num_replicas} replicas, gradient_accumulation_steps="
        f"{self.gradient_accumulation_steps}. Use {max(1, self.global_batch_size // max(1, parts)) * max(1, parts)}."
      )
    return self.global_batch_size // parts


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskingConfig:
  """How training records are masked anew while they are read; see `pipelines.fresh_masks`.

  Attributes:
    masked_lm_prob: share of the tokens to mask.
    max_predictions_per_seq: P of training, the most pieces masked in one sequence.
    ngram_probabilities: p(n) for n = 1, 2, … words.
    whole_word: where a word begins, whose pieces are masked together; as of the records.
    redraw_order: whether the order of the two segments is drawn anew too. Runs from before it draw masks alone.
    vocab_sha256: of the vocabulary.
  """

  masked_lm_prob: float
  max_predictions_per_seq: int
  ngram_probabilities: tuple[float, ...]
  whole_word: str = "original"
  redraw_order: bool = False
  vocab_sha256: str = ""

  def __post_init__(self) -> None:
    if not 0 < self.masked_lm_prob < 1:
      raise UserError(
        f"masked_lm_prob must lie between 0 and 1. Received: {self.masked_lm_prob}. Give a share with "
        "--masked_lm_prob; 0.15 is the paper's."
      )


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
    max_seq_length, max_predictions_per_seq: lengths of the records.
    masking: masks for training drawn anew; None for those of the records. Evaluation always takes the records'.
    eval_batch_size, max_eval_steps: of the held-out evaluation.
    iterations_per_loop: updates between returns to the host.
    save_checkpoints_steps: updates between checkpoints.
    report_steps: updates between reports; every checkpoint has one too. 0: with every return to the host.
    eval_steps: updates between evaluations; the last update has one too. 0: with every checkpoint.
    profile_steps: first and last update of a trace; None for none.
    keep_checkpoint_max: newest checkpoints that stay.
    keep_checkpoint_every_n_steps: besides these, every checkpoint of a multiple of so many updates; 0 for none.
    select_best: the checkpoint others take from the run: "held_out", best in held-out masked-LM accuracy, or "last".
    max_train_hours: of the processes, over all the run's lives; None: no bound. The schedule stays as it is.
    init_checkpoint: weights to start from; the optimizer starts anew.
    tokenizer_path: vocabulary, or directory with one, to copy into the run directory; empty for none.
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
  masking: MaskingConfig | None = None
  eval_input_files: tuple[str, ...] = ()
  encoder_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  distribution: DistributionConfig = dataclasses.field(default_factory=DistributionConfig)
  eval_batch_size: int = 64
  max_eval_steps: int = 100
  iterations_per_loop: int = 1000
  save_checkpoints_steps: int = 5000
  report_steps: int = 0
  eval_steps: int = 0
  profile_steps: tuple[int, int] | None = None
  keep_checkpoint_max: int = 5
  keep_checkpoint_every_n_steps: int = 0
  select_best: SelectBest = "held_out"
  max_train_hours: float | None = None
  init_checkpoint: str = ""
  tokenizer_path: str = ""
  on_bad_record: "OnBadRecord" = "error"
  baselines: Mapping[str, float] = dataclasses.field(default_factory=dict)

  def __post_init__(self) -> None:
    positive = "iterations_per_loop save_checkpoints_steps keep_checkpoint_max eval_batch_size max_eval_steps"
    for name in positive.split():
      if getattr(self, name) < 1:
        raise UserError(f"{name} must be at least 1. Received: {getattr(self, name)}.")
    evaluates, saves = self.eval_steps or self.save_checkpoints_steps, self.save_checkpoints_steps
    if self.report_steps < 0 or evaluates < 0 or (evaluates % saves and saves % evaluates):
      raise UserError(
        "report_steps and eval_steps are at least 0, eval_steps a multiple or a divisor of save_checkpoints_steps. "
        f"Received: {self.report_steps}, {self.eval_steps} and {saves}. Use 0 for what is usual."
      )
    if self.max_train_hours is not None and not self.max_train_hours > 0:
      raise UserError(
        f"max_train_hours must be above 0. Received: {self.max_train_hours}. Leave it out for a run without a bound."
      )
    if self.keep_checkpoint_every_n_steps % self.save_checkpoints_steps:
      raise UserError(
        "keep_checkpoint_every_n_steps must be a multiple of save_checkpoints_steps, since only what is saved can be "
        f"kept. Received: {self.keep_checkpoint_every_n_steps} and {self.save_checkpoints_steps}. Use "
        f"{max(1, self.keep_checkpoint_every_n_steps // self.save_checkpoints_steps) * self.save_checkpoints_steps}."
      )
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
    if self.masking is not None and not self.tokenizer_path:
      raise UserError(
        "Fresh masks need the vocabulary, to know where words begin. Received: --masking=fresh with records that have "
        "no spm.model or vocab.txt beside them. Name it with --spm_model_file."
      )

  @classmethod
  def from_dict(cls, values: Mapping[str, Any]) -> "PretrainingSettings":
    """The inverse of `to_dict`, for the settings that a run wrote into run.json.

    Raises:
      UserError: a setting that this program does not know, or a value out of range.
    """
    parts: dict[str, Any] = {
      "model": AlbertConfig.from_dict(dict(values["model"])),
      # Older runs noted a decay of the rate over the layers, which was always none.
      "optimizer": _filled(
        OptimizerConfig, {k: v for k, v in values["optimizer"].items() if k != "layer_decay"}
      ),
      "step": _filled(StepConfig, values["step"]),
      "distribution": _filled(DistributionConfig, values["distribution"]),
    }
    if values.get("masking") is not None:
      ngrams = tuple(values["masking"]["ngram_probabilities"])
      parts["masking"] = _filled(MaskingConfig, {**values["masking"], "ngram_probabilities": ngrams})
    plain = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return _filled(cls, {**plain, **parts})

  @property
  def spec(self) -> "PretrainingSpec":
    """Lengths of the records."""
    from albert_tf.records import PretrainingSpec

    return PretrainingSpec(self.max_seq_length, self.max_predictions_per_seq)

  @property
  def train_predictions(self) -> int:
    """P of training."""
    return self.masking.max_predictions_per_seq if self.masking else self.max_predictions_per_seq

  @property
  def num_train_steps(self) -> int:
    return self.optimizer.num_train_steps

  def identity(self, data: "DataIdentity") -> dict[str, Any]:
    """What must not change when a run is continued; everything else may."""
    masking = {} if self.masking is None else {"masking": dataclasses.asdict(self.masking)}
    return {
      **masking,
      "albert_config": self.model.to_dict(),
      "optimizer": self.optimizer.name,
      "ema_decay": self.optimizer.ema_decay,
      "seed": self.step.seed,
      "sentence_loss": "on" if self.step.sentence_task else "off",
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
