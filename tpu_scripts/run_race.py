"""Fine-tunes ALBERT on RACE, or on multiple choice questions of your own, with Keras' `model.fit`.

Example:
  python tpu_scripts/run_race.py --flagfile=recipes/race.flags --data_dir=RACE --init_checkpoint=RUN \
    --output_dir=race --do_train --do_eval --do_predict
  python tpu_scripts/run_race.py --task_name=custom --data_dir=quiz --question_column=question \
    --choice_columns=a,b,c --label_column=answer --init_checkpoint=RUN --output_dir=quiz_model --do_train
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from absl import app, flags, logging
import finetuning_flags

from albert_tf.errors import UserError, exit_on_user_error

if TYPE_CHECKING:  # At run time these would import TensorFlow before the flags are read.
  from albert_tf.finetuning.initialize import Start
  from albert_tf.finetuning.multiple_choice import ChoiceExample
  from albert_tf.finetuning.settings import FineTuneSettings

flags.adopt_module_key_flags(finetuning_flags)  # --help shows them too.
_TASK_NAME = flags.DEFINE_enum("task_name", "race", ["race", "custom"], "RACE, or a table of your own.")
_DATA_DIR = flags.DEFINE_string(
  "data_dir", "", "Folder RACE, or the one that holds it; custom: with train, dev and test tables."
)
_MAX_SEQ_LENGTH = flags.DEFINE_integer(
  "max_seq_length", None, "Pieces of a passage with one choice. Default: as it was trained, else at most 512."
)
_MAX_QA_LENGTH = flags.DEFINE_integer(
  "max_qa_length",
  None,
  "Pieces of question and choice; the last ones stay. Default: 128, or as it was trained.",
)

# --task_name=race
_HIGH_ONLY = flags.DEFINE_bool("high_only", False, "Only the questions for high schools.")
_MIDDLE_ONLY = flags.DEFINE_bool("middle_only", False, "Only the questions for middle schools.")

# --task_name=custom
_TRAIN_FILE = flags.DEFINE_string("train_file", "", "Training table: .tsv, .csv, .jsonl or .parquet.")
_EVAL_FILE = flags.DEFINE_string(
  "eval_file", "", "Evaluation table. Default: --eval_fraction of the training rows."
)
_TEST_FILE = flags.DEFINE_string("test_file", "", "Table to predict; needs no labels.")
_EVAL_FRACTION = flags.DEFINE_float(
  "eval_fraction", 0.1, "Held out of the training rows without an evaluation table."
)
_CONTEXT_COLUMN = flags.DEFINE_string("context_column", "", "The passage's column, where there is one.")
_QUESTION_COLUMN = flags.DEFINE_string("question_column", "question", "The question's column.")
_CHOICE_COLUMNS = flags.DEFINE_list(
  "choice_columns", ["choices"], "A column for each choice, or one of lists."
)
_LABEL_COLUMN = flags.DEFINE_string("label_column", "label", "The right choice's column.")
_LABEL_FORMAT = flags.DEFINE_enum(
  "label_format",
  "auto",
  ["auto", "index", "index1", "letter", "text"],
  "How it is written: number from 0 or (index1) from 1, A, B, …, or the choice itself.",
)
_ID_COLUMN = flags.DEFINE_string("id_column", "", "Names the rows in predictions. Default: file and line.")
_CUSTOM_ONLY = (
  "train_file", "eval_file", "test_file", "eval_fraction", "context_column", "question_column", "choice_columns",
  "label_column", "label_format", "id_column",
)  # fmt: skip


def _refuse_flags(names: Sequence[str], *, of: str) -> None:
  given = [name for name in names if flags.FLAGS[name].present]
  if given:
    raise UserError(
      f"--{given[0]} belongs to --task_name={of}. Received: it with --task_name={_TASK_NAME.value}. Leave it out."
    )


def _needed(settings: "FineTuneSettings") -> list[str]:
  """The splits that what is to be done reads."""
  wanted = {
    "train": settings.do_train,
    "eval": settings.do_train or settings.do_eval,
    "test": settings.do_predict,
  }
  return [split for split, is_wanted in wanted.items() if is_wanted]


def _race(settings: "FineTuneSettings") -> "dict[str, list[ChoiceExample]]":
  from albert_tf.finetuning.race import LEVELS, read_race

  _refuse_flags(_CUSTOM_ONLY, of="custom")
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
  return {split: read_race(_DATA_DIR.value, folders[split], levels=levels) for split in _needed(settings)}


def _custom(settings: "FineTuneSettings") -> "dict[str, list[ChoiceExample]]":
  from albert_tf.finetuning.multiple_choice_table import ChoiceColumns, Table, choice_examples
  from albert_tf.finetuning.split_files import find_split_files, hold_out
  from albert_tf.finetuning.tables import FORMATS

  _refuse_flags(("high_only", "middle_only"), of="race")
  columns = ChoiceColumns(
    question=_QUESTION_COLUMN.value,
    choices=tuple(_CHOICE_COLUMNS.value),
    context=_CONTEXT_COLUMN.value,
    label=_LABEL_COLUMN.value,
    label_format=_LABEL_FORMAT.value,
    example_id=_ID_COLUMN.value,
  )
  paths = find_split_files(
    _DATA_DIR.value,
    FORMATS,
    needed=_needed(settings),
    train=_TRAIN_FILE.value,
    eval=_EVAL_FILE.value,
    test=_TEST_FILE.value,
  )
  wanted = set(_needed(settings))
  if "eval" in wanted and "eval" not in paths:
    wanted.add("train")  # A part of it is held out.
  tables = {split: Table.read(path) for split, path in paths.items() if split in wanted}
  splits = choice_examples(tables, columns)
  if "train" in splits and "eval" not in splits:
    splits["train"], splits["eval"] = hold_out(splits["train"], _EVAL_FRACTION.value, source=paths["train"])
  return splits


def _or_default(value: int | None, default: int) -> int:
  return default if value is None else value


def _make_task(start: "Start", settings: "FineTuneSettings") -> Any:
  from albert_tf.finetuning.multiple_choice_task import MultipleChoiceTask

  splits = _race(settings) if _TASK_NAME.value == "race" else _custom(settings)
  for split, examples in splits.items():
    empty = sum(not example.question.strip() for example in examples)
    logging.info("%s: %d questions%s", split, len(examples), f", {empty} of them empty" if empty else "")
  names = ("data_dir", "train_file", "eval_file")  # What the weights depend on.
  trained = finetuning_flags.trained_spec()
  return MultipleChoiceTask(
    splits=splits,
    tokenizer=start.tokenizer,
    max_seq_length=finetuning_flags.max_seq_length(_MAX_SEQ_LENGTH.value, start),
    max_qa_length=_or_default(_MAX_QA_LENGTH.value, trained.max_qa_length if trained else 128),
    name=_TASK_NAME.value,
    data={name: str(flags.FLAGS[name].value) for name in names if flags.FLAGS[name].value},
  )


def main(argv: Sequence[str]) -> None:
  finetuning_flags.run(argv, _make_task, model="multiple_choice")


if __name__ == "__main__":
  app.run(exit_on_user_error(main))
