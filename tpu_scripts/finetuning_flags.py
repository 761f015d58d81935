"""The flags that every fine-tuning command has, and what they become."""

from collections.abc import Callable, Mapping, Sequence
import math
import os
from typing import TYPE_CHECKING, Any

from absl import flags, logging
import device_flags

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.startup import load_tensorflow

if TYPE_CHECKING:  # At run time these would import TensorFlow before the flags are read.
  from albert_tf.finetuning.initialize import Start
  from albert_tf.finetuning.settings import FineTuneSettings
  from albert_tf.finetuning.task import FineTuningTask
  from albert_tf.finetuning.task_spec import TaskSpec

flags.adopt_module_key_flags(device_flags)  # --help shows them too.

# What to start from, and where the run goes.
_INIT_CHECKPOINT = flags.DEFINE_string(
  "init_checkpoint",
  "",
  "Pretrained weights: a run directory, an original checkpoint, a TF-Hub module or a Hugging Face folder. Without "
  "--do_train: a fine-tuned run; default: --output_dir.",
)
_ALBERT_CONFIG_FILE = flags.DEFINE_string(
  "albert_config_file", "", "JSON of the model. Default: the one beside the weights."
)
_SPM_MODEL_FILE = flags.DEFINE_string(
  "spm_model_file", "", "SentencePiece model. Default: the one beside the weights."
)
_DO_LOWER_CASE = flags.DEFINE_bool(
  "do_lower_case", None, "Default: as the tokenizer beside the weights says."
)
_FROM_SCRATCH = flags.DEFINE_bool("from_scratch", False, "Start from random weights instead.")
_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "The run directory; local or gs://.", required=True)

# What to do.
_DO_TRAIN = flags.DEFINE_bool("do_train", False, "Train, and evaluate the best checkpoint.")
_DO_EVAL = flags.DEFINE_bool("do_eval", False, "Evaluate.")
_DO_PREDICT = flags.DEFINE_bool("do_predict", False, "Predict the test data.")
_EXPORT = flags.DEFINE_bool("export", True, "After training, leave a SavedModel in saved_model/1.")
_SEEDS = flags.DEFINE_list("seeds", ["1"], "One run each, with median and spread; for example 1,2,3.")
_ENSEMBLE = flags.DEFINE_bool("ensemble", False, "Also score the mean of the seeds' logits.")

# Training. The defaults of these depend on the task's family; a command may set others.
_TRAIN_BATCH_SIZE = flags.DEFINE_integer("train_batch_size", 32, "Examples of one update, over all replicas.")
_EVAL_BATCH_SIZE = flags.DEFINE_integer("eval_batch_size", 64, "Examples of one evaluation batch.")
flags.DEFINE_alias("predict_batch_size", "eval_batch_size")
_LEARNING_RATE = flags.DEFINE_float("learning_rate", 2e-5, "Peak learning rate.")
_NUM_TRAIN_EPOCHS = flags.DEFINE_float("num_train_epochs", 3.0, "Passes over the training data.")
_NUM_TRAIN_STEPS = flags.DEFINE_integer("num_train_steps", 0, "Updates; above 0 it decides, not the epochs.")
flags.DEFINE_alias("train_step", "num_train_steps")
_NUM_WARMUP_STEPS = flags.DEFINE_integer("num_warmup_steps", -1, "Updates of warm-up; -1: the proportion.")
flags.DEFINE_alias("warmup_step", "num_warmup_steps")
_WARMUP_PROPORTION = flags.DEFINE_float("warmup_proportion", 0.1, "Share of the updates that warms up.")
_POLY_POWER = flags.DEFINE_float("poly_power", 1.0, "Power of the decay; 1 is linear.")
_OPTIMIZER = flags.DEFINE_enum("optimizer", "adamw", ["adamw", "lamb"], "Which update.")
_WEIGHT_DECAY = flags.DEFINE_float("weight_decay", 0.01, "Not for biases and LayerNorm.")
_CLIP_NORM = flags.DEFINE_float("clip_norm", 1.0, "Bound on the global gradient norm; 0 for none.")
_LAYER_DECAY = flags.DEFINE_float("layer_decay", 1.0, "Factor on the rate for each block below the head.")
_ALBERT_DROPOUT = flags.DEFINE_float(
  "albert_dropout",
  None,
  "Hidden and attention dropout (the paper's 'ALBERT DR'). Default: the configuration's.",
)
_CLASSIFIER_DROPOUT = flags.DEFINE_float("classifier_dropout", 0.1, "Before the head ('classifier DR').")
_EVAL_STEPS = flags.DEFINE_integer(
  "save_checkpoints_steps", 0, "Updates between evaluations; 0: every epoch."
)
flags.DEFINE_alias("eval_steps", "save_checkpoints_steps")
_PATIENCE = flags.DEFINE_integer(
  "early_stopping_patience", 0, "Evaluations without a better one before training ends; 0: never."
)
_BUCKET_MULTIPLE = flags.DEFINE_integer(
  "bucket_multiple",
  None,
  "Batches hold similar lengths and are padded to a multiple of this; 0: always to --max_seq_length. Default: 32, "
  "on a TPU 0.",
)

_PROGRESS = flags.DEFINE_bool("progress", True, "Show Keras' progress bar.")


def read_start(*, vocab_file: str = "") -> "Start":
  """Configuration, tokenizer and weights of the flags; `vocab_file` is of commands that can use WordPiece."""
  from albert_tf.finetuning.initialize import read_start as read

  checkpoint = _INIT_CHECKPOINT.value
  if not checkpoint and not _DO_TRAIN.value and files.exists(os.path.join(_OUTPUT_DIR.value, "task.json")):
    checkpoint = _OUTPUT_DIR.value
  return read(
    checkpoint,
    spm_model_file=_SPM_MODEL_FILE.value,
    vocab_file=vocab_file,
    albert_config_file=_ALBERT_CONFIG_FILE.value,
    do_lower_case=_DO_LOWER_CASE.value,
    from_scratch=_FROM_SCRATCH.value,
  )


def trained_spec() -> "TaskSpec | None":
  """What the fine-tuned model is for whose weights are used without training; None with training."""
  from albert_tf.finetuning.task_spec import TASK_FILE, TaskSpec

  for folder in () if _DO_TRAIN.value else (_INIT_CHECKPOINT.value, _OUTPUT_DIR.value):
    if folder and files.exists(os.path.join(folder, TASK_FILE)):
      return TaskSpec.load(folder)
  return None


def max_seq_length(given: int | None, start: "Start", *, default: int = 512) -> int:
  """--max_seq_length; without it that of the fine-tuned run, or `default`, as far as the model has positions."""
  if given is not None:
    return given
  trained = trained_spec()
  return trained.max_seq_length if trained else min(default, start.config.max_position_embeddings)


def settings() -> "FineTuneSettings":
  """The settings of the flags."""
  from albert_tf.finetuning.settings import FineTuneSettings

  return FineTuneSettings(
    do_train=_DO_TRAIN.value,
    do_eval=_DO_EVAL.value,
    do_predict=_DO_PREDICT.value,
    seeds=_seeds(),
    ensemble=_ENSEMBLE.value,
    train_batch_size=_TRAIN_BATCH_SIZE.value,
    eval_batch_size=_EVAL_BATCH_SIZE.value,
    learning_rate=_LEARNING_RATE.value,
    num_train_epochs=_NUM_TRAIN_EPOCHS.value,
    num_train_steps=_NUM_TRAIN_STEPS.value,
    num_warmup_steps=_NUM_WARMUP_STEPS.value,
    warmup_proportion=_WARMUP_PROPORTION.value,
    poly_power=_POLY_POWER.value,
    optimizer=_OPTIMIZER.value,
    weight_decay=_WEIGHT_DECAY.value,
    clip_norm=_CLIP_NORM.value,
    layer_decay=_LAYER_DECAY.value,
    dropout=_ALBERT_DROPOUT.value,
    classifier_dropout=_CLASSIFIER_DROPOUT.value,
    eval_steps=_EVAL_STEPS.value,
    early_stopping_patience=_PATIENCE.value,
    bucket_multiple=_BUCKET_MULTIPLE.value,
    mixed_precision=device_flags.mixed_precision(),
    distribution=device_flags.distribution_config(),
    jit_compile=device_flags.use_xla(),
    verbose=_PROGRESS.value,
  )


def _seeds() -> tuple[int, ...]:
  try:
    return tuple(int(seed) for seed in _SEEDS.value)
  except ValueError as error:
    raise UserError(f"--seeds are numbers. Received: {','.join(_SEEDS.value)}. For example 1,2,3.") from error


def output_dir() -> str:
  return str(_OUTPUT_DIR.value)


def wants_export() -> bool:
  """Whether training leaves a SavedModel."""
  return bool(_DO_TRAIN.value and _EXPORT.value)


def export(model: str) -> None:
  """Exports the fine-tuned model to `saved_model/1`, unless an earlier command did."""
  from albert_tf.serving import export_saved_model

  logging.set_verbosity(logging.ERROR)  # TensorFlow's words while it saves.
  folder = os.path.join(_OUTPUT_DIR.value, "saved_model")
  if wants_export() and not files.exists(os.path.join(folder, "1")):
    path = export_saved_model(model=model, init_checkpoint=_OUTPUT_DIR.value, output_dir=folder, version=1)
    print(f"SavedModel: {path}")


def run(
  argv: Sequence[str], make_task: "Callable[[Start, FineTuneSettings], FineTuningTask]", *, model: str
) -> None:
  """What a fine-tuning command does: trains, evaluates and predicts as the flags say, and exports.

  Args:
    argv: the command's arguments.
    make_task: the task on its data.
    model: the kind that is exported, of `export_saved_model`.
  """
  refuse_arguments(argv)
  flags_text = flags.FLAGS.flags_into_string()  # TensorFlow adds flags that only it knows.
  load_tensorflow(device_flags.tpu())
  quiet_logging()
  settings_ = settings()
  start = read_start()
  fine_tune(make_task(start, settings_), settings_, start=start, flags_text=flags_text, model=model)


def fine_tune(
  task: "FineTuningTask",
  settings: "FineTuneSettings",
  *,
  start: "Start",
  flags_text: str,
  model: str,
  notes: Mapping[str, Any] | None = None,
) -> None:
  """Trains, evaluates and predicts; of several workers the chief alone reports and exports.

  Args:
    task, settings, start, flags_text: of `albert_tf.finetuning.fit.fine_tune`.
    model: the kind that is exported, of `export_saved_model`; empty: none.
    notes: what results.json gets besides.
  """
  from albert_tf.finetuning import fit
  from albert_tf.training.distribution import Consensus, is_chief, make_strategy

  strategy = make_strategy(settings.distribution)
  results = fit.fine_tune(
    task, settings, start=start, output_dir=output_dir(), flags_text=flags_text, strategy=strategy
  )

  def finish() -> None:
    if notes:
      _add_to_results(notes)
    print_results(results)
    if model:
      export(model)

  Consensus(strategy).on_chief(is_chief(strategy), finish)  # The others wait: none may leave before.


def _add_to_results(notes: Mapping[str, Any]) -> None:
  from albert_tf.finetuning import run_directory

  path = os.path.join(output_dir(), run_directory.RESULTS_FILE)
  results = run_directory.read_json(path)
  counts = {name: int(value) for name, value in results.items() if name.endswith("total")}
  run_directory.write_json(path, {**results, **counts, **notes})


def refuse_arguments(argv: Any) -> None:
  """Every argument is a flag."""
  if len(argv) > 1:
    raise UserError(
      f"All arguments are flags. Received: {' '.join(argv[1:])}. Put values behind --name=, in quotes."
    )


def quiet_logging() -> None:
  """The commands' own words, without absl's prefix."""
  logging.set_verbosity(logging.INFO)
  logging.get_absl_handler().setFormatter(None)


def _shown(name: str, value: float) -> str:
  return f"{value:.0f}" if name.endswith("total") else f"{value:.4f}"  # Counts are whole.


def print_results(results: dict[str, Any]) -> None:
  """The metrics, with median and spread where there are several seeds."""
  median = results.get("median")
  for name, value in (median or results).items():
    if isinstance(value, float) and math.isfinite(value) and not name.endswith("_seconds"):
      spread = results["spread"][name] if median else None
      between = f"  (median; {spread['min']:.4f} to {spread['max']:.4f})" if spread else ""
      print(f"{name}: {_shown(name, value)}{between}")
  for name, value in results.get("ensemble", {}).items():
    print(f"ensemble {name}: {_shown(name, value)}")
  print(f"results: {os.path.join(_OUTPUT_DIR.value, 'results.json')}")
