"""Pretrains ALBERT from TFRecords: masked LM and sentence order, LAMB, on TPUs, GPUs or the CPU.

Running the same command again continues an interrupted run exactly where it was.

Example:
  python tpu_scripts/run_pretrain.py --tpu=local --input_file='gs://bucket/records/train-*' \
    --eval_input_file='gs://bucket/records/eval-*' --output_dir=gs://bucket/run --flagfile=recipes/albert_base_v2.flags
"""

from collections.abc import Sequence
import os
import sys
from typing import TYPE_CHECKING

from absl import app, flags
from flag_settings import from_flags, parse_flags

from albert_tf import commands, doctor, files
from albert_tf.configs import ModelChoice
from albert_tf.errors import UserError, exit_on_user_error
from albert_tf.optim.config import (
  OPTIMIZER_NAMES,
  SCALING_RULES,
  SCHEDULE_NAMES,
  OptimizerConfig,
  scale_learning_rate,
)
from albert_tf.startup import load_tensorflow, read_buckets_in_extents
from albert_tf.training.settings import (
  MASKINGS,
  ON_NONFINITE,
  PRECISIONS,
  SELECT_BEST,
  DistributionConfig,
  PretrainingSettings,
  StepConfig,
)

if TYPE_CHECKING:  # At run time it would import TensorFlow before the flags are read.
  from albert_tf.training.reporting.goodput import Machine

commands.define_flags(DistributionConfig)
commands.define_flags(ModelChoice)
EXIT_PREEMPTED = 143  # What a shell reports for SIGTERM.
FLAGS = flags.FLAGS

# Input and output.
flags.DEFINE_string("input_file", "", "Training TFRecords: comma-separated glob patterns.")
flags.DEFINE_string("eval_input_file", "", "Held-out TFRecords, of documents never trained on.")
flags.DEFINE_string("output_dir", "", "The run directory; local or gs://.")
flags.DEFINE_string(
  "init_checkpoint",
  "",
  "Weights to start from: a run directory, the original release, TF-Hub or a Hugging Face folder. A pretraining head "
  "that is not there starts anew. The optimizer starts anew.",
)
flags.DEFINE_string(
  "spm_model_file",
  "",
  "SentencePiece model to keep in the run directory. Default: the one beside the records.",
)
flags.DEFINE_enum(
  "on_bad_record",
  PretrainingSettings.on_bad_record,
  ["error", "skip"],
  "Stop at a damaged record, or verify all first and leave those out.",
)

# Model.
flags.DEFINE_bool(
  "use_one_hot_embeddings", False, "Look tokens up by a matrix product, as the original on TPUs."
)
flags.DEFINE_bool("remat", False, "Recompute activations in the backward pass: less memory, more time.")
flags.DEFINE_enum("layer_loop", "unrolled", ["unrolled", "while"], "How the shared block is repeated.")

# Batch and schedule. Defaults are the original release's (ALBERT section 4.1).
flags.DEFINE_integer("train_batch_size", 4096, "Examples of one update, over all replicas.")
flags.DEFINE_integer(
  "gradient_accumulation_steps",
  StepConfig.gradient_accumulation_steps,
  "Micro-batches an update is computed in; the update is that of the whole batch.",
)
flags.DEFINE_integer("num_train_steps", OptimizerConfig.num_train_steps, "Updates.")
flags.DEFINE_integer("num_warmup_steps", OptimizerConfig.num_warmup_steps, "Updates of linear warm-up.")
flags.DEFINE_integer(
  "start_warmup_step", OptimizerConfig.start_warmup_step, "Update at which the warm-up begins."
)
flags.DEFINE_float("learning_rate", OptimizerConfig.learning_rate, "Peak learning rate.")
flags.DEFINE_enum("scale_learning_rate", "none", SCALING_RULES, "Scale the rate by train_batch_size / 4096.")
flags.DEFINE_float("poly_power", OptimizerConfig.poly_power, "Power of the decay; 1 is linear.")
flags.DEFINE_float("end_learning_rate", OptimizerConfig.end_learning_rate, "Rate at the end of the decay.")
flags.DEFINE_enum(
  "schedule",
  OptimizerConfig.schedule,
  SCHEDULE_NAMES,
  "'original' has the release's small jump after the warm-up.",
)
flags.DEFINE_enum(
  "optimizer",
  OptimizerConfig.name,
  OPTIMIZER_NAMES,
  "'tfa_lamb' is TensorFlow Addons' own (addons stack only).",
)
flags.DEFINE_float("weight_decay", OptimizerConfig.weight_decay, "Decay, inside LAMB's trust ratio.")
flags.DEFINE_bool(
  "bias_correction", OptimizerConfig.bias_correction, "Correct the moments' bias; the release does not."
)
flags.DEFINE_float("clip_norm", OptimizerConfig.clip_norm, "Bound on the global gradient norm; 0 for none.")
flags.DEFINE_float("ema_decay", OptimizerConfig.ema_decay, "Keep an average of the weights with this decay.")
flags.DEFINE_enum(
  "on_nonfinite",
  StepConfig.on_nonfinite,
  ON_NONFINITE,
  "Stop at a loss or gradient that is not finite, or leave that update out (at most 10 in a row).",
)
flags.DEFINE_enum(
  "sentence_loss",
  "auto",
  ["auto", "on", "off"],
  "Learn the records' sentence labels; auto: of sop and nsp records, not of none and ordered ones.",
)
flags.DEFINE_integer(
  "seed", StepConfig.seed, "Keys initial values, data order, dropout and fresh masks.", lower_bound=0
)

# Records.
flags.DEFINE_integer("max_seq_length", None, "Default: the records' own, else 512.")
flags.DEFINE_integer("max_predictions_per_seq", None, "Default: the records' own, else 20.")
flags.DEFINE_enum(
  "masking", "stored", MASKINGS, "Masks of training: those of the records, or other ones in every epoch."
)
flags.DEFINE_float(
  "masked_lm_prob", None, "Share of the tokens that fresh masks cover. Default: the records' own."
)

# Loop.
flags.DEFINE_integer(
  "iterations_per_loop", PretrainingSettings.iterations_per_loop, "Updates between returns to the host."
)
flags.DEFINE_integer(
  "save_checkpoints_steps", PretrainingSettings.save_checkpoints_steps, "Updates between checkpoints."
)
flags.DEFINE_integer("report_steps", 0, "Updates between reports; 0: with every return to the host.")
flags.DEFINE_integer("eval_steps", 0, "Updates between evaluations; 0: with every checkpoint.")
flags.DEFINE_integer(
  "keep_checkpoint_max", PretrainingSettings.keep_checkpoint_max, "Newest checkpoints that stay."
)
flags.DEFINE_integer(
  "keep_checkpoint_every_n_steps", 0, "Multiples of this stay, too; 0: none.", lower_bound=0
)
flags.DEFINE_enum(
  "select_best", "held_out", SELECT_BEST, "The checkpoint others take from the run: best held out, or last."
)
flags.DEFINE_float("max_train_hours", None, "End when the run's processes have taken this long; see docs.")
flags.DEFINE_integer(
  "eval_batch_size", PretrainingSettings.eval_batch_size, "Examples of one evaluation batch."
)
flags.DEFINE_integer(
  "max_eval_steps", PretrainingSettings.max_eval_steps, "At most this many evaluation batches."
)
flags.DEFINE_string(
  "profile_steps", "", "Trace these updates into OUTPUT_DIR/tensorboard, for example 100,110 (both included)."
)
flags.DEFINE_bool(
  "dry_run",
  False,
  "Check everything, make one update and one evaluation batch on the devices, keep and write nothing.",
)
flags.DEFINE_bool(
  "doctor", False, "Only check this machine: packages, TPU, --output_dir; a line each, with what to do."
)

# Devices.
flags.DEFINE_float(
  "usd_per_hour",
  0.0,
  "Price of all devices together; reports then say what the run has cost.",
  lower_bound=0.0,
)
flags.DEFINE_enum(
  "all_reduce_dtype",
  StepConfig.all_reduce_dtype,
  PRECISIONS,
  "bfloat16 halves the gradients' traffic, inexactly.",
)


def _settings() -> PretrainingSettings:
  """What the flags and the records say; a setting with a flag of its own name is as that flag says."""
  from albert_tf.training.record_source import describe_records
  from albert_tf.training.reporting.profiling import parse_profile_steps

  distribution = commands.from_flags(DistributionConfig)
  inputs = files.expand_globs(FLAGS.input_file, what="--input_file")
  held_out = (
    files.expand_globs(FLAGS.eval_input_file, what="--eval_input_file") if FLAGS.eval_input_file else []
  )
  records = describe_records(
    inputs,
    held_out,
    spm_model_file=FLAGS.spm_model_file,
    max_seq_length=FLAGS.max_seq_length,
    max_predictions_per_seq=FLAGS.max_predictions_per_seq,
  )
  model = commands.from_flags(ModelChoice).config(records.vocab_size)
  records.check_vocab_size(model.vocab_size)
  learning_rate = scale_learning_rate(
    FLAGS.learning_rate, FLAGS.train_batch_size, rule=FLAGS.scale_learning_rate
  )
  if FLAGS.masked_lm_prob is not None and FLAGS.masking == "stored":
    raise UserError(
      "Stored masks cover what they cover. Received: --masked_lm_prob with --masking=stored. Add --masking=fresh."
    )
  return from_flags(
    PretrainingSettings,
    masking=records.masking(FLAGS.masked_lm_prob) if FLAGS.masking == "fresh" else None,
    input_files=tuple(inputs),
    eval_input_files=tuple(held_out),
    model=model,
    encoder_options={
      "use_one_hot_embeddings": FLAGS.use_one_hot_embeddings,
      "remat": FLAGS.remat,
      "layer_loop": FLAGS.layer_loop,
    },
    optimizer=from_flags(OptimizerConfig, name=FLAGS.optimizer, learning_rate=learning_rate),
    step=from_flags(
      StepConfig,
      global_batch_size=FLAGS.train_batch_size,
      use_xla=distribution.use_xla,
      sentence_task=records.trained_sentence_task(FLAGS.sentence_loss),
    ),
    max_seq_length=records.max_seq_length,
    max_predictions_per_seq=records.max_predictions_per_seq,
    distribution=distribution,
    profile_steps=parse_profile_steps(FLAGS.profile_steps),
    tokenizer_path=records.tokenizer_path,
    baselines=records.baselines,
  )


def _machine(settings: PretrainingSettings) -> "Machine":
  from albert_tf.planning.chips import accelerator_peak_flops
  from albert_tf.planning.flops import training_flops_per_example
  from albert_tf.training.reporting.goodput import Machine

  flops = training_flops_per_example(
    settings.model,
    max_seq_length=settings.max_seq_length,
    max_predictions_per_seq=settings.train_predictions,
    sentence_loss=bool(settings.step.sentence_task),
  )
  # Google Cloud names the slice in this variable (GKE does by itself).
  peak = accelerator_peak_flops(os.environ.get("TPU_ACCELERATOR_TYPE", "")) if FLAGS.tpu else 0.0
  return Machine(model_flops_per_example=flops, peak_flops=peak, usd_per_hour=FLAGS.usd_per_hour)


@exit_on_user_error
def main(argv: Sequence[str]) -> int | None:
  if len(argv) > 1:
    raise UserError(
      f"All arguments are flags. Received: {' '.join(argv[1:])}. Put values behind --name=, in quotes."
    )
  if FLAGS.doctor:
    return doctor.report(tpu=FLAGS.tpu, output_dir=FLAGS.output_dir)
  if not FLAGS.input_file or not FLAGS.output_dir:
    raise UserError(
      "A run needs its records and its directory. Received: "
      f"--input_file={FLAGS.input_file}, --output_dir={FLAGS.output_dir}. Give both."
    )
  flags_text = FLAGS.flags_into_string()  # TensorFlow adds flags that only it knows.
  read_buckets_in_extents()
  load_tensorflow(FLAGS.tpu)
  from albert_tf.training.pretraining import run_pretraining

  settings = _settings()
  result = run_pretraining(
    settings, flags_text=flags_text, machine=_machine(settings), check_only=FLAGS.dry_run
  )
  if result is None:
    print(
      "dry run: settings, records, devices and model fit together; one update and one evaluation batch were made. "
      "Nothing was written."
    )
    return 0
  if result.interrupted:
    print(f"stopped at step {result.step:,}, saved. The same command continues.", file=sys.stderr)
    return EXIT_PREEMPTED
  return 0


if __name__ == "__main__":
  app.run(main, flags_parser=parse_flags)
