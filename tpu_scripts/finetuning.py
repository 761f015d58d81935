"""Shared code of the fine-tuning commands: flags, data files and the run itself."""

from collections.abc import Callable, Sequence
import os
from typing import Any

from absl import flags, logging

from albert_tf import files
from albert_tf.cli import commands
from albert_tf.cli.startup import load_tensorflow
from albert_tf.configs.albert_config import MOST_POSITIONS
from albert_tf.configs.task import RESULTS_FILE, TaskSpec, best_run
from albert_tf.errors import UserError
from albert_tf.finetuning import data
from albert_tf.finetuning.settings import FineTuneSettings
from albert_tf.runs.settings import DistributionConfig
from albert_tf.settings import Settings, setting

FLAGS = flags.FLAGS


class RunOptions(Settings):
  """The weights to start from, and the run directory."""

  init_checkpoint: str = setting(
    "",
    "Pretrained weights: a run directory, an original checkpoint, a TF-Hub module or a Hugging Face folder. "
    "Without --do_train: a fine-tuned run, by default --output_dir.",
  )
  albert_config_file: str = setting(
    "", "JSON file of the model. Default: the one in the weights' folder."
  )
  spm_model_file: str = setting("", "SentencePiece model. Default: the one in the weights' folder.")
  do_lower_case: bool | None = setting(
    None, "Lower-case the text. Default: as the weights' tokenizer does."
  )
  from_scratch: bool = setting(
    False, "Start from random weights, with --albert_config_file and a tokenizer."
  )
  output_dir: str = setting(help="The run directory, local or gs://.")
  export: bool = setting(True, "After training, export a SavedModel to saved_model/1.")
  ensemble_of: tuple[str, ...] = setting(
    (),
    "Run directories; their stored answers are combined into the best ensemble, and no model is run.",
  )


class DataFiles(Settings):
  """Files of your own examples, and the length of a row."""

  train_file: str = setting("", "Training examples.")
  eval_file: str = setting(
    "", "Evaluation examples. Default: --eval_fraction of the training examples."
  )
  test_file: str = setting("", "Examples to predict; they need no labels.")
  eval_fraction: float = setting(
    0.1, "Without --eval_file: share of the training examples to evaluate on.", above=0.0, below=1.0
  )
  max_seq_length: int | None = setting(
    None,
    "Tokens of a row. Default: as in training, else the task's usual number.",
    minimum=5,
    maximum=MOST_POSITIONS,
  )

  def paths(self) -> dict[str, str]:
    """Split → file, for the splits that the flags need.

    Raises:
      UserError: a file is not named.
    """
    if self.eval_file:
      commands.refuse_flags("--eval_file", ["eval_fraction"])
    named = {"train": self.train_file, "eval": self.eval_file, "test": self.test_file}
    needed = needed_splits()
    if "eval" in needed and not self.eval_file and self.train_file:
      needed = ["train", *{"test"}.intersection(needed)]  # Evaluation takes a part of training.
    for split in needed:
      if not named[split]:
        raise UserError(
          f"--do_train, --do_eval and --do_predict need their data. Received: no --{split}_file. Name it."
        )
    return {split: named[split] for split in needed}

  def read(self, reader: Callable[[str, str], Any]) -> dict[str, Any]:
    """Split → what `reader(path, split)` gives, for the splits that the flags need."""
    return data.read_splits(self.paths(), reader, eval_fraction=self.eval_fraction)

  @classmethod
  def flag_names(cls) -> list[str]:
    """The flags that a command with a data set of its own does not read: all but the length."""
    return [name for name in commands.flag_names(cls) if name != "max_seq_length"]


commands.define_flags(DistributionConfig)
commands.define_flags(RunOptions)
commands.define_flags(FineTuneSettings, do_train=False, do_eval=False)


def run(prepare: Callable[[Any], Any], *, vocab_file: str | None = None) -> None:
  """Trains, evaluates, predicts and exports, as the flags say.

  Args:
    prepare: reads the examples; `initialize.Start` → the task (`FineTuningTask`).
    vocab_file: the WordPiece vocabulary that is named, perhaps none; None of a command that cannot use one.
  """
  flags_text = FLAGS.flags_into_string()  # TensorFlow adds flags that only it knows.
  options = commands.from_flags(RunOptions)
  distribution = commands.from_flags(DistributionConfig)
  settings = (
    None
    if options.ensemble_of
    else commands.from_flags(FineTuneSettings, distribution=distribution)
  )
  load_tensorflow(FLAGS.tpu)
  logging.set_verbosity(logging.INFO)
  logging.get_absl_handler().setFormatter(None)  # Messages without absl's prefix.
  if settings is None:
    _combine(prepare, options.ensemble_of)
    return
  from albert_tf.finetuning.engine.fit import fine_tune
  from albert_tf.finetuning.engine.results import lines
  from albert_tf.finetuning.initialize import read_start
  from albert_tf.keras_api.exports import export_saved_model
  from albert_tf.runs.distribution import Workers, make_strategy
  from albert_tf.tokenization import WordPieceTokenizer

  start = read_start(
    options.init_checkpoint or (FLAGS.output_dir if trained_spec() else ""),
    spm_model_file=options.spm_model_file,
    vocab_file=vocab_file or "",
    albert_config_file=options.albert_config_file,
    do_lower_case=options.do_lower_case,
    from_scratch=options.from_scratch,
  )
  if vocab_file is None and isinstance(start.tokenizer, WordPieceTokenizer):
    raise UserError(
      "This task needs a SentencePiece model, which gives the position of each token in the text. Received: "
      f"{start.source}, with a WordPiece vocabulary. Only run_glue.py takes one."
    )
  task = prepare(start)
  strategy = make_strategy(settings.distribution)
  place = FLAGS.output_dir
  results = fine_tune(
    task, settings, start=start, output_dir=place, flags_text=flags_text, strategy=strategy
  )
  workers, folder = Workers(strategy), os.path.join(place, "saved_model")
  with (
    workers.all_fail_together()
  ):  # The chief reports and exports; the others wait: none may leave before.
    if workers.is_chief:
      print(*lines(results), f"results: {os.path.join(place, RESULTS_FILE)}", sep="\n")
      if FLAGS.do_train and options.export and not files.exists(os.path.join(folder, "1")):
        logging.set_verbosity(logging.ERROR)  # Hide TensorFlow's messages of saving.
        kind = task.spec.export_kind
        made = export_saved_model(model=kind, init_checkpoint=place, output_dir=folder, version=1)
        print(f"SavedModel: {made}")


def _combine(prepare: Callable[[Any], Any], names: Sequence[str]) -> None:
  """Writes an ensemble's directory; reads the data with the first run's tokenizer, lengths and columns."""
  from albert_tf.configs import AlbertConfig
  from albert_tf.finetuning.engine import ensemble
  from albert_tf.finetuning.initialize import Start
  from albert_tf.runs.run_directory import CONFIG_FILE
  from albert_tf.tokenization import load_tokenizer

  used = ("ensemble_of", "output_dir", "do_eval", "do_predict")
  others = [name for name in commands.flag_names(RunOptions, FineTuneSettings) if name not in used]
  commands.refuse_flags("--ensemble_of, which combines stored answers,", others)
  directories = ensemble.run_directories(names)
  first = directories[0]
  FLAGS["init_checkpoint"].value, FLAGS["do_eval"].value = first, True
  config = AlbertConfig.from_json_file(os.path.join(first, CONFIG_FILE))
  start = Start(config=config, tokenizer=load_tokenizer(first), checkpoint=None, source=first)
  task = prepare(start)
  results = ensemble.combine(
    task, directories, output_dir=FLAGS.output_dir, predict=FLAGS.do_predict
  )
  print(
    *ensemble.lines(results), f"results: {os.path.join(FLAGS.output_dir, RESULTS_FILE)}", sep="\n"
  )


# ------------------------------------------------------------------ data by the flags


def trained_spec() -> TaskSpec | None:
  """The task of the fine-tuned model that is used without training; None with training."""
  for folder in () if FLAGS.do_train else (FLAGS.init_checkpoint, FLAGS.output_dir):
    if folder and (found := TaskSpec.find(best_run(folder))):
      return found
  return None


def max_seq_length(given: int | None, start: Any, *, default: int = 512) -> int:
  """--max_seq_length; without it that of the fine-tuned run, or `default`, as far as the model has positions."""
  if given is not None:
    return given
  trained = trained_spec()
  return trained.max_seq_length if trained else min(default, start.config.max_position_embeddings)


def needed_splits() -> list[str]:
  """The splits that the flags need."""
  evaluates = FLAGS.do_train or FLAGS.do_eval
  wanted = {"train": FLAGS.do_train, "eval": evaluates, "test": FLAGS.do_predict}
  return [split for split, is_wanted in wanted.items() if is_wanted]
