"""All settings of a pretraining run, the flags of `run_pretrain.py`. No TensorFlow."""

import dataclasses
from typing import TYPE_CHECKING, Any, Literal

from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.optim.config import OptimizerConfig
from albert_tf.pipelines.masking import MaskingConfig
from albert_tf.settings import Settings, setting

if TYPE_CHECKING:  # Imports NumPy, which would make `--help` slow.
  from albert_tf.records import PretrainingSpec


class DistributionConfig(Settings):
  """Devices and precision of a command.

  Every command that trains or evaluates has these flags: `commands.define_flags(DistributionConfig)`, then
  `commands.from_flags(DistributionConfig)`. Without `distribution`: `tpu` if one is named, `multi_worker` if TF_CONFIG
  names several workers, else all GPUs if there is more than one, else one device.
  """

  tpu: str = setting(
    "",
    "TPU: 'local', a name, or grpc://host:port, with commas between the hosts of a slice. Empty: GPUs if any, "
    "else CPU.",
    aliases=("tpu_name",),
  )
  tpu_zone: str = setting("", "Zone of a TPU given by name.")
  gcp_project: str = setting("", "Project of a TPU given by name.")
  distribution: Literal["", "tpu", "mirrored", "multi_worker", "one_device"] = setting(
    "", "Overrides the choice by devices."
  )
  num_virtual_devices: int = setting(1, "Split the CPU into this many replicas.", minimum=1)
  mixed_precision: Literal["float32", "bfloat16"] | None = setting(
    None, "Default: bfloat16 on TPUs, else float32."
  )
  use_xla: bool = setting(False, "Compile with XLA on GPU or CPU; a TPU always does.")

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
    """Type of matrix products: "float32" or "bfloat16"."""
    return self.mixed_precision or ("bfloat16" if self.tpu else "float32")


class OtherDepth(Settings):
  """The depth of trained weights."""

  num_hidden_layers: int | None = setting(
    None,
    "Another depth, for a model with all weights shared by its layers. Default: the weights' own.",
    minimum=1,
  )


class DepthSettings(Settings):
  """Training of one set of weights for several depths."""

  train_depths: tuple[int, ...] = setting(
    (),
    "Each update runs one of these numbers of layers, drawn by seed and step; for example 4,8,12. The greatest is "
    "the model's own.",
    minimum=1,
  )

  def check_depths(self, model: AlbertConfig) -> None:
    """Raises a `UserError` where a model cannot be trained at these depths."""
    depths = self.train_depths
    for depth in depths:
      model.at_depth(depth)
    if depths and (len(set(depths)) < len(depths) or max(depths) != model.num_hidden_layers):
      raise UserError(
        "train_depths are different numbers, and the greatest is the model's number of layers. Received: "
        f"{','.join(map(str, depths))} for {model.num_hidden_layers} layers. Use --num_hidden_layers={max(depths)}."
      )


class StepConfig(DepthSettings):
  """How a global batch becomes one update."""

  global_batch_size: int = setting(
    4096, "Examples of one update, over all replicas.", minimum=1, flag="train_batch_size"
  )
  gradient_accumulation_steps: int = setting(
    1, "Micro-batches an update is computed in; the update is that of the whole batch.", minimum=0
  )
  seed: int = setting(
    12345, "Keys initial values, data order, dropout and fresh masks.", minimum=0, maximum=2**31 - 1
  )
  sentence_task: Literal["sentence_order", "next_sentence", ""] = setting(
    "sentence_order",
    "Meaning of the sentence labels, and name of their loss. Empty: no sentence loss; pooler and sentence head "
    "keep their values.",
    flag="",
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


class PretrainingSettings(Settings):
  """Settings of one run.

  Attributes:
    input_files, eval_input_files: training and held-out records, expanded and sorted; without held-out ones there is
      no evaluation.
    model, optimizer, step, distribution: groups of settings.
    max_seq_length, max_predictions_per_seq: lengths of the records.
    masking: fresh masks for training; None for the stored masks. Evaluation always uses the stored masks.
    tokenizer_path: vocabulary, or directory with one, to copy into the run directory; empty for none.
  """

  input_files: tuple[str, ...]
  eval_input_files: tuple[str, ...] = ()
  model: AlbertConfig
  optimizer: OptimizerConfig
  step: StepConfig
  distribution: DistributionConfig = dataclasses.field(default_factory=DistributionConfig)
  max_seq_length: int
  max_predictions_per_seq: int
  masking: MaskingConfig | None = None
  tokenizer_path: str = ""

  output_dir: str = setting(help="The run directory; local or gs://.")
  init_checkpoint: str = setting(
    "",
    "Weights to start from: a run directory, the original release, TF-Hub or a Hugging Face folder. Missing "
    "pretraining heads get initial values. The optimizer starts anew.",
  )
  remat: bool = setting(False, "Recompute activations in the backward pass: less memory, more time.")
  layer_loop: Literal["unrolled", "while"] = setting("unrolled", "How the shared block is repeated.")
  iterations_per_loop: int = setting(
    1000, "Updates between returns to the host, each with a report.", minimum=1
  )
  save_checkpoints_steps: int = setting(
    5000, "Updates between checkpoints, each with an evaluation.", minimum=1
  )
  keep_checkpoint_max: int = setting(5, "Number of newest checkpoints to keep.", minimum=1)
  keep_checkpoint_every_n_steps: int = setting(
    0, "Also keep checkpoints of multiples of this; 0: none.", minimum=0
  )
  eval_batch_size: int = setting(64, "Examples of one evaluation batch.", minimum=1)
  max_eval_steps: int = setting(100, "At most this many evaluation batches.", minimum=1)
  profile_steps: tuple[int, int] | None = setting(
    None, "Trace these updates into OUTPUT_DIR/tensorboard, for example 100,110 (both included)."
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    self.step.check_depths(self.model)
    traced = self.profile_steps
    if traced and not (len(traced) == 2 and 1 <= traced[0] <= traced[1] <= self.num_train_steps):
      raise UserError(
        "profile_steps must be the first and the last update of a trace, such as 100,110. Received: "
        f"{','.join(map(str, traced))}; the run has updates 1 to {self.num_train_steps}."
      )
    self.model.check_length(self.max_seq_length, "the records")
    if self.masking is not None and not self.tokenizer_path:
      raise UserError(
        "Fresh masks need the vocabulary, to know where words begin. Received: --masking=fresh with no spm.model "
        "or vocab.txt in the folder of the records. Name it with --spm_model_file."
      )

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

  def identity(self, record_content: str) -> dict[str, Any]:
    """Settings that must not change when a run is continued."""
    masking = {} if self.masking is None else {"masking": self.masking.to_dict()}
    depths = {"train_depths": list(self.step.train_depths)} if self.step.train_depths else {}
    return {
      **masking,
      **depths,
      "albert_config": self.model.to_dict(),
      "optimizer": self.optimizer.name,
      "seed": self.step.seed,
      "sentence_loss": "on" if self.step.sentence_task else "off",
      "record_content": record_content,
    }
