"""Fine-tunes ALBERT on RACE, or on multiple choice questions of your own, with Keras' `model.fit`.

Example:
  python tpu_scripts/run_race.py --flagfile=recipes/race.flags --data_dir=RACE --init_checkpoint=RUN \
    --output_dir=race --do_train --do_eval --do_predict
  python tpu_scripts/run_race.py --task_name=custom --data_dir=quiz --question_column=question \
    --choice_columns=a,b,c --label_column=answer --init_checkpoint=RUN --output_dir=quiz_model --do_train
"""

from collections.abc import Sequence
import dataclasses
from typing import TYPE_CHECKING, Any

from absl import app, flags, logging
import finetuning_flags
import finetuning_inputs
from flag_settings import parse_flags

from albert_tf.errors import UserError, exit_on_user_error

if TYPE_CHECKING:  # At run time these would import TensorFlow before the flags are read.
  from albert_tf.finetuning.initialize import Start
  from albert_tf.finetuning.settings import FineTuneSettings
  from albert_tf.finetuning.tasks.choices import ChoiceExample

  _Read = tuple[dict[str, list[ChoiceExample]], dict[str, Any]]  # And which column is what.

flags.adopt_module_key_flags(finetuning_flags)  # --help shows them too.
_TASK_NAME = flags.DEFINE_enum("task_name", "race", ["race", "custom"], "RACE, or a table of your own.")
_DATA_DIR = flags.DEFINE_string(
  "data_dir", "", "Folder RACE, or the one that holds it; custom: with train, dev and test tables."
)
_MAX_SEQ_LENGTH = flags.DEFINE_integer(
  "max_seq_length", None, "Tokens of a passage with one choice. Default: as it was trained, else at most 512."
)
_MAX_QA_LENGTH = flags.DEFINE_integer(
  "max_qa_length",
  None,
  "Tokens of question and choice; the last ones stay. Default: 128, or as it was trained.",
)

# --task_name=race
_HIGH_ONLY = flags.DEFINE_bool("high_only", False, "Only the questions for high schools.")
_MIDDLE_ONLY = flags.DEFINE_bool("middle_only", False, "Only the questions for middle schools.")

# --task_name=custom
flags.DEFINE_string("train_file", "", "Training table: .tsv, .csv, .jsonl or .parquet.")
flags.DEFINE_string("eval_file", "", "Evaluation table. Default: --eval_fraction of the training rows.")
flags.DEFINE_string("test_file", "", "Table to predict; needs no labels.")
flags.DEFINE_float("eval_fraction", 0.1, "Held out of the training rows without an evaluation table.")
flags.DEFINE_string("context_column", "", "The passage's column, where there is one.")
flags.DEFINE_string("question_column", "question", "The question's column.")
flags.DEFINE_list("choice_columns", ["choices"], "A column for each choice, or one of lists.")
flags.DEFINE_string("label_column", "label", "The right choice's column.")
flags.DEFINE_enum(
  "label_format",
  "auto",
  ["auto", "index", "index1", "letter", "text"],
  "How it is written: number from 0 or (index1) from 1, A, B, …, or the choice itself.",
)
flags.DEFINE_string("id_column", "", "Names the rows in predictions. Default: file and line.")
_CUSTOM_ONLY = (
  "train_file", "eval_file", "test_file", "eval_fraction", "context_column", "question_column", "choice_columns",
  "label_column", "label_format", "id_column",
)  # fmt: skip


def _race(settings: "FineTuneSettings") -> "_Read":
  from albert_tf.finetuning.tasks.race import LEVELS, read_race

  finetuning_inputs.refuse_flags(_CUSTOM_ONLY, of="custom")
  if not _DATA_DIR.value:
    raise UserError("RACE is read from a folder. Received: an empty --data_dir. Name the folder RACE.")
  if _HIGH_ONLY.value and _MIDDLE_ONLY.value:
    raise UserError(
      "One level is left out at most. Received: --high_only and --middle_only. Give one or none."
    )
  levels = [
    level
    for level, left_out in zip(LEVELS, (_HIGH_ONLY.value, _MIDDLE_ONLY.value), strict=True)
    if not left_out
  ]
  folders = {"train": "train", "eval": "dev", "test": "test"}
  needed = finetuning_inputs.needed_splits(settings)
  return {split: read_race(_DATA_DIR.value, folders[split], levels=levels) for split in needed}, {}


def _custom(settings: "FineTuneSettings") -> "_Read":
  from albert_tf.finetuning.data import FORMATS, read_table
  from albert_tf.finetuning.tasks.choice_table import ChoiceColumns, choice_examples

  finetuning_inputs.refuse_flags(("high_only", "middle_only"), of="race")
  columns = finetuning_inputs.columns(
    ChoiceColumns,
    question="question_column",
    choices="choice_columns",
    context="context_column",
    label="label_column",
    label_format="label_format",
    example_id="id_column",
  )
  paths = finetuning_inputs.split_paths(settings, FORMATS)
  splits = choice_examples({split: read_table(path) for split, path in paths.items()}, columns)
  return finetuning_inputs.with_evaluation(splits, paths), dataclasses.asdict(columns)


def _prepare(start: "Start", settings: "FineTuneSettings") -> finetuning_flags.Prepared:
  from albert_tf.finetuning.tasks.choices import MultipleChoiceTask

  splits, columns = _race(settings) if _TASK_NAME.value == "race" else _custom(settings)
  for split, examples in splits.items():
    empty = sum(not example.question.strip() for example in examples)
    logging.info("%s: %d questions%s", split, len(examples), f", {empty} of them empty" if empty else "")
  names = ("data_dir", "train_file", "eval_file")  # What the weights depend on.
  trained, max_qa_length = finetuning_inputs.trained_spec(), _MAX_QA_LENGTH.value
  if max_qa_length is None:
    max_qa_length = trained.max_qa_length if trained else 128
  task = MultipleChoiceTask(
    splits=splits,
    tokenizer=start.tokenizer,
    max_seq_length=finetuning_inputs.max_seq_length(_MAX_SEQ_LENGTH.value, start),
    max_qa_length=max_qa_length,
    name=_TASK_NAME.value,
    columns=columns,
    data={name: str(flags.FLAGS[name].value) for name in names if flags.FLAGS[name].value},
  )
  return finetuning_flags.Prepared(task, notes={"questions_cut": task.num_cut})  # Counted as they are packed.


def main(argv: Sequence[str]) -> None:
  finetuning_flags.run(argv, _prepare)


if __name__ == "__main__":
  app.run(exit_on_user_error(main), flags_parser=parse_flags)
