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
import device_flags

from albert_tf import doctor, files
from albert_tf.configs import SHARING_KINDS, AlbertConfig, named_sizes
from albert_tf.errors import UserError, exit_on_user_error
from albert_tf.startup import load_tensorflow, read_buckets_in_extents

if TYPE_CHECKING:  # At run time these would import TensorFlow before the flags are read.
  from albert_tf.optim.build import OptimizerConfig
  from albert_tf.training.goodput import Machine
  from albert_tf.training.settings import PretrainingSettings

flags.adopt_module_key_flags(device_flags)  # --help shows them too.
EXIT_PREEMPTED = 143  # What a shell reports for SIGTERM.

# Input and output.
_INPUT_FILE = flags.DEFINE_string("input_file", "", "Training TFRecords: comma-separated glob patterns.")
_EVAL_INPUT_FILE = flags.DEFINE_string(
  "eval_input_file", "", "Held-out TFRecords, of documents never trained on."
)
_OUTPUT_DIR = flags.DEFINE_string("output_dir", "", "The run directory; local or gs://.")
_INIT_CHECKPOINT = flags.DEFINE_string(
  "init_checkpoint", "", "Weights to start from: a run directory or checkpoint. The optimizer starts anew."
)
_SPM_MODEL_FILE = flags.DEFINE_string(
  "spm_model_file",
  "",
  "SentencePiece model to keep in the run directory. Default: the one beside the records.",
)
_ON_BAD_RECORD = flags.DEFINE_enum(
  "on_bad_record",
  "error",
  ["error", "skip"],
  "Stop at a damaged record, or verify all first and leave those out.",
)

# Model.
_SIZE = flags.DEFINE_enum(
  "size", None, named_sizes(), "A named size; its vocabulary size becomes the records'."
)
_ALBERT_CONFIG_FILE = flags.DEFINE_string("albert_config_file", None, "JSON of the model, instead of --size.")
_SHARING = flags.DEFINE_enum("sharing", None, list(SHARING_KINDS), "What the layers share (ALBERT, table 4).")
_USE_ONE_HOT = flags.DEFINE_bool(
  "use_one_hot_embeddings", None, "Look pieces up by a matrix product. Default: on TPUs only."
)
_REMAT = flags.DEFINE_bool(
  "remat", False, "Recompute activations in the backward pass: less memory, more time."
)
_LAYER_LOOP = flags.DEFINE_enum(
  "layer_loop", "unrolled", ["unrolled", "while"], "How the shared block is repeated."
)

# Batch and schedule. Defaults are the original release's (ALBERT section 4.1).
_TRAIN_BATCH_SIZE = flags.DEFINE_integer(
  "train_batch_size", 4096, "Examples of one update, over all replicas."
)
_GRADIENT_ACCUMULATION_STEPS = flags.DEFINE_integer(
  "gradient_accumulation_steps",
  1,
  "Micro-batches an update is computed in; the update is that of the whole batch.",
)
_NUM_TRAIN_STEPS = flags.DEFINE_integer("num_train_steps", 125_000, "Updates.")
_NUM_WARMUP_STEPS = flags.DEFINE_integer("num_warmup_steps", 3_125, "Updates of linear warm-up.")
_START_WARMUP_STEP = flags.DEFINE_integer("start_warmup_step", 0, "Update at which the warm-up begins.")
_LEARNING_RATE = flags.DEFINE_float("learning_rate", 0.00176, "Peak learning rate.")
_SCALE_LEARNING_RATE = flags.DEFINE_enum(
  "scale_learning_rate", "none", ["none", "sqrt", "linear"], "Scale the rate by train_batch_size / 4096."
)
_POLY_POWER = flags.DEFINE_float("poly_power", 1.0, "Power of the decay; 1 is linear.")
_END_LEARNING_RATE = flags.DEFINE_float("end_learning_rate", 0.0, "Rate at the end of the decay.")
_SCHEDULE = flags.DEFINE_enum(
  "schedule",
  "continuous",
  ["continuous", "original"],
  "'original' has the release's small jump after the warm-up.",
)
_OPTIMIZER = flags.DEFINE_enum(
  "optimizer",
  "lamb",
  ["lamb", "adamw", "tfa_lamb"],
  "'tfa_lamb' is TensorFlow Addons' own (addons stack only).",
)
_WEIGHT_DECAY = flags.DEFINE_float("weight_decay", 0.01, "Decay, inside LAMB's trust ratio.")
_BIAS_CORRECTION = flags.DEFINE_bool(
  "bias_correction", False, "Correct the moments' bias; the release does not."
)
_CLIP_NORM = flags.DEFINE_float("clip_norm", 1.0, "Bound on the global gradient norm; 0 for none.")
_EMA_DECAY = flags.DEFINE_float("ema_decay", None, "Keep an average of the weights with this decay.")
_ON_NONFINITE = flags.DEFINE_enum(
  "on_nonfinite",
  "stop",
  ["stop", "skip"],
  "Stop at a loss or gradient that is not finite, or leave that update out (at most 10 in a row).",
)
_SEED = flags.DEFINE_integer("seed", 12345, "Keys initial values, data order and dropout.", lower_bound=0)

# Records.
_MAX_SEQ_LENGTH = flags.DEFINE_integer("max_seq_length", None, "Default: the records' own, else 512.")
_MAX_PREDICTIONS = flags.DEFINE_integer(
  "max_predictions_per_seq", None, "Default: the records' own, else 20."
)

# Loop.
_ITERATIONS_PER_LOOP = flags.DEFINE_integer("iterations_per_loop", 1000, "Updates between reports.")
_SAVE_CHECKPOINTS_STEPS = flags.DEFINE_integer("save_checkpoints_steps", 5000, "Updates between checkpoints.")
_KEEP_CHECKPOINT_MAX = flags.DEFINE_integer("keep_checkpoint_max", 5, "Newest checkpoints that stay.")
_EVAL_BATCH_SIZE = flags.DEFINE_integer("eval_batch_size", 64, "Examples of one evaluation batch.")
_MAX_EVAL_STEPS = flags.DEFINE_integer("max_eval_steps", 100, "At most this many evaluation batches.")
_PROFILE_STEPS = flags.DEFINE_string(
  "profile_steps", "", "Trace these updates into OUTPUT_DIR/tensorboard, for example 100,110 (both included)."
)
_DRY_RUN = flags.DEFINE_bool(
  "dry_run",
  False,
  "Check everything, make one update and one evaluation batch on the devices, keep and write nothing.",
)
_DOCTOR = flags.DEFINE_bool(
  "doctor", False, "Only check this machine: packages, TPU, --output_dir; a line each, with what to do."
)

# Devices.
_USD_PER_HOUR = flags.DEFINE_float(
  "usd_per_hour",
  0.0,
  "Price of all devices together; reports then say what the run has cost.",
  lower_bound=0.0,
)
_ALL_REDUCE_DTYPE = flags.DEFINE_enum(
  "all_reduce_dtype", "float32", ["float32", "bfloat16"], "bfloat16 halves the gradients' traffic, inexactly."
)


def _model_config(records_vocab_size: int | None) -> AlbertConfig:
  if (_SIZE.value is None) == (_ALBERT_CONFIG_FILE.value is None):
    raise UserError(
      "The model is given by exactly one of --size and --albert_config_file. Received: "
      f"--size={_SIZE.value}, --albert_config_file={_ALBERT_CONFIG_FILE.value}. Give one, for example --size=base."
    )
  if _ALBERT_CONFIG_FILE.value is not None:
    config = AlbertConfig.from_json_file(_ALBERT_CONFIG_FILE.value)
  else:
    config = AlbertConfig.from_name(_SIZE.value)
    if records_vocab_size is not None:
      config = config.replace(vocab_size=records_vocab_size)
  return config if _SHARING.value is None else config.replace(sharing=_SHARING.value)


def _optimizer_config() -> "OptimizerConfig":
  from albert_tf.optim.build import OptimizerConfig
  from albert_tf.optim.schedules import scale_learning_rate

  return OptimizerConfig(
    name=_OPTIMIZER.value,
    learning_rate=scale_learning_rate(
      _LEARNING_RATE.value, batch_size=_TRAIN_BATCH_SIZE.value, rule=_SCALE_LEARNING_RATE.value
    ),
    num_train_steps=_NUM_TRAIN_STEPS.value,
    num_warmup_steps=_NUM_WARMUP_STEPS.value,
    start_warmup_step=_START_WARMUP_STEP.value,
    poly_power=_POLY_POWER.value,
    end_learning_rate=_END_LEARNING_RATE.value,
    schedule=_SCHEDULE.value,
    weight_decay=_WEIGHT_DECAY.value,
    bias_correction=_BIAS_CORRECTION.value,
    clip_norm=_CLIP_NORM.value,
    ema_decay=_EMA_DECAY.value,
  )


def _settings() -> "PretrainingSettings":
  from albert_tf.training.profiling import parse_profile_steps
  from albert_tf.training.records_source import describe_records
  from albert_tf.training.settings import PretrainingSettings
  from albert_tf.training.step import StepConfig

  use_xla = device_flags.use_xla()
  inputs = files.expand_globs(_INPUT_FILE.value, what="--input_file")
  held_out = _EVAL_INPUT_FILE.value and files.expand_globs(_EVAL_INPUT_FILE.value, what="--eval_input_file")
  records = describe_records(
    inputs,
    held_out or [],
    spm_model_file=_SPM_MODEL_FILE.value,
    max_seq_length=_MAX_SEQ_LENGTH.value,
    max_predictions_per_seq=_MAX_PREDICTIONS.value,
  )
  model = _model_config(records.vocab_size)
  records.check_vocab_size(model.vocab_size)
  one_hot = device_flags.on_tpu() if _USE_ONE_HOT.value is None else _USE_ONE_HOT.value
  return PretrainingSettings(
    input_files=tuple(inputs),
    eval_input_files=tuple(held_out or ()),
    output_dir=_OUTPUT_DIR.value,
    model=model,
    encoder_options={
      "use_one_hot_embeddings": one_hot,
      "remat": _REMAT.value,
      "layer_loop": _LAYER_LOOP.value,
    },
    optimizer=_optimizer_config(),
    step=StepConfig(
      global_batch_size=_TRAIN_BATCH_SIZE.value,
      gradient_accumulation_steps=_GRADIENT_ACCUMULATION_STEPS.value,
      seed=_SEED.value,
      all_reduce_dtype=_ALL_REDUCE_DTYPE.value,
      use_xla=use_xla,
      on_nonfinite=_ON_NONFINITE.value,
    ),
    max_seq_length=records.max_seq_length,
    max_predictions_per_seq=records.max_predictions_per_seq,
    distribution=device_flags.distribution_config(),
    mixed_precision=device_flags.mixed_precision(),
    eval_batch_size=_EVAL_BATCH_SIZE.value,
    max_eval_steps=_MAX_EVAL_STEPS.value,
    iterations_per_loop=_ITERATIONS_PER_LOOP.value,
    save_checkpoints_steps=_SAVE_CHECKPOINTS_STEPS.value,
    profile_steps=parse_profile_steps(_PROFILE_STEPS.value),
    keep_checkpoint_max=_KEEP_CHECKPOINT_MAX.value,
    init_checkpoint=_INIT_CHECKPOINT.value,
    tokenizer_path=records.tokenizer_path,
    on_bad_record=_ON_BAD_RECORD.value,
    baselines=records.baselines(),
  )


def _machine(settings: "PretrainingSettings") -> "Machine":
  from albert_tf.planning.chips import accelerator_peak_flops
  from albert_tf.planning.flops import training_flops_per_example
  from albert_tf.training.goodput import Machine

  flops = training_flops_per_example(
    settings.model,
    max_seq_length=settings.max_seq_length,
    max_predictions_per_seq=settings.max_predictions_per_seq,
  )
  # Google Cloud names the slice in this variable (GKE does by itself).
  peak = accelerator_peak_flops(os.environ.get("TPU_ACCELERATOR_TYPE", "")) if device_flags.on_tpu() else 0.0
  return Machine(model_flops_per_example=flops, peak_flops=peak, usd_per_hour=_USD_PER_HOUR.value)


@exit_on_user_error
def main(argv: Sequence[str]) -> int | None:
  if len(argv) > 1:
    raise UserError(
      f"All arguments are flags. Received: {' '.join(argv[1:])}. Put values behind --name=, in quotes."
    )
  if _DOCTOR.value:
    return doctor.report(tpu=device_flags.tpu(), output_dir=_OUTPUT_DIR.value)
  if not _INPUT_FILE.value or not _OUTPUT_DIR.value:
    raise UserError(
      "A run needs its records and its directory. Received: "
      f"--input_file={_INPUT_FILE.value}, --output_dir={_OUTPUT_DIR.value}. Give both."
    )
  flags_text = flags.FLAGS.flags_into_string()  # TensorFlow adds flags that only it knows.
  read_buckets_in_extents()
  load_tensorflow(device_flags.tpu())
  from albert_tf.training.pretraining import run_pretraining

  settings = _settings()
  result = run_pretraining(
    settings,
    flags_text=flags_text,
    machine=_machine(settings),
    check_only=_DRY_RUN.value,
  )
  if result is None:
    print(
      "dry run: settings, records, devices and model fit together; one update and one evaluation batch were made. "
      "Nothing was written."
    )
    return 0
  if result.interrupted:
    print(f"stopped by SIGTERM at step {result.step:,}, saved. The same command continues.", file=sys.stderr)
    return EXIT_PREEMPTED
  return 0


if __name__ == "__main__":
  app.run(main)
