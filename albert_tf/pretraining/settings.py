"""All settings of a pretraining run, the flags of `run_pretrain.py`. No TensorFlow."""

import dataclasses
from typing import Any, Literal

from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.optim.config import OptimizerConfig
from albert_tf.records.features import PretrainingSpec, RecordRules
from albert_tf.records.manifest import SentenceTask
from albert_tf.records.masking import MaskingConfig
from albert_tf.runs.settings import (
  MOST_EXAMPLES,
  DepthSettings,
  DistributionConfig,
  micro_batch_size,
)
from albert_tf.settings import Settings, setting


class StepConfig(DepthSettings):
  """How a global batch becomes one update."""

  global_batch_size: int = setting(
    4096,
    "Examples of one update, over all replicas together; divisible by replicas x "
    "--gradient_accumulation_steps, and at most the number of records. How good more updates of a "
    "smaller one are was not compared: give as many rows, updates x batch, as the larger would read.",
    minimum=1,
    maximum=MOST_EXAMPLES,
    flag="train_batch_size",
  )
  gradient_accumulation_steps: int = setting(
    1,
    "Number of micro-batches that each batch is computed in, to save memory. 0 is for "
    "compile_for_tpu.py alone: it chooses a number.",
    minimum=0,
  )
  masked_lm_only_steps: int = setting(
    0,
    "Updates at the start that train the encoder on masked LM alone, before the sentence loss "
    "joins; until then it counts a thousandth. Small models learn masked LM sooner so; try a third "
    "of the run.",
    minimum=0,
  )
  seed: int = setting(
    12345,
    "Seed of all random choices: initial weights, dropout, order of the records, fresh masks.",
    minimum=0,
    maximum=2**31 - 1,
  )
  sentence_task: SentenceTask = setting(
    "sentence_order",
    "Meaning of the sentence labels, and name of their loss. Empty: no sentence loss, and pooler "
    "and sentence head are not trained.",
    flag="",
  )

  def micro_batch_size(self, num_replicas: int) -> int:
    """Examples of one forward pass on one replica.

    Raises:
      UserError: the batch cannot be divided, or the number of micro-batches is left open.
    """
    if not self.gradient_accumulation_steps:
      raise UserError(
        "A run needs its number of micro-batches. Received: --gradient_accumulation_steps=0, with "
        "which compile_for_tpu.py chooses one for a TPU. Give the number that it prints, or 1."
      )
    return micro_batch_size(
      self.global_batch_size,
      num_replicas=num_replicas,
      gradient_accumulation_steps=self.gradient_accumulation_steps,
    )


class TrainingRecords(Settings):
  """The records of a run, and what it learns from them."""

  input_file: str = setting(
    help="Training TFRecords: glob patterns with commas, quoted: many names, as the shell writes without "
    "quotes, are refused. All have one vocabulary, length and number of predictions."
  )
  eval_input_file: str = setting(
    "",
    "Evaluation TFRecords, of documents that are not used for training. Empty: no evaluation; "
    "evaluate.py can do it later.",
  )
  spm_model_file: str = setting(
    "", "Vocabulary to copy to the run. Default: the one in the records' folder."
  )
  max_seq_length: int | None = setting(
    None, "Tokens of a row: a check, as other records are refused. Default: as in them.", minimum=1
  )
  max_predictions_per_seq: int | None = setting(
    None,
    "Most masked tokens of a row: a check too. With --masked_lm_prob a row has as many as the share "
    "takes. Default: as in the records.",
    minimum=1,
  )
  masking: Literal["stored", "fresh"] = setting(
    "stored", "Masks for training: stored ones of the records, or fresh ones in every epoch."
  )
  masked_lm_prob: float | None = setting(
    None,
    "Share of the tokens that fresh masks cover, in training alone. Default: as in the records.",
    above=0.0,
    below=1.0,
  )
  sentence_loss: Literal["auto", "on", "off"] = setting(
    "auto", "Train on the sentence labels of the records. auto: if they are of sop or nsp."
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.masking == "stored" and self.masked_lm_prob is not None:
      raise UserError(
        "--masked_lm_prob needs fresh masks. Received: "
        f"{self.masked_lm_prob} with --masking=stored. Add --masking=fresh."
      )


class RunOptions(Settings):
  """Where a run writes and begins, how its program is built, and when it returns to the host."""

  # Where the run writes, and where its weights come from.
  output_dir: str = setting(
    help="The run directory, local or gs://: a new one, or that of the run to continue. To begin "
    "again at step 0 remove it: no flag does."
  )
  init_checkpoint: str = setting(
    "",
    "Weights to start from: a run directory, an original checkpoint, a TF-Hub module or a Hugging "
    "Face folder. Missing pretraining heads get initial values. Without effect once the run has a "
    "checkpoint.",
  )
  # Memory, time and size of the program; the update is the same.
  remat: bool = setting(
    False,
    "Recompute activations in the backward pass, to save memory; a step takes about a third longer.",
  )
  layer_loop: Literal["unrolled", "while"] = setting(
    "unrolled",
    "Whether the program repeats the shared block's code for each layer, or runs it in a while "
    "loop. while compiles faster, and needs one block for all layers.",
  )
  # When the devices return to the host, and what it does then.
  iterations_per_loop: int = setting(
    1000,
    "Updates that the devices run between two reports. Signals are noticed then.",
    minimum=1,
  )
  save_checkpoints_steps: int = setting(
    5000,
    "Updates between two checkpoints with evaluation. The last update has both too.",
    minimum=1,
  )
  keep_checkpoint_max: int = setting(
    5,
    "Number of newest checkpoints to keep. A better, older one is not kept. For a backup copy the whole "
    "run directory, also while the run goes on: a start removes unfinished files from the copy. If a "
    "checkpoint went while it was copied, the start names it: remove it from the copy.",
    minimum=1,
  )
  eval_batch_size: int = setting(
    64,
    "Examples of one evaluation batch, over all replicas together; divisible by their number.",
    minimum=1,
    maximum=MOST_EXAMPLES,
  )
  max_eval_steps: int = setting(
    100, "Largest number of batches of an evaluation: always the first ones.", minimum=1
  )
  profile_steps: tuple[int, int] | None = setting(
    None,
    "First and last update to profile, such as 100,110; the trace is written to "
    "OUTPUT_DIR/tensorboard.",
  )


class PretrainingSettings(RunOptions):
  """Settings of one run; `from_records` makes them from records and a few choices.

  Attributes:
    input_files, eval_input_files: training and held-out records, expanded and sorted; without
      held-out ones there is no evaluation.
    model, optimizer, step, distribution: groups of settings.
    max_seq_length, max_predictions_per_seq: lengths of the records.
    masking: fresh masks for training; None for the stored masks. Evaluation always uses the stored
      masks.
    tokenizer_path: vocabulary, or directory with one, to copy into the run directory; empty for
      none.
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

  def __post_init__(self) -> None:
    super().__post_init__()
    # What two groups of settings must agree on; each group has checked itself.
    self.model.check_train_depths(self.step.train_depths)
    traced = self.profile_steps
    if traced and not (len(traced) == 2 and 1 <= traced[0] <= traced[1] <= self.num_train_steps):
      raise UserError(
        "profile_steps must be the first and the last update of a trace, such as 100,110. "
        f"Received: {','.join(map(str, traced))}; the run has updates 1 to {self.num_train_steps}."
      )
    if self.step.masked_lm_only_steps:
      if not self.step.sentence_task:
        raise UserError(
          "--masked_lm_only_steps holds a sentence loss back, and there is none. Received: "
          f"{self.step.masked_lm_only_steps}. Leave it out, or train on records with pairs."
        )
      if self.step.masked_lm_only_steps >= self.num_train_steps:
        raise UserError(
          "--masked_lm_only_steps must be less than --num_train_steps, or the sentence loss never "
          f"joins. Received: {self.step.masked_lm_only_steps}, of {self.num_train_steps}. For masked "
          "LM alone take --sentence_loss=off."
        )
    self.model.check_length(self.max_seq_length, "the records")
    if self.masking is not None and not self.tokenizer_path:
      raise UserError(
        "Fresh masks need the vocabulary, to know where words begin. Received: --masking=fresh "
        "with no spm.model or vocab.txt in the folder of the records. Name it with "
        "--spm_model_file."
      )

  @property
  def record_rules(self) -> RecordRules:
    """What the run expects of its records."""
    return RecordRules(
      PretrainingSpec(self.max_seq_length, self.max_predictions_per_seq),
      vocab_size=self.model.vocab_size,
      type_vocab_size=self.model.type_vocab_size,
    )

  @property
  def train_predictions(self) -> int:
    """P of training."""
    if self.masking is not None:  # Another share of masks needs another number of predictions.
      return self.masking.max_predictions_per_seq
    return self.max_predictions_per_seq

  @property
  def num_train_steps(self) -> int:
    return self.optimizer.num_train_steps

  def identity(self, record_content: str) -> dict[str, Any]:
    """Settings that must not change when a run is continued."""
    values: dict[str, Any] = {
      "albert_config": self.model.to_dict(),
      "optimizer": self.optimizer.name,
      "seed": self.step.seed,
      "sentence_loss": "on" if self.step.sentence_task else "off",
      # The content and not the path: records may move between two starts.
      "record_content": record_content,
    }
    if self.optimizer.name == "muon":
      # Together: what the two rates are to each other decides how the blocks and the rest move.
      values["muon"] = {
        "learning_rate": self.optimizer.learning_rate,
        "muon_learning_rate": self.optimizer.muon_peak,
        "muon_momentum": self.optimizer.muon_momentum,
      }
    if self.masking is not None:
      values["masking"] = self.masking.to_dict()
    if self.step.masked_lm_only_steps:
      values["masked_lm_only_steps"] = self.step.masked_lm_only_steps
    if self.step.train_depths:
      values["train_depths"] = list(self.step.train_depths)
    return values
