"""Fine-tunes ALBERT on a task of GLUE, or on a table of your own, with Keras' `model.fit`.

Example:
  python tpu_scripts/run_glue.py --task_name=mrpc --data_dir=glue --init_checkpoint=RUN --output_dir=mrpc \
    --do_train --do_eval --do_predict --max_seq_length=128 --learning_rate=2e-5 --seeds=1,2,3
  python tpu_scripts/run_glue.py --task_name=custom --train_file=train.csv --eval_file=dev.csv \
    --text_columns=review --label_column=stars --init_checkpoint=RUN --output_dir=reviews --do_train
"""

import dataclasses
from typing import Any

from absl import flags
import finetuning

from albert_tf.cli import commands
from albert_tf.errors import UserError
from albert_tf.finetuning.data import TableColumns
from albert_tf.settings import Settings, setting

flags.adopt_module_key_flags(finetuning)  # --help shows them too.


class Command(Settings):
  """The task and its data."""

  task_name: str = setting(
    help="GLUE's cola, sst-2, mrpc, sts-b, qqp, mnli, qnli, rte or wnli, or custom."
  )
  data_dir: str = setting("", "GLUE: the task's folder, or the folder that contains it.")
  vocab_file: str = setting("", "WordPiece vocabulary (.txt), for models such as the Chinese ones.")
  label_names: tuple[str, ...] = setting(
    (), "custom: classes, in order. Default: the labels of the training data."
  )
  regression: bool = setting(False, "custom: predict numbers, not classes.")


commands.define_flags(Command)
commands.define_flags(finetuning.DataFiles)
commands.define_flags(TableColumns, label="label")


def _prepare(start: Any) -> Any:
  from albert_tf.finetuning.tasks.glue import GlueTextTask
  from albert_tf.finetuning.tasks.text import table_task

  command, given = commands.from_flags(Command), commands.from_flags(finetuning.DataFiles)
  name = command.task_name.lower()
  length = finetuning.max_seq_length(given.max_seq_length, start)
  if (name == "custom") == bool(command.data_dir):
    raise UserError(
      "Tasks of GLUE need --data_dir; --task_name=custom needs --train_file or other files. "
      f"Received: --task_name={name}, --data_dir={command.data_dir}."
    )
  if name != "custom":
    not_read = [*finetuning.DataFiles.flag_names(), *commands.flag_names(TableColumns)]
    commands.refuse_flags(f"--task_name={name}", [*not_read, "label_names", "regression"])
    return GlueTextTask(
      name, data_dir=command.data_dir, tokenizer=start.tokenizer, max_seq_length=length
    )
  trained, columns = finetuning.trained_spec(), commands.from_flags(TableColumns)
  if trained and trained.kind == "multi_label":
    columns = dataclasses.replace(columns, multi_label=True)
  return table_task(
    given.paths(),
    columns=columns,
    tokenizer=start.tokenizer,
    regression=command.regression or (trained is not None and trained.kind == "regression"),
    label_names=command.label_names or (trained.label_names if trained else ()),
    thresholds=trained.thresholds if trained else (),
    max_seq_length=length,
    eval_fraction=given.eval_fraction,
  )


def main() -> None:
  finetuning.run(_prepare, vocab_file=flags.FLAGS.vocab_file)


if __name__ == "__main__":
  commands.run(main)
