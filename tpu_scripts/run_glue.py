"""Fine-tunes ALBERT on a task of GLUE, or on a table of your own, with Keras' `model.fit`.

Example:
  python tpu_scripts/run_glue.py --task_name=mrpc --data_dir=glue --init_checkpoint=RUN --output_dir=mrpc \
    --do_train --do_eval --do_predict --max_seq_length=128 --learning_rate=2e-5 --seeds=1,2,3
  python tpu_scripts/run_glue.py --task_name=custom --train_file=train.csv --eval_file=dev.csv \
    --text_columns=review --label_column=stars --init_checkpoint=RUN --output_dir=reviews --do_train
"""

import dataclasses
from typing import TYPE_CHECKING

from absl import flags
import finetuning

from albert_tf import commands
from albert_tf.errors import UserError
from albert_tf.finetuning.data import TableColumns
from albert_tf.settings import Settings, setting

if TYPE_CHECKING:  # At run time these would import TensorFlow before the flags are read.
  from albert_tf.finetuning.initialize import Start
  from albert_tf.finetuning.settings import FineTuneSettings
  from albert_tf.finetuning.tasks.base import FineTuningTask

flags.adopt_module_key_flags(finetuning)  # --help shows them too.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(Settings):
  """Which task, and where its data are."""

  task_name: str | None = setting(
    None, help="cola, sst-2, mrpc, sts-b, qqp, mnli, qnli, rte, wnli, or custom."
  )
  data_dir: str = setting("", help="The task's folder, or the one with GLUE's folders.")
  vocab_file: str = setting(
    "", help="WordPiece vocabulary (.txt), for models without a SentencePiece model, as the Chinese ones."
  )
  label_names: tuple[str, ...] = setting(
    (), help="custom: the classes in order. Default: those of the training data."
  )
  regression: bool = setting(False, help="custom: labels are numbers to predict.")


commands.define_flags(Command)
commands.define_flags(finetuning.DataFiles)
commands.define_flags(TableColumns, label="label")
flags.mark_flag_as_required("task_name")
_CUSTOM_ONLY = (
  "train_file", "eval_file", "test_file", "eval_fraction", "text_columns", "label_column", "id_column",
  "label_names", "regression",
)  # fmt: skip


def _prepare(start: "Start", settings: "FineTuneSettings") -> finetuning.Prepared:
  command, given = commands.from_flags(Command), commands.from_flags(finetuning.DataFiles)
  length = finetuning.max_seq_length(given.max_seq_length, start)
  if str(command.task_name).lower() == "custom":
    return finetuning.Prepared(_custom_task(command, given, start, max_seq_length=length))
  from albert_tf.finetuning.tasks.glue import GlueTextTask

  finetuning.refuse_flags(_CUSTOM_ONLY, of="custom")
  if not command.data_dir:
    raise UserError("GLUE's tasks need their data. Received: an empty --data_dir. Name GLUE's folder.")
  task = GlueTextTask(
    str(command.task_name), data_dir=command.data_dir, tokenizer=start.tokenizer, max_seq_length=length
  )
  return finetuning.Prepared(task)


def _custom_task(
  command: Command, given: finetuning.DataFiles, start: "Start", *, max_seq_length: int
) -> "FineTuningTask":
  from albert_tf.finetuning.tasks.text import table_task

  trained = finetuning.trained_spec()
  return table_task(
    {"train": given.train_file, "eval": given.eval_file, "test": given.test_file},
    columns=commands.from_flags(TableColumns),
    tokenizer=start.tokenizer,
    regression=command.regression or (trained is not None and trained.kind == "regression"),
    label_names=command.label_names or (trained.label_names if trained else ()),
    max_seq_length=max_seq_length,
    eval_fraction=given.eval_fraction,
  )


def main() -> None:
  finetuning.run(_prepare, vocab_file=flags.FLAGS.vocab_file)


if __name__ == "__main__":
  commands.run(main)
