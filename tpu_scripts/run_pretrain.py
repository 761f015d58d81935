"""Pretrains ALBERT on TFRecords with masked LM, sentence order and LAMB, on TPUs, GPUs or the CPU.

The same command continues an interrupted run from its newest checkpoint.

Example:
  python tpu_scripts/run_pretrain.py --tpu=local --input_file='gs://bucket/records/train-*' \
    --eval_input_file='gs://bucket/records/eval-*' --output_dir=gs://bucket/run --flagfile=recipes/albert_base_v2.flags
"""

import os
from typing import TYPE_CHECKING

from albert_tf.cli import commands
from albert_tf.configs import ModelChoice
from albert_tf.errors import StoppedError
from albert_tf.optim.config import OptimizerConfig
from albert_tf.pretraining.settings import (
  PretrainingSettings,
  RunOptions,
  StepConfig,
  TrainingRecords,
)
from albert_tf.runs.settings import DistributionConfig
from albert_tf.settings import Settings, setting

# At run time it would import TensorFlow before the flags are read.
if TYPE_CHECKING:
  from albert_tf.pretraining.reporter import Machine


class Command(Settings):
  """The flags that are not settings of a run."""

  dry_run: bool = setting(
    False, "Check everything with one update and one evaluation batch; write no run."
  )
  show_update: int | None = setting(
    None,
    "Print the first examples that this update trains on, with its masks, and stop; write no run.",
    minimum=1,
  )


commands.define_flags(
  TrainingRecords, ModelChoice, StepConfig, OptimizerConfig, DistributionConfig, RunOptions, Command
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
  # All flags are read, and their values checked, before TensorFlow is loaded.
  command = commands.from_flags(Command)
  records = commands.from_flags(TrainingRecords)
  model = commands.from_flags(ModelChoice)
  step = commands.from_flags(StepConfig)
  optimizer = commands.from_flags(OptimizerConfig)
  distribution = commands.from_flags(DistributionConfig)
  options = commands.from_flags(RunOptions)
  # TensorFlow adds flags that only it knows.
  flags_text = commands.FLAGS.flags_into_string()

  commands.load_tensorflow(distribution.tpu, reads_extents=True)
  from albert_tf.pretraining.from_records import settings_from_records
  from albert_tf.pretraining.run import run_pretraining

  settings = settings_from_records(
    records,
    model=model,
    optimizer=optimizer,
    step=step,
    distribution=distribution,
    **vars(options),
  )
  if command.show_update is not None:
    from albert_tf.pretraining.shown_examples import examples_of_update

    for text in examples_of_update(settings, command.show_update):
      print(text)
    return 0
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
