"""Fine-tunes ALBERT on RACE, or on multiple choice questions of your own, with Keras' `model.fit`.

Example:
  python tpu_scripts/run_race.py --flagfile=recipes/race.flags --data_dir=RACE --init_checkpoint=RUN \
    --output_dir=race --do_train --do_eval --do_predict
  python tpu_scripts/run_race.py --task_name=custom --train_file=quiz.csv --question_column=question \
    --choice_columns=a,b,c --label_column=answer --init_checkpoint=RUN --output_dir=quiz_model --do_train
"""

from typing import Any, Literal

from absl import flags
import finetuning

from albert_tf.cli import commands
from albert_tf.errors import UserError
from albert_tf.finetuning.data import read_table
from albert_tf.finetuning.tasks.choices import (
  LEVELS,
  ChoiceColumns,
  ChoiceExample,
  choice_examples,
  read_race,
)
from albert_tf.settings import Settings, setting

flags.adopt_module_key_flags(finetuning)  # --help shows them too.
_FOLDERS = {"train": "train", "eval": "dev", "test": "test"}


class Command(Settings):
  """The data, and the length of a row."""

  task_name: Literal["race", "custom"] = setting("race", "RACE, or a table of your own (custom).")
  data_dir: str = setting("", "race: the folder RACE, or the folder that contains it.")
  max_qa_length: int | None = setting(
    None,
    "Largest number of tokens of question and choice; the last ones are kept. Default: as in training, else 128.",
    minimum=1,
  )
  high_only: bool = setting(False, "race: use only the questions for high schools.")
  middle_only: bool = setting(False, "race: use only the questions for middle schools.")


commands.define_flags(Command)
commands.define_flags(finetuning.DataFiles)
commands.define_flags(ChoiceColumns)


def _read(command: Command, given: finetuning.DataFiles) -> dict[str, list[ChoiceExample]]:
  """The questions of each split that is needed."""
  if command.task_name == "custom":
    commands.refuse_flags("--task_name=custom", ["data_dir", "high_only", "middle_only"])
    columns = commands.from_flags(ChoiceColumns)
    return given.read(
      lambda path, split: choice_examples(read_table(path), columns, labelled=split != "test")
    )
  of_tables = [name for name in commands.flag_names(ChoiceColumns) if name != "choice_names"]
  commands.refuse_flags("--task_name=race", [*finetuning.DataFiles.flag_names(), *of_tables])
  left_out = {"middle": command.high_only, "high": command.middle_only}
  levels = [level for level in LEVELS if not left_out[level]]
  if not (command.data_dir and levels):
    raise UserError(
      "RACE needs its folder, --data_dir, and at least one school level. Received: "
      f"--data_dir={command.data_dir} for {len(levels)} levels."
    )
  return {
    split: read_race(command.data_dir, _FOLDERS[split], levels=levels)
    for split in finetuning.needed_splits()
  }


def _prepare(start: Any) -> Any:
  from albert_tf.finetuning.tasks.multiple_choice import MultipleChoiceTask

  command, given = commands.from_flags(Command), commands.from_flags(finetuning.DataFiles)
  trained = finetuning.trained_spec()
  return MultipleChoiceTask(
    splits=_read(command, given),
    tokenizer=start.tokenizer,
    max_seq_length=finetuning.max_seq_length(given.max_seq_length, start),
    max_qa_length=command.max_qa_length or (trained.max_qa_length if trained else 128),
    name=command.task_name,
    choice_names=commands.from_flags(ChoiceColumns).choice_names,
  )


def main() -> None:
  finetuning.run(_prepare)


if __name__ == "__main__":
  commands.run(main)
