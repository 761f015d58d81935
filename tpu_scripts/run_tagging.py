"""Fine-tunes ALBERT to tag words (names, parts of speech, tags of your own) with Keras' `model.fit`.

Example:
  python tpu_scripts/run_tagging.py --train_file=eng.train --eval_file=eng.testa --test_file=eng.testb \
    --init_checkpoint=RUN --output_dir=ner --do_train --do_eval --do_predict --max_seq_length=128
"""

from typing import TYPE_CHECKING

import finetune_command

from albert_tf.cli import commands
from albert_tf.finetuning.data import read_splits, sources_of
from albert_tf.finetuning.tasks.conll import TaggedSentence, read_tagged

# They import TensorFlow, which would make --help slow.
if TYPE_CHECKING:
  from albert_tf.checkpoints.checkpoint import Checkpoint
  from albert_tf.finetuning.tasks.base import FineTuningTask


class Command(finetune_command.DataFiles):
  """The files."""


# The tags of several runs are not combined.
finetune_command.define_flags(Command, without=["depth_distillation", "ensemble_of"])


def make_task(
  command: Command, request: finetune_command.Request, start: "Checkpoint"
) -> "FineTuningTask":
  """Reads the sentences, and makes the task of them."""
  from albert_tf.finetuning.tasks.tagging import TaggingTask

  def read(path: str, split: str) -> list[TaggedSentence]:
    del split
    return read_tagged(path)

  paths = command.paths(request)
  task = TaggingTask(
    splits=read_splits(paths, read, eval_fraction=command.eval_fraction),
    tokenizer=start.load_tokenizer(),
    max_seq_length=command.row_length(request, start, usual=128),
    # New data may lack some of the tags, or have none.
    label_names=request.trained.label_names if request.trained else (),
  )
  task.sources = sources_of(paths)
  return task


def main() -> None:
  request = finetune_command.read_request()
  command = commands.from_flags(Command, request.trained)
  start = finetune_command.read_start(request)
  task = make_task(command, request, start)
  finetune_command.run(task, request, start)


if __name__ == "__main__":
  commands.run(main)
