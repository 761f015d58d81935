"""Fine-tunes ALBERT on RACE, or on multiple choice questions of your own, with Keras' `model.fit`.

Example:
  python tpu_scripts/run_race.py --flagfile=recipes/race.flags --data_dir=RACE --init_checkpoint=RUN \
    --output_dir=race --do_train --do_eval --do_predict
  python tpu_scripts/run_race.py --task_name=custom --train_file=quiz.csv --question_column=question \
    --choice_columns=a,b,c --label_column=answer --init_checkpoint=RUN --output_dir=quiz_model --do_train
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import finetune_command

from albert_tf.cli import commands
from albert_tf.errors import UserError
from albert_tf.finetuning.data import read_splits, read_table, sources_of
from albert_tf.finetuning.tasks.choices import (
  LEVELS,
  ChoiceColumns,
  ChoiceExample,
  choice_examples,
  read_race,
)
from albert_tf.settings import setting

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
  high_only: bool = setting(False, "race: use only the questions for high schools.")
  middle_only: bool = setting(False, "race: use only the questions for middle schools.")


# Without a default, so that a later prediction keeps the length of training.
finetune_command.define_flags(Command, without=finetune_command.EARLY_EXIT, max_qa_length=None)


def prepare(
  request: finetune_command.Request, start: "finetune_command.Start"
) -> "finetune_command.FineTuningTask":
  """Reads the questions of RACE or of a table, and makes the task of them."""
  from albert_tf.finetuning.tasks.multiple_choice import MultipleChoiceTask

  command: Command = request.command
  if command.task_name == "custom":
    splits = _read_tables(request, command)
    sources = sources_of(request.paths())
  else:
    splits = _read_race(request, command)
    sources = dict.fromkeys(splits, command.data_dir)
  task = MultipleChoiceTask(
    splits=splits,
    tokenizer=start.tokenizer,
    max_seq_length=request.max_seq_length(start),
    max_qa_length=command.max_qa_length,
    name=command.task_name,
    choice_names=command.choice_names,
  )
  task.sources = sources
  return task


def _read_tables(
  request: finetune_command.Request, command: Command
) -> Mapping[str, Sequence[ChoiceExample]]:
  request.refuse_flags("--task_name=custom", ["data_dir", "high_only", "middle_only"])

  def read(path: str, split: str) -> list[ChoiceExample]:
    return choice_examples(read_table(path), command, labelled=split != "test")

  return read_splits(request.paths(), read, eval_fraction=command.eval_fraction)


def _read_race(
  request: finetune_command.Request, command: Command
) -> Mapping[str, Sequence[ChoiceExample]]:
  # The names of the choices are also those of the predictions.
  of_tables = commands.flag_names(ChoiceColumns) - {"choice_names"}
  of_tables |= {"train_file", "eval_file", "test_file", "eval_fraction"}
  request.refuse_flags("--task_name=race", of_tables)
  # Each flag leaves out the other level: with both there is nothing to read.
  is_left_out = {"middle": command.high_only, "high": command.middle_only}
  levels = [level for level in LEVELS if not is_left_out[level]]
  if not (command.data_dir and levels):
    raise UserError(
      "RACE needs its folder, --data_dir, and at least one school level. Received: "
      f"--data_dir={command.data_dir} for {len(levels)} levels."
    )
  splits = {}
  for split in request.splits():
    splits[split] = read_race(command.data_dir, _FOLDERS[split], levels=levels)
  return splits


def main() -> None:
  finetune_command.run(finetune_command.read_request(Command), prepare)


if __name__ == "__main__":
  commands.run(main)
