"""Fine-tunes ALBERT to map texts of similar meaning to similar vectors, with Keras' `model.fit`.

Example:
  python tpu_scripts/run_embedding.py --task_name=sts-b --data_dir=glue --init_checkpoint=RUN --output_dir=vectors \
    --do_train --max_seq_length=64 --seeds=1,2,3
  python tpu_scripts/run_embedding.py --task_name=custom --train_file=pairs.jsonl --text_columns=question,answer \
    --init_checkpoint=RUN --output_dir=search --do_train --train_batch_size=128
"""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Literal

import finetune_command

from albert_tf.cli import commands
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning.data import TableColumns, read_splits, read_table, sources_of
from albert_tf.finetuning.tasks.text_tables import TextExample, table_examples
from albert_tf.settings import setting


class Command(finetune_command.DataFiles, TableColumns):
  """The data, and the kind of vector."""

  task_name: Literal["sts-b", "custom"] = setting(
    "custom", "GLUE's STS-B, or a table of your own (custom)."
  )
  data_dir: str = setting("", "sts-b: the task's folder, or the folder that contains it.")
  label: str = setting("", "Column of the scores, if there are any.", flag="label_column")
  negative: str = setting(
    "",
    "Column of texts that do not match the first; not with --label_column.",
    flag="negative_column",
  )
  max_score: float = setting(
    1.0, "custom: score of texts with the same meaning; 0 is the lowest.", above=0
  )
  temperature: float = setting(
    0.05, "Pairs without scores: the loss divides cosines by this.", above=0
  )
  pooling: Literal["mean", "cls"] = setting(
    "mean",
    "Vector of a text: mean of the tokens, or vector at [CLS]. Default: as in training, else mean.",
  )
  normalize: bool = setting(True, "Scale vectors to length 1. Default: as in training, else true.")


# Labels are scores, and the head has no weights. Pooling and normalization have no defaults, so that
# a later evaluation keeps the vectors of training.
finetune_command.define_flags(
  Command,
  without=("multi_label", "ensemble_of", "freeze_encoder", "classifier_dropout"),
  texts=("anchor", "positive"),
  pooling=None,
  normalize=None,
)


def prepare(
  request: finetune_command.Request, start: "finetune_command.Start"
) -> finetune_command.FineTuningTask:
  """Reads the pairs of STS-B or of a table, and makes the task of them."""
  from albert_tf.finetuning.tasks import glue
  from albert_tf.finetuning.tasks.sentence_vectors import SentenceTask

  command: Command = request.command
  _check_flags(request, command)
  splits: Mapping[str, Sequence[TextExample]]
  if command.task_name == "sts-b":
    sources = glue.find_files(glue.TASKS["sts-b"], command.data_dir)
    splits = glue.read_splits(glue.TASKS["sts-b"], sources)
    # "Completely equivalent", as STS-B defines it.
    command = dataclasses.replace(command, max_score=5.0)
  else:
    sources = sources_of(request.paths())
    splits = _read_tables(request, command)
  spec = TaskSpec(
    kind="sentence_vectors",
    name=command.task_name,
    max_seq_length=request.max_seq_length(start, usual=128),
    pooling=command.pooling,
    normalize=command.normalize,
  )
  task = SentenceTask(
    spec,
    splits,
    tokenizer=start.tokenizer,
    max_score=command.max_score,
    temperature=command.temperature,
  )
  task.sources = sources

  # Scores are learned pair by pair, and a batch of them may be divided.
  num_micro_batches = request.settings.gradient_accumulation_steps
  if request.settings.do_train and num_micro_batches > 1 and not task.is_scored("train"):
    raise UserError(
      "Every row of a batch is a negative of the others, so an update is computed in one batch. "
      f"Received: --gradient_accumulation_steps={num_micro_batches} without scores. Leave it out."
    )
  return task


def _check_flags(request: finetune_command.Request, command: Command) -> None:
  """Refuses flags that the data do not use, and columns that are no pairs."""
  if command.task_name == "custom":
    request.refuse_flags("--task_name=custom", ["data_dir"])
  else:
    used = {"task_name", "data_dir", "max_seq_length", "temperature", "pooling", "normalize"}
    request.refuse_flags("--task_name=sts-b", commands.flag_names(Command) - used)
  # Scores are compared with cosines; pairs without them compete within a batch.
  if command.label or command.task_name == "sts-b":
    request.refuse_flags("Training from scores", ["temperature"])
  else:
    request.refuse_flags("Training from pairs without scores", ["max_score"])
  has_label_and_negative = command.label and command.negative
  if len(command.texts) != 2 or has_label_and_negative:
    raise UserError(
      "Two --text_columns are needed, with at most one of --label_column and --negative_column. "
      f"Received: {','.join(command.texts)}, {command.label or 'none'}, "
      f"{command.negative or 'none'}."
    )


def _read_tables(
  request: finetune_command.Request, command: Command
) -> Mapping[str, Sequence[TextExample]]:
  def read(path: str, split: str) -> Sequence[TextExample]:
    # Test data are only predicted, so they need no scores.
    labelled = command.label != "" and split != "test"
    return table_examples(read_table(path), command, labelled=labelled, numbers=True)

  return read_splits(request.paths(), read, eval_fraction=command.eval_fraction)


def main() -> None:
  request = finetune_command.read_request(Command)
  # A pretrained model has vectors too.
  finetune_command.run(request, prepare, vocab_file="", needs_head=False)


if __name__ == "__main__":
  commands.run(main)
