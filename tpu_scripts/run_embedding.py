"""Fine-tunes ALBERT to map texts of similar meaning to similar vectors, with Keras' `model.fit`.

Example:
  python tpu_scripts/run_embedding.py --task_name=sts-b --data_dir=glue --init_checkpoint=RUN --output_dir=vectors \
    --do_train --max_seq_length=64 --seeds=1,2,3
  python tpu_scripts/run_embedding.py --task_name=custom --train_file=pairs.jsonl --text_columns=question,answer \
    --init_checkpoint=RUN --output_dir=search --do_train --train_batch_size=128
"""

from typing import Any, Literal

from absl import flags
import finetuning

from albert_tf.cli import commands
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning.data import TableColumns, read_table
from albert_tf.settings import Settings, setting

flags.adopt_module_key_flags(finetuning)  # --help shows them too.
FLAGS = flags.FLAGS


class Command(Settings):
  """The data, and the kind of vector."""

  task_name: Literal["sts-b", "custom"] = setting(
    "custom", "GLUE's STS-B, or a table of your own (custom)."
  )
  data_dir: str = setting("", "sts-b: the task's folder, or the folder that contains it.")
  negative_column: str = setting(
    "", "Column of texts that do not match the first; not with --label_column."
  )
  max_score: float = setting(
    1.0, "custom: score of texts with the same meaning; 0 is the lowest.", above=0
  )
  temperature: float = setting(
    0.05, "Pairs without scores: the loss divides cosines by this.", above=0
  )
  pooling: Literal["mean", "cls"] | None = setting(
    None,
    "Vector of a text: mean of the tokens, or vector at [CLS]. Default: as in training, else mean.",
  )
  normalize: bool | None = setting(
    None, "Scale vectors to length 1. Default: as in training, else true."
  )


commands.define_flags(Command)
commands.define_flags(finetuning.DataFiles)
commands.define_flags(TableColumns, texts=("anchor", "positive"))


def _refuse_unused(command: Command, *, is_scored: bool) -> None:
  """Refuses the flags that the data do not use."""
  if command.task_name == "custom":
    commands.refuse_flags("--task_name=custom", ["data_dir"])
  else:
    of_tables = [*finetuning.DataFiles.flag_names(), *commands.flag_names(TableColumns)]
    commands.refuse_flags("--task_name=sts-b", [*of_tables, "negative_column", "max_score"])
  if is_scored:
    commands.refuse_flags("Training from scores", ["temperature"])
  else:
    commands.refuse_flags("Training from pairs without scores", ["max_score"])


def _prepare(start: Any) -> Any:
  from albert_tf.finetuning.tasks import glue, text_tables
  from albert_tf.finetuning.tasks.sentence_vectors import SentenceTask

  command, given = commands.from_flags(Command), commands.from_flags(finetuning.DataFiles)
  columns = commands.from_flags(TableColumns, negative=command.negative_column)
  trained, is_stsb = finetuning.trained_spec(), command.task_name == "sts-b"
  _refuse_unused(command, is_scored=is_stsb or bool(columns.label))
  if len(columns.texts) != 2 or (columns.label and columns.negative) or columns.multi_label:
    raise UserError(
      "Two --text_columns are needed, with at most one of --label_column and --negative_column. Received: "
      f"{','.join(columns.texts)}, {columns.label or 'none'}, {columns.negative or 'none'}."
    )
  if is_stsb:
    splits = glue.read_splits(glue.TASKS["sts-b"], command.data_dir)
  else:
    scored = bool(columns.label)

    def read(path: str, split: str) -> Any:
      labelled = scored and split != "test"
      return text_tables.table_examples(read_table(path), columns, labelled=labelled, numbers=True)

    splits = given.read(read)
  fields = {
    n: getattr(command, n) for n in ("pooling", "normalize") if getattr(command, n) is not None
  }
  if trained:
    fields = {"pooling": trained.pooling, "normalize": trained.normalize, **fields}
  task = SentenceTask(
    TaskSpec(
      kind="sentence_vectors",
      name=command.task_name,
      max_seq_length=finetuning.max_seq_length(given.max_seq_length, start, default=128),
      **fields,
    ),
    splits,
    tokenizer=start.tokenizer,
    max_score=5.0 if is_stsb else command.max_score,
    temperature=command.temperature,
  )
  if FLAGS.do_train and FLAGS.gradient_accumulation_steps > 1 and not task.is_scored("train"):
    raise UserError(
      "Every row of a batch is a negative of the others, so an update is computed in one batch. Received: "
      f"--gradient_accumulation_steps={FLAGS.gradient_accumulation_steps} without scores. Leave it out."
    )
  return task


def main() -> None:
  finetuning.run(_prepare, vocab_file="")


if __name__ == "__main__":
  commands.run(main)
