"""What the fine-tuning commands share: their flags, read once into a `Request`, and the run itself.

A command, such as `run_glue.py`, adds the settings of its data, and makes its task of them.
"""

from collections.abc import Collection, Iterable
import dataclasses
import os
import re
from typing import TYPE_CHECKING, Any

from absl import flags, logging

from albert_tf import files, json_files
from albert_tf.cli import commands
from albert_tf.configs.albert_config import MOST_POSITIONS
from albert_tf.configs.task import RESULTS_FILE, TaskSpec, best_run
from albert_tf.errors import UserError
from albert_tf.finetuning.settings import FineTuneSettings
from albert_tf.runs.settings import DistributionConfig
from albert_tf.serving.settings import Precision
from albert_tf.settings import Settings, setting

# They import TensorFlow, which would make --help slow.
if TYPE_CHECKING:
  from albert_tf.checkpoints.checkpoint import Checkpoint
  from albert_tf.finetuning.tasks.base import FineTuningTask

# The flags that are defined here belong to the command: its --help shows them.
flags.disclaim_key_flags()

# ------------------------------------------------------------------ the request


class Request(Settings):
  """What a person asks of a fine-tuning command, except of its data.

  Attributes:
    settings: what to do, the training and the devices.
    trained: the task of the fine-tuned model that is used without training; None with training.
    changed_flags: name → value of the flags that are not at their defaults.
    flags_text: all flags, as a flag file.
  """

  settings: FineTuneSettings
  trained: TaskSpec | None = None
  changed_flags: dict[str, Any]
  flags_text: str

  init_checkpoint: str = setting(
    "",
    "Pretrained weights: a run directory, an original checkpoint, a TF-Hub module or a "
    "Hugging Face folder; nothing is trained from random weights, so an empty one is refused. "
    "Without --do_train: a fine-tuned run, by default --output_dir; one without a head is refused.",
  )
  output_dir: str = setting(help="The run directory, local or gs://.")
  export: bool = setting(
    True,
    "After training, export a SavedModel to saved_model/1; with another best seed to the next number.",
  )
  precision: Precision = setting(
    "float32",
    "Numbers of the export's products: see export_saved_model.py. The evaluation data show how near it is to "
    "float32.",
  )
  ensemble_of: tuple[str, ...] = setting(
    (),
    "Run directories; their stored answers are combined into the best ensemble, and no model is "
    "run.",
  )

  def refuse_flags(self, mode: str, names: Collection[str]) -> None:
    """Raises `UserError` if a flag of another mode is given; `mode` is such as "--eval_file"."""
    received = [f"--{name}={value}" for name, value in self.changed_flags.items() if name in names]
    if received:
      raise UserError(
        f"{mode} does not use every flag. Received: {', '.join(received)} with it. "
        "Leave out one or the other."
      )

  def splits(self) -> list[str]:
    """The splits to read."""
    splits = []
    if self.settings.do_train:
      splits.append("train")
    # Evaluation chooses the best weights of a training.
    if self.settings.do_train or self.settings.do_eval:
      splits.append("eval")
    if self.settings.do_predict:
      splits.append("test")
    return splits


class DataFiles(Settings):
  """Files of your own examples, and the length of a row."""

  train_file: str = setting("", "Training examples: one file, not compressed.")
  eval_file: str = setting(
    "",
    "Evaluation examples, all answered at each evaluation. Default: --eval_fraction of the training "
    "examples.",
  )
  test_file: str = setting("", "Examples to predict, in this order; they need no labels.")
  eval_fraction: float = setting(
    0.1, "Without --eval_file: share of the training examples to evaluate on.", above=0.0, below=1.0
  )
  max_seq_length: int | None = setting(
    None,
    "Tokens of a row. Default: as in training, else 512, of tagging 128.",
    minimum=5,
    maximum=MOST_POSITIONS,
  )

  def paths(self, request: Request) -> dict[str, str]:
    """Split → file; "eval" is left out where `data.read_splits` holds out a part.

    Raises:
      UserError: a file is not named.
    """
    if self.eval_file:
      request.refuse_flags("--eval_file", ["eval_fraction"])
    paths = {split: getattr(self, f"{split}_file") for split in request.splits()}
    # --do_train with --train_file alone: {"train": "a.csv", "eval": ""} becomes {"train": "a.csv"}.
    if self.train_file and paths.get("eval") == "":
      # With --do_eval alone too: what is held out of a file is always the same.
      paths = {"train": self.train_file} | paths
      del paths["eval"]
    for split, path in paths.items():
      if not path:
        raise UserError(
          "--do_train, --do_eval and --do_predict need their data. "
          f"Received: no --{split}_file. Name it."
        )
    return paths

  def row_length(self, request: Request, start: "Checkpoint", *, usual: int = 512) -> int:
    """The length of a row: the flag's, that of training, or the `usual` one of the task."""
    if self.max_seq_length is not None:
      return self.max_seq_length
    # Texts of another length than in training would be cut in another place.
    if request.trained is not None:
      return request.trained.max_seq_length
    return min(usual, start.config.max_position_embeddings)


def define_flags(command_class: type, *, without: Collection[str] = (), **defaults: Any) -> None:
  """Defines the flags of a command's own settings, with other `defaults`, and those of all.

  `without` are fields that the command would refuse or not use.
  """
  classes = (command_class, DistributionConfig, Request, FineTuneSettings)
  commands.define_flags(*classes, without=without, do_train=False, do_eval=False, **defaults)


def read_request(*, implies_predict: str = "") -> Request:
  """Reads all flags but those of the data, and imports TensorFlow.

  Args:
    implies_predict: a flag that stands for --do_predict, too.
  """
  changed_flags = commands.changed_flags()
  implied: dict[str, Any] = {}
  if implies_predict in changed_flags:
    implied["do_predict"] = True
  if "ensemble_of" in changed_flags:
    # The evaluation data choose among the runs.
    implied["do_eval"] = True
  distribution = commands.from_flags(DistributionConfig)
  request = commands.from_flags(
    Request,
    settings=commands.from_flags(FineTuneSettings, distribution=distribution, **implied),
    changed_flags=changed_flags,
    # Before TensorFlow is loaded, which adds flags that only it knows.
    flags_text=commands.FLAGS.flags_into_string(),
  )
  commands.load_tensorflow(distribution.tpu)
  # Messages without absl's prefix.
  logging.set_verbosity(logging.INFO)
  logging.get_absl_handler().setFormatter(None)
  if request.ensemble_of:
    from albert_tf.finetuning.ensemble import run_directories

    used = {"ensemble_of", "output_dir", "do_eval", "do_predict"}
    unused = commands.flag_names(Request, FineTuneSettings) - used
    request.refuse_flags("--ensemble_of, which combines stored answers,", unused)
    # The data are read with the first run's tokenizer, lengths and columns.
    runs = tuple(run_directories(request.ensemble_of))
    request = dataclasses.replace(request, init_checkpoint=runs[0], ensemble_of=runs)

  # A run that is used without training keeps its kind, labels and lengths.
  for folder in (request.init_checkpoint, request.output_dir):
    if folder and request.trained is None and not request.settings.do_train:
      request = dataclasses.replace(request, trained=TaskSpec.find(best_run(folder)))
  return request


def read_start(request: Request, *, takes_wordpiece: bool = False) -> "Checkpoint":
  """Reads the weights to start from, whose tokenizer and configuration are also the task's.

  Args:
    request: what to do.
    takes_wordpiece: whether the task needs no place of each token in the text.

  Raises:
    UserError: there are no weights, or they cannot do the task.
  """
  from albert_tf.checkpoints.checkpoint import FINETUNED_HEADS, Checkpoint, read_checkpoint
  from albert_tf.configs import AlbertConfig
  from albert_tf.runs.run_directory import CONFIG_FILE
  from albert_tf.tokenization.config import WordPieceConfig, find_tokenizer

  init_checkpoint = request.init_checkpoint
  if request.ensemble_of:
    # No model is run, and a directory of answers may have no weights.
    config = AlbertConfig.from_json_file(os.path.join(init_checkpoint, CONFIG_FILE))
    tokenizer = find_tokenizer(init_checkpoint)
    return Checkpoint(config=config, variables={}, tokenizer=tokenizer, path=init_checkpoint)
  if not init_checkpoint and request.trained is not None:
    # A finished run predicts with its own weights.
    init_checkpoint = request.output_dir
  if not init_checkpoint:
    raise UserError(
      "Fine-tuning starts from pretrained weights. Received: an empty --init_checkpoint. Name a run, "
      "a released checkpoint, or a folder of TF-Hub or Hugging Face."
    )
  start = read_checkpoint(init_checkpoint)
  has_head = any(re.search(FINETUNED_HEADS, name) for name in start.variables)
  # Before the data are read: labels that only a fine-tuned run knows would be missing.
  if not request.settings.do_train and not has_head:
    raise UserError(
      "Without --do_train the weights are those of a fine-tuned run. Received: "
      f"{start.path}, which was only pretrained and has no head for a task. Train it with "
      "--do_train, or name a fine-tuned run with --init_checkpoint."
    )
  if not takes_wordpiece and start.tokenizer and isinstance(start.tokenizer[1], WordPieceConfig):
    raise UserError(
      "This task needs a SentencePiece model, which gives the position of each token in the text. "
      f"Received: {start.path}, with a WordPiece vocabulary. Only run_glue.py takes one."
    )
  return start


# ------------------------------------------------------------------ the run


def run(task: "FineTuningTask", request: Request, start: "Checkpoint") -> None:
  """Trains, evaluates, predicts and exports, or combines runs into an ensemble."""
  from albert_tf.finetuning import ensemble, results
  from albert_tf.finetuning.run import fine_tune
  from albert_tf.serving.precision import check_supported

  check_supported(request.precision)  # Before hours of training.
  settings = request.settings
  if request.ensemble_of:
    combined = ensemble.combine(
      task, request.ensemble_of, output_dir=request.output_dir, predict=settings.do_predict
    )
    _report(ensemble.lines(combined), request.output_dir)
    return

  outcome = fine_tune(
    task,
    settings,
    start=start,
    output_dir=request.output_dir,
    flags_text=request.flags_text,
  )
  _report(results.lines(outcome), request.output_dir)
  if settings.do_train:
    _export(task, request)


def _report(lines: Iterable[str], output_dir: str) -> None:
  for line in lines:
    print(line)
  print(f"results: {os.path.join(output_dir, RESULTS_FILE)}")


def _export(task: "FineTuningTask", request: Request) -> None:
  """Exports the weights that results.json is of, unless a version has them in this precision."""
  from albert_tf.finetuning.results import EXPORTED_VERSION
  from albert_tf.keras_api.tasks import open_model
  from albert_tf.serving.check import PRECISION

  folder = os.path.join(request.output_dir, "saved_model")
  results_path = os.path.join(request.output_dir, RESULTS_FILE)
  results = json_files.read(results_path)
  versions = [int(name) for name in files.listdir(folder) if name.isdigit()]
  newest = max(versions, default=0)
  difference = "weights"
  if results.get(EXPORTED_VERSION) in versions:
    path = os.path.join(folder, str(results[EXPORTED_VERSION]), PRECISION)
    precision = json_files.find(path).get("precision", "float32")
    # A command that is started again leaves its finished run as it is.
    if precision == request.precision:
      return
    difference = f"numbers, {precision}"
  if not request.export:
    if versions:
      print(f"SavedModel: {folder}/{newest} has other {difference}; --export makes a new version.")
    return
  # Hide TensorFlow's messages of saving.
  logging.set_verbosity(logging.ERROR)
  path = os.path.join(folder, str(newest + 1))
  model = open_model(task.spec.export_kind, request.output_dir)
  if request.precision == "float32":
    model.export(path)
  else:
    model.export(path, precision=request.precision, calibration=task.features("eval"), verbose=True)
  json_files.write(results_path, results | {EXPORTED_VERSION: newest + 1})
  print(f"SavedModel: {path}")
