"""Fine-tunes ALBERT to tag words - names, parts of speech, tags of your own - with Keras' `model.fit`.

Example:
  python tpu_scripts/run_tagging.py --train_file=eng.train --eval_file=eng.testa --test_file=eng.testb \
    --init_checkpoint=RUN --output_dir=ner --do_train --do_eval --do_predict --max_seq_length=128
"""

import dataclasses
from typing import TYPE_CHECKING

from absl import flags
import finetuning

from albert_tf import commands
from albert_tf.finetuning.tasks.conll import Columns, read_tagged
from albert_tf.settings import Settings, setting

if TYPE_CHECKING:  # At run time these would import TensorFlow before the flags are read.
  from albert_tf.finetuning.initialize import Start
  from albert_tf.finetuning.settings import FineTuneSettings

flags.adopt_module_key_flags(finetuning)  # --help shows them too.
_SUFFIXES = (".jsonl", ".json", ".conllu", ".conll", ".txt", ".tsv", ".bio", ".iob2")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(Settings):
  """What is read, and how long a row is."""

  task_name: str | None = setting(
    None, help="For results and messages, such as ner or pos. Default: tagging, or as it was trained."
  )
  data_dir: str = setting("", help="Folder with train, dev and test files, instead of naming them.")
  train_file: str = setting("", help="Training sentences: columns (CoNLL), .conllu or .jsonl.")
  eval_file: str = setting(
    "", help="Evaluation sentences. Default: --eval_fraction of the training sentences."
  )
  test_file: str = setting("", help="Sentences to tag; need no tags.")
  eval_fraction: float = setting(
    0.1, help="Held out of the training sentences without an evaluation file.", above=0.0, below=1.0
  )
  max_seq_length: int | None = setting(
    None,
    help="Tokens of a sentence; longer ones become several windows. Default: as it was trained, else at most 128.",
    minimum=5,
  )


commands.define_flags(Command)
commands.define_flags(Columns)


def _prepare(start: "Start", settings: "FineTuneSettings") -> finetuning.Prepared:
  from albert_tf.finetuning.tasks.tagging import TaggingTask

  command, columns = commands.from_flags(Command), finetuning.columns(Columns)
  paths = finetuning.split_paths(settings, _SUFFIXES)
  splits = {split: read_tagged(path, columns) for split, path in paths.items()}
  trained = finetuning.trained_spec()
  task = TaggingTask(
    splits=finetuning.with_evaluation(splits, paths),
    tokenizer=start.tokenizer,
    max_seq_length=finetuning.max_seq_length(command.max_seq_length, start, default=128),
    name=command.task_name or (trained.name if trained else "tagging"),
    label_names=trained.label_names if trained else (),
    columns=dataclasses.asdict(columns),
    # What the weights depend on.
    data={f"{split}_file": path for split, path in paths.items() if split != "test"},
  )
  return finetuning.Prepared(task)


def main() -> None:
  finetuning.run(_prepare)


if __name__ == "__main__":
  commands.run(main)
