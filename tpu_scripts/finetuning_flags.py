"""The flags that every fine-tuning command has, and what they become."""

from collections.abc import Callable, Mapping, Sequence
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from absl import flags, logging
import finetuning_inputs
from flag_settings import from_flags

from albert_tf import commands, files
from albert_tf.errors import UserError
from albert_tf.finetuning.settings import BALANCED, OPTIMIZERS, FineTuneSettings
from albert_tf.startup import load_tensorflow
from albert_tf.training.settings import DistributionConfig

if TYPE_CHECKING:  # At run time these would import TensorFlow before the flags are read.
  from albert_tf.finetuning.initialize import Start
  from albert_tf.finetuning.tasks.base import FineTuningTask

FLAGS = flags.FLAGS
commands.define_flags(DistributionConfig)

# What to start from, and where the run goes.
flags.DEFINE_string(
  "init_checkpoint",
  "",
  "Pretrained weights: a run directory, an original checkpoint, a TF-Hub module or a Hugging Face folder. Without "
  "--do_train: a fine-tuned run; default: --output_dir.",
)
flags.DEFINE_string(
  "start_from_task",
  "",
  "Training starts from a run fine-tuned on this task, and from nothing else; mnli before rte, sts-b and mrpc.",
)
flags.DEFINE_string("albert_config_file", "", "JSON of the model. Default: the one beside the weights.")
flags.DEFINE_string("spm_model_file", "", "SentencePiece model. Default: the one beside the weights.")
flags.DEFINE_bool("do_lower_case", None, "Default: as the tokenizer beside the weights says.")
flags.DEFINE_bool("from_scratch", False, "Start from random weights instead.")
flags.DEFINE_string("output_dir", None, "The run directory; local or gs://.", required=True)

# What to do.
flags.DEFINE_bool("do_train", False, "Train, and evaluate the best checkpoint.")
flags.DEFINE_bool("do_eval", False, "Evaluate.")
flags.DEFINE_bool("do_predict", False, "Predict the test data.")
flags.DEFINE_bool("export", True, "After training, leave a SavedModel in saved_model/1.")
flags.DEFINE_list("seeds", ["1"], "One run each, with median and spread; for example 1,2,3.")
flags.DEFINE_bool("ensemble", False, "Also score the mean of the seeds' logits.")
flags.DEFINE_list(
  "ensemble_of",
  [],
  "Instead of running a model: the best ensemble of these runs, from what each has answered.",
)

# Training. The defaults of these depend on the task's family; a command may set others.
flags.DEFINE_integer("train_batch_size", 32, "Examples of one update, over all replicas.")
flags.DEFINE_integer(
  "gradient_accumulation_steps",
  1,
  "Micro-batches an update is computed in; the update is that of the whole batch.",
)
flags.DEFINE_bool("remat", False, "Recompute activations in the backward pass: less memory, more time.")
flags.DEFINE_integer("eval_batch_size", 64, "Examples of one evaluation batch.")
flags.DEFINE_alias("predict_batch_size", "eval_batch_size")
flags.DEFINE_float("learning_rate", 2e-5, "Peak learning rate.")
flags.DEFINE_float("num_train_epochs", 3.0, "Passes over the training data.")
flags.DEFINE_integer("num_train_steps", 0, "Updates; above 0 it decides, not the epochs.")
flags.DEFINE_alias("train_step", "num_train_steps")
flags.DEFINE_integer("num_warmup_steps", -1, "Updates of warm-up; -1: the proportion.")
flags.DEFINE_alias("warmup_step", "num_warmup_steps")
flags.DEFINE_float("warmup_proportion", 0.1, "Share of the updates that warms up.")
flags.DEFINE_float("poly_power", 1.0, "Power of the decay; 1 is linear.")
flags.DEFINE_enum("optimizer", "adamw", OPTIMIZERS, "Which update.")
flags.DEFINE_float("weight_decay", 0.01, "Not for biases and LayerNorm.")
flags.DEFINE_float("clip_norm", 1.0, "Bound on the global gradient norm; 0 for none.")
flags.DEFINE_integer(
  "freeze_layers",
  None,
  "The embeddings and this many layers above them stay as they are; layers that share parameters only together.",
)
flags.DEFINE_float(
  "ema_decay", None, "Evaluate and keep an average of the weights with this decay, in their place."
)
flags.DEFINE_string(
  "class_weights",
  "",
  "Factors on the loss of classes: balanced (each class counts alike), or for example negative=1,positive=3.",
)
flags.DEFINE_float("layer_decay", 1.0, "Factor on the rate for each block below the head.")
flags.DEFINE_float(
  "albert_dropout",
  None,
  "Hidden and attention dropout (the paper's 'ALBERT DR'). Default: the configuration's.",
)
flags.DEFINE_float("classifier_dropout", 0.1, "Before the head ('classifier DR').")
flags.DEFINE_integer("save_checkpoints_steps", 0, "Updates between evaluations; 0: every epoch.")
flags.DEFINE_alias("eval_steps", "save_checkpoints_steps")
flags.DEFINE_integer(
  "report_steps", 0, "Updates between lines of metrics.jsonl; 0: one an epoch, which there is in any case."
)
flags.DEFINE_integer(
  "early_stopping_patience", 0, "Evaluations without a better one before training ends; 0: never."
)
flags.DEFINE_integer(
  "bucket_multiple",
  None,
  "Batches hold similar lengths and are padded to a multiple of this; 0: always to --max_seq_length. Default: 32, "
  "on a TPU 0.",
)

flags.DEFINE_bool("progress", True, "Show Keras' progress bar.")


class Prepared(NamedTuple):
  """A task on its data.

  Attributes:
    task: for the engine.
    settings: instead of the flags'; None: theirs.
    notes: what results.json gets besides.
  """

  task: "FineTuningTask"
  settings: FineTuneSettings | None = None
  notes: Mapping[str, Any] = {}


def run(
  argv: Sequence[str],
  prepare: "Callable[[Start, FineTuneSettings], Prepared]",
  *,
  vocab_file: str | None = None,
) -> None:
  """What a fine-tuning command does: trains, evaluates and predicts as the flags say, and exports.

  Args:
    argv: the command's arguments.
    prepare: reads the examples.
    vocab_file: the WordPiece vocabulary that is named, perhaps none; None of a command that cannot use one.
  """
  if len(argv) > 1:
    raise UserError(
      f"All arguments are flags. Received: {' '.join(argv[1:])}. Put values behind --name=, in quotes."
    )
  flags_text = FLAGS.flags_into_string()  # TensorFlow adds flags that only it knows.
  load_tensorflow(FLAGS.tpu)
  logging.set_verbosity(logging.INFO)
  logging.get_absl_handler().setFormatter(None)  # The commands' own words, without absl's prefix.
  if FLAGS.ensemble_of:
    from run_ensemble import run_ensemble

    run_ensemble(prepare, _settings)
    return
  from albert_tf.finetuning.engine.fit import fine_tune
  from albert_tf.training.distribution import Consensus, is_chief, make_strategy

  settings = _settings()
  start = _read_start(vocab_file)
  prepared = prepare(start, settings)
  settings = prepared.settings or settings
  strategy = make_strategy(settings.distribution)
  tuned = fine_tune(
    prepared.task,
    settings,
    start=start,
    output_dir=FLAGS.output_dir,
    flags_text=flags_text,
    strategy=strategy,
  )
  # Of several workers the chief reports and exports; the others wait: none may leave before.
  Consensus(strategy).on_chief(is_chief(strategy), lambda: _finish(prepared, tuned.results))


def _settings() -> FineTuneSettings:
  distribution = commands.from_flags(DistributionConfig)
  return from_flags(
    FineTuneSettings,
    seeds=_seeds(),
    class_weights=_class_weights(),
    dropout=FLAGS.albert_dropout,
    distribution=distribution,
    mixed_precision=distribution.precision,
    jit_compile=distribution.use_xla,
    verbose=FLAGS.progress,
  )


def _seeds() -> tuple[int, ...]:
  try:
    return tuple(int(seed) for seed in FLAGS.seeds)
  except ValueError as error:
    raise UserError(f"--seeds are numbers. Received: {','.join(FLAGS.seeds)}. For example 1,2,3.") from error


def _class_weights() -> str | dict[str, float]:
  if "=" not in FLAGS.class_weights:
    return FLAGS.class_weights
  pairs = [pair.rpartition("=") for pair in FLAGS.class_weights.split(",")]
  try:
    return {name: float(weight) for name, _, weight in pairs}
  except ValueError as error:
    raise UserError(
      f"--class_weights are {BALANCED}, or a number a class. Received: {FLAGS.class_weights}. For example "
      "negative=1,positive=3."
    ) from error


def _read_start(vocab_file: str | None) -> "Start":
  from albert_tf.finetuning.initialize import check_start_task, read_start
  from albert_tf.tokenization import WordPieceTokenizer

  checkpoint = FLAGS.init_checkpoint
  if not checkpoint and not FLAGS.do_train and finetuning_inputs.has_run():
    checkpoint = FLAGS.output_dir
  start = read_start(
    checkpoint,
    spm_model_file=FLAGS.spm_model_file,
    vocab_file=vocab_file or "",
    albert_config_file=FLAGS.albert_config_file,
    do_lower_case=FLAGS.do_lower_case,
    from_scratch=FLAGS.from_scratch,
  )
  if vocab_file is None and isinstance(start.tokenizer, WordPieceTokenizer):
    raise UserError(
      "This task needs a SentencePiece model, which tells the place of each piece in the text. Received: "
      f"{checkpoint or FLAGS.spm_model_file}, with a WordPiece vocabulary. Only run_glue.py takes one."
    )
  if FLAGS.start_from_task and FLAGS.do_train:
    check_start_task(start, FLAGS.start_from_task)
  return start


def _finish(prepared: Prepared, results: Mapping[str, Any]) -> None:
  """Prints the results and leaves a SavedModel, unless an earlier command did."""
  from albert_tf.finetuning.engine import record
  from albert_tf.finetuning.engine.results import lines
  from albert_tf.serving import export_saved_model

  path = os.path.join(FLAGS.output_dir, record.RESULTS_FILE)
  if prepared.notes:
    known = record.read_json(path)
    counts = {name: int(value) for name, value in results.items() if name.endswith("total")}
    notes = {  # What an earlier command says of other splits stays.
      name: {**known.get(name, {}), **value} if isinstance(value, Mapping) else value
      for name, value in prepared.notes.items()
    }
    record.write_json(path, {**known, **counts, **notes})
  print(*lines(results), f"results: {path}", sep="\n")
  folder = os.path.join(FLAGS.output_dir, "saved_model")
  if FLAGS.do_train and FLAGS.export and not files.exists(os.path.join(folder, "1")):
    logging.set_verbosity(logging.ERROR)  # TensorFlow's words while it saves.
    kind = prepared.task.spec.export_kind
    exported = export_saved_model(model=kind, init_checkpoint=FLAGS.output_dir, output_dir=folder, version=1)
    print(f"SavedModel: {exported}")
