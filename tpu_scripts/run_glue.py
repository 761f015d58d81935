"""Fine-tunes ALBERT on a task of GLUE, or on a table of your own, with Keras' `model.fit`.

Example:
  python tpu_scripts/run_glue.py --task_name=mrpc --data_dir=glue --init_checkpoint=RUN --output_dir=mrpc \
    --do_train --do_eval --do_predict --max_seq_length=128 --learning_rate=2e-5 --seeds=1,2,3
  python tpu_scripts/run_glue.py --task_name=custom --train_file=train.csv --eval_file=dev.csv \
    --text_columns=review --label_column=stars --init_checkpoint=RUN --output_dir=reviews --do_train
"""

import dataclasses

import finetune_command

from albert_tf.cli import commands
from albert_tf.errors import UserError
from albert_tf.finetuning.data import TableColumns
from albert_tf.settings import setting


class Command(finetune_command.DataFiles, TableColumns):
  """The task, and the files and columns of a table of your own."""

  task_name: str = setting(
    help="GLUE's cola, sst-2, mrpc, sts-b, qqp, mnli, qnli, rte or wnli, or custom."
  )
  data_dir: str = setting("", "GLUE: the task's folder, or the folder that contains it.")
  vocab_file: str = setting("", "WordPiece vocabulary (.txt), for models such as the Chinese ones.")
  label_names: tuple[str, ...] = setting(
    (), "custom: classes, in order. Default: the labels of the training data."
  )
  regression: bool = setting(False, "custom: predict numbers, not classes.")
  class_weights: tuple[str, ...] = setting(
    (),
    "custom: weights of the classes in the training loss, in the order of the classes; balanced: "
    "all classes count alike. Default: all examples count alike.",
  )
  best_metric: str = setting(
    "",
    "custom: the metric that chooses the checkpoint: accuracy, macro_f1, f1_CLASS, f1_LABEL, "
    "pearson, spearman, average_precision, micro_f1. Default: the first one of the task.",
  )


finetune_command.define_flags(Command)


def prepare(
  request: finetune_command.Request, start: "finetune_command.Start"
) -> "finetune_command.FineTuningTask":
  """Reads the examples of a task of GLUE or of a table, and makes the task of them."""
  from albert_tf.finetuning.tasks.glue import GlueTextTask
  from albert_tf.finetuning.tasks.text import table_task

  command: Command = request.command
  name = command.task_name.lower()
  length = request.max_seq_length(start)
  # GLUE's tasks are folders of files with fixed names; a table has a flag for each file.
  if (name == "custom") == bool(command.data_dir):
    raise UserError(
      "Tasks of GLUE need --data_dir; --task_name=custom needs --train_file or other files. "
      f"Received: --task_name={name}, --data_dir={command.data_dir}."
    )
  if name != "custom":
    used = {"task_name", "data_dir", "vocab_file", "max_seq_length"}
    request.refuse_flags(f"--task_name={name}", commands.flag_names(Command) - used)
    return GlueTextTask(
      name, data_dir=command.data_dir, tokenizer=start.tokenizer, max_seq_length=length
    )

  thresholds: tuple[float, ...] = ()
  trained = request.trained
  if trained is not None:
    # The run knows what its labels are, and new data may have none.
    thresholds = trained.thresholds
    command = dataclasses.replace(
      command,
      multi_label=command.multi_label or trained.kind == "multi_label",
      regression=command.regression or trained.kind == "regression",
      label_names=command.label_names or trained.label_names,
    )
  return table_task(
    request.paths(),
    columns=command,
    tokenizer=start.tokenizer,
    regression=command.regression,
    label_names=command.label_names,
    thresholds=thresholds,
    max_seq_length=length,
    eval_fraction=command.eval_fraction,
    class_weights=command.class_weights,
    best_metric=command.best_metric,
  )


def main() -> None:
  request = finetune_command.read_request(Command)
  finetune_command.run(request, prepare, vocab_file=request.command.vocab_file)


if __name__ == "__main__":
  commands.run(main)
