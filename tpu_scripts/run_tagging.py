"""Fine-tunes ALBERT to tag words (names, parts of speech, tags of your own) with Keras' `model.fit`.

Example:
  python tpu_scripts/run_tagging.py --train_file=eng.train --eval_file=eng.testa --test_file=eng.testb \
    --init_checkpoint=RUN --output_dir=ner --do_train --do_eval --do_predict --max_seq_length=128
"""

import finetune_command

from albert_tf.cli import commands
from albert_tf.finetuning.data import read_splits, sources_of
from albert_tf.finetuning.tasks.conll import TaggedSentence, read_tagged
from albert_tf.settings import setting


class Command(finetune_command.DataFiles):
  """The task's name, and the files."""

  task_name: str | None = setting(
    None,
    "Name of the task in results and messages, such as ner. Default: as in training, else tagging.",
  )


# The tags of several runs are not combined.
finetune_command.define_flags(Command, without=(*finetune_command.EARLY_EXIT, "ensemble_of"))


def prepare(
  request: finetune_command.Request, start: "finetune_command.Start"
) -> "finetune_command.FineTuningTask":
  """Reads the sentences, and makes the task of them."""
  from albert_tf.finetuning.tasks.tagging import TaggingTask

  command: Command = request.command
  name = "tagging"
  label_names: tuple[str, ...] = ()
  if request.trained is not None:
    name = request.trained.name
    # New data may lack some of the tags, or have none.
    label_names = request.trained.label_names

  def read(path: str, split: str) -> list[TaggedSentence]:
    del split
    return read_tagged(path)

  paths = request.paths()
  task = TaggingTask(
    splits=read_splits(paths, read, eval_fraction=command.eval_fraction),
    tokenizer=start.tokenizer,
    max_seq_length=request.max_seq_length(start, usual=128),
    name=command.task_name or name,
    label_names=label_names,
  )
  task.sources = sources_of(paths)
  return task


def main() -> None:
  finetune_command.run(finetune_command.read_request(Command), prepare)


if __name__ == "__main__":
  commands.run(main)
