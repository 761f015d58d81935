"""Fine-tunes ALBERT on RACE, or on multiple choice questions of your own, with Keras' `model.fit`.

Example:
  python tpu_scripts/run_race.py --flagfile=recipes/race.flags --data_dir=RACE --init_checkpoint=RUN \
    --output_dir=race --do_train --do_eval --do_predict
  python tpu_scripts/run_race.py --task_name=custom --train_file=quiz.csv --question_column=question \
    --choice_columns=a,b,c --label_column=answer --init_checkpoint=RUN --output_dir=quiz_model --do_train
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import finetune_command

from albert_tf.cli import commands
from albert_tf.errors import UserError
from albert_tf.finetuning.data import read_splits, read_table, sources_of
from albert_tf.finetuning.tasks.choices import (
  ChoiceColumns,
  ChoiceExample,
  choice_examples,
  read_race,
)
from albert_tf.settings import setting

# They import TensorFlow, which would make --help slow.
if TYPE_CHECKING:
  from albert_tf.checkpoints.checkpoint import Checkpoint
  from albert_tf.finetuning.tasks.base import FineTuningTask

# Split → RACE's name of it.
_FOLDERS = {"train": "train", "eval": "dev", "test": "test"}


class Command(finetune_command.DataFiles, ChoiceColumns):
  """The data, and the length of a row."""

  task_name: Literal["race", "custom"] = setting("race", "RACE, or a table of your own (custom).")
  data_dir: str = setting("", "race: the folder RACE, or the folder that contains it.")
  max_qa_length: int = setting(
    128,
    "Largest number of tokens of question and choice; the last ones are kept. "
    "Default: as in training, else 128.",
    minimum=1,
  )


# Without a default, so that a later prediction keeps the length of training.
finetune_command.define_flags(Command, without=["depth_distillation"], max_qa_length=None)


def make_task(
  command: Command, request: finetune_command.Request, start: "Checkpoint"
) -> "FineTuningTask":
  """Reads the questions of RACE or of a table, and makes the task of them."""
  from albert_tf.finetuning.tasks.multiple_choice import multiple_choice_task

  if command.task_name == "custom":
    splits = _read_tables(command, request)
    sources = sources_of(command.paths(request))
  else:
    splits = _read_race(command, request)
    sources = dict.fromkeys(splits, command.data_dir)
  return multiple_choice_task(
    splits,
    tokenizer=start.load_tokenizer(),
    max_seq_length=command.row_length(request, start),
    max_qa_length=command.max_qa_length,
    name=command.task_name,
    choice_names=command.choice_names,
    sources=sources,
  )


def _read_tables(
  command: Command, request: finetune_command.Request
) -> Mapping[str, Sequence[ChoiceExample]]:
  request.refuse_flags("--task_name=custom", ["data_dir"])

  def read(path: str, split: str) -> list[ChoiceExample]:
    return choice_examples(read_table(path), command, labelled=split != "test")

  return read_splits(command.paths(request), read, eval_fraction=command.eval_fraction)


def _read_race(
  command: Command, request: finetune_command.Request
) -> Mapping[str, Sequence[ChoiceExample]]:
  # The names of the choices are also those of the predictions.
  of_tables = commands.flag_names(ChoiceColumns) - {"choice_names"}
  of_tables |= {"train_file", "eval_file", "test_file", "eval_fraction"}
  request.refuse_flags("--task_name=race", of_tables)
  if not command.data_dir:
    raise UserError(
      "RACE needs its folder. Received: an empty --data_dir. Name it; for questions of your own give "
      "--task_name=custom."
    )
  return {split: read_race(command.data_dir, _FOLDERS[split]) for split in request.splits()}


def main() -> None:
  request = finetune_command.read_request()
  command = commands.from_flags(Command, request.trained)
  start = finetune_command.read_start(request)
  task = make_task(command, request, start)
  finetune_command.run(task, request, start)


if __name__ == "__main__":
  commands.run(main)
