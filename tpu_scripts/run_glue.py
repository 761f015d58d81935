"""Fine-tunes ALBERT on a task of GLUE, or on a table of your own, with Keras' `model.fit`.

Example:
  python tpu_scripts/run_glue.py --task_name=mrpc --data_dir=glue --init_checkpoint=RUN --output_dir=mrpc \
    --do_train --do_eval --do_predict --max_seq_length=128 --learning_rate=2e-5 --seeds=1,2,3
  python tpu_scripts/run_glue.py --task_name=custom --train_file=train.csv --eval_file=dev.csv \
    --text_columns=review --label_column=stars --init_checkpoint=RUN --output_dir=reviews --do_train
"""

from typing import TYPE_CHECKING, Literal

import finetune_command

from albert_tf.cli import commands
from albert_tf.errors import UserError
from albert_tf.finetuning.data import TableColumns
from albert_tf.settings import setting

# They import TensorFlow, which would make --help slow.
if TYPE_CHECKING:
  from albert_tf.checkpoints.checkpoint import Checkpoint
  from albert_tf.finetuning.tasks.base import FineTuningTask


class Command(finetune_command.DataFiles, TableColumns):
  """The task, and the files and columns of a table of your own."""

  task_name: str = setting(
    help="GLUE's cola, sst-2, mrpc, sts-b, qqp, mnli, qnli, rte or wnli, or custom."
  )
  data_dir: str = setting("", "GLUE: the task's folder, or the folder that contains it.")
  kind: Literal["classification", "multi_label", "regression"] = setting(
    "classification",
    "custom: one class of each text (classification), any number of labels (multi_label), or a "
    "number (regression), neither scaled nor clipped. Default: as in training, else classification.",
    flag="problem",
  )
  class_weights: tuple[str, ...] = setting(
    (),
    "custom: weights of the classes in the training loss, in the order of the classes (sorted, "
    "numbers by value); balanced: all classes count alike. Default: all examples count alike.",
  )
  best_metric: str = setting(
    "",
    "custom: the metric that chooses the checkpoint: accuracy, macro_f1, f1_CLASS, f1_LABEL, "
    "pearson, spearman, average_precision, micro_f1. Default: the first one of the task.",
  )


# Without a default, so that a later prediction keeps the kind of training.
finetune_command.define_flags(Command, kind=None)


def make_task(
  command: Command, request: finetune_command.Request, start: "Checkpoint"
) -> "FineTuningTask":
  """Reads the examples of a task of GLUE or of a table, and makes the task of them."""
  from albert_tf.finetuning.tasks.glue import find_task, glue_task
  from albert_tf.finetuning.tasks.tables import table_task

  name = command.task_name.lower()
  tokenizer = start.load_tokenizer()
  length = command.row_length(request, start)
  # GLUE's tasks are folders of files with fixed names; a table has a flag for each file.
  if (name == "custom") == bool(command.data_dir):
    raise UserError(
      "Tasks of GLUE need --data_dir; --task_name=custom needs --train_file or other files. "
      f"Received: --task_name={name}, --data_dir={command.data_dir}."
    )
  if name != "custom":
    used = {"task_name", "data_dir", "max_seq_length"}
    request.refuse_flags(f"--task_name={name}", commands.flag_names(Command) - used)
    return glue_task(
      find_task(name), data_dir=command.data_dir, tokenizer=tokenizer, max_seq_length=length
    )

  # The run knows what its labels are, and new data may have none.
  trained = request.trained
  return table_task(
    command.paths(request),
    columns=command,  # The columns' flags are its fields.
    tokenizer=tokenizer,
    kind=command.kind,
    label_names=trained.label_names if trained else (),
    thresholds=trained.thresholds if trained else (),
    max_seq_length=length,
    eval_fraction=command.eval_fraction,
    class_weights=command.class_weights,
    best_metric=command.best_metric,
  )


def main() -> None:
  request = finetune_command.read_request()
  command = commands.from_flags(Command, request.trained)
  start = finetune_command.read_start(request, takes_wordpiece=True)
  task = make_task(command, request, start)
  finetune_command.run(task, request, start)


if __name__ == "__main__":
  commands.run(main)
