"""Pretrains ALBERT on TFRecords with masked LM, sentence order and LAMB, on TPUs, GPUs or the CPU.

The same command continues an interrupted run from its newest checkpoint.

Example:
  python tpu_scripts/run_pretrain.py --tpu=local --input_file='gs://bucket/records/train-*' \
    --eval_input_file='gs://bucket/records/eval-*' --output_dir=gs://bucket/run --flagfile=recipes/albert_base_v2.flags
"""

import os
from typing import TYPE_CHECKING, Literal

from albert_tf import files
from albert_tf.cli import commands, doctor
from albert_tf.configs import ModelChoice
from albert_tf.errors import StoppedError, UserError
from albert_tf.optim.config import OptimizerConfig
from albert_tf.pretraining.settings import PretrainingSettings, StepConfig
from albert_tf.runs.settings import DistributionConfig
from albert_tf.settings import Settings, setting

# At run time it would import TensorFlow before the flags are read.
if TYPE_CHECKING:
  from albert_tf.pretraining.reporter import Machine


class Command(Settings):
  """The records, and other flags that are not settings of a run."""

  input_file: str = setting("", "Training TFRecords: glob patterns with commas, quoted.")
  eval_input_file: str = setting(
    "", "Evaluation TFRecords, of documents that are not used for training."
  )
  output_dir: str = setting("", "The run directory, local or gs://.")
  spm_model_file: str = setting(
    "", "Vocabulary to copy to the run. Default: the one in the records' folder."
  )
  max_seq_length: int | None = setting(
    None, "Tokens of a row. Default: the records', else 512.", minimum=1
  )
  max_predictions_per_seq: int | None = setting(
    None, "Most masked tokens of a row. Default: the records', else 20.", minimum=1
  )
  masking: Literal["stored", "fresh"] = setting(
    "stored", "Masks for training: stored ones of the records, or fresh ones in every epoch."
  )
  masked_lm_prob: float | None = setting(
    None,
    "Share of the tokens that fresh masks cover. Default: as in the records.",
    above=0.0,
    below=1.0,
  )
  sentence_loss: Literal["auto", "on", "off"] = setting(
    "auto", "Train on the sentence labels of the records. auto: if they are of sop or nsp."
  )
  dry_run: bool = setting(
    False, "Check everything with one update and one evaluation batch; write no run."
  )
  doctor: bool = setting(False, "Only check packages, TPU and --output_dir, and print what to do.")


# The settings first: they have --output_dir too, and need it, while --doctor does not.
commands.define_flags(
  ModelChoice, StepConfig, OptimizerConfig, DistributionConfig, PretrainingSettings, Command
)


def read_settings(command: Command, distribution: DistributionConfig) -> PretrainingSettings:
  """The settings of the run that the flags and the records say."""
  from albert_tf.pretraining.record_source import describe_records

  # The records say their lengths and their vocabulary: flags only have to agree.
  input_files = files.expand_globs(command.input_file, name="--input_file")
  eval_input_files = []
  if command.eval_input_file:
    eval_input_files = files.expand_globs(command.eval_input_file, name="--eval_input_file")
  records = describe_records(
    input_files,
    eval_input_files,
    spm_model_file=command.spm_model_file,
    max_seq_length=command.max_seq_length,
    max_predictions_per_seq=command.max_predictions_per_seq,
  )
  model = commands.from_flags(ModelChoice).config(records.vocab_size)
  records.check_vocab_size(model.vocab_size)

  # Evaluation keeps the stored masks, so that its numbers stay comparable.
  masking = None
  if command.masking == "fresh":
    masking = records.masking(command.masked_lm_prob)
  elif command.masked_lm_prob is not None:
    raise UserError(
      "--masked_lm_prob needs fresh masks. Received: it with --masking=stored. Add --masking=fresh."
    )

  sentence_task = records.trained_sentence_task(command.sentence_loss)
  step = commands.from_flags(StepConfig, sentence_task=sentence_task)
  return commands.from_flags(
    PretrainingSettings,
    input_files=tuple(input_files),
    eval_input_files=tuple(eval_input_files),
    model=model,
    optimizer=commands.from_flags(OptimizerConfig),
    step=step,
    distribution=distribution,
    max_seq_length=records.max_seq_length,
    max_predictions_per_seq=records.max_predictions_per_seq,
    masking=masking,
    tokenizer_path=records.tokenizer_path,
  )


def _machine(settings: PretrainingSettings) -> "Machine":
  """What the reports of speed need: the model's FLOPs, and the devices' peak where it is known."""
  from albert_tf.planning.chips import accelerator_peak_flops
  from albert_tf.planning.estimate import STEP_PER_FORWARD, forward_flops_per_example
  from albert_tf.pretraining.reporter import Machine

  forward_flops = forward_flops_per_example(
    settings.model,
    max_seq_length=settings.max_seq_length,
    max_predictions_per_seq=settings.train_predictions,
    sentence_loss=bool(settings.step.sentence_task),
    train_depths=settings.step.train_depths,
  )
  peak_flops = 0.0
  # Google Cloud names the slice in this variable (GKE does by itself).
  accelerator = os.environ.get("TPU_ACCELERATOR_TYPE")
  if accelerator and settings.distribution.tpu:
    peak_flops = accelerator_peak_flops(accelerator)
  return Machine(model_flops_per_example=STEP_PER_FORWARD * forward_flops, peak_flops=peak_flops)


def main() -> int:
  command = commands.from_flags(Command)
  distribution = commands.from_flags(DistributionConfig)
  if command.doctor:
    return doctor.report(distribution, output_dir=command.output_dir)
  if not command.input_file or not command.output_dir:
    raise UserError(
      "A run needs its records and its directory. Received: "
      f"--input_file={command.input_file}, --output_dir={command.output_dir}. Give both."
    )
  # Before TensorFlow is loaded, which adds flags that only it knows.
  flags_text = commands.FLAGS.flags_into_string()
  commands.load_tensorflow(distribution.tpu, reads_extents=True)
  from albert_tf.pretraining.run import run_pretraining

  settings = read_settings(command, distribution)
  result = run_pretraining(
    settings, flags_text=flags_text, machine=_machine(settings), check_only=command.dry_run
  )
  # A dry run has no result.
  if result is None:
    print("dry run: settings, records, devices and model fit together; no run was written.")
  elif result.interrupted:
    raise StoppedError(f"stopped at step {result.step:,}, saved. The same command continues.")
  return 0


if __name__ == "__main__":
  commands.run(main)
