"""Fine-tunes ALBERT to tag words (names, parts of speech, tags of your own) with Keras' `model.fit`.

Example:
  python tpu_scripts/run_tagging.py --train_file=eng.train --eval_file=eng.testa --test_file=eng.testb \
    --init_checkpoint=RUN --output_dir=ner --do_train --do_eval --do_predict --max_seq_length=128
"""

from typing import Any

from absl import flags
import finetuning

from albert_tf.cli import commands
from albert_tf.finetuning.tasks.conll import Columns, read_tagged
from albert_tf.settings import Settings, setting

flags.adopt_module_key_flags(finetuning)  # --help shows them too.


class Command(Settings):
  """The task's name."""

  task_name: str | None = setting(
    None,
    "Name of the task in results and messages, such as ner. Default: as in training, else tagging.",
  )


commands.define_flags(Command)
commands.define_flags(finetuning.DataFiles)
commands.define_flags(Columns)


def _prepare(start: Any) -> Any:
  from albert_tf.finetuning.tasks.tagging import TaggingTask

  given, columns = commands.from_flags(finetuning.DataFiles), commands.from_flags(Columns)
  trained = finetuning.trained_spec()
  return TaggingTask(
    splits=given.read(lambda path, split: read_tagged(path, columns)),
    tokenizer=start.tokenizer,
    max_seq_length=finetuning.max_seq_length(given.max_seq_length, start, default=128),
    name=flags.FLAGS.task_name or (trained.name if trained else "tagging"),
    label_names=trained.label_names if trained else (),
  )


def main() -> None:
  finetuning.run(_prepare)


if __name__ == "__main__":
  commands.run(main)
