"""Fine-tunes ALBERT to tag words - names, parts of speech, tags of your own - with Keras' `model.fit`.

Example:
  python tpu_scripts/run_tagging.py --train_file=eng.train --eval_file=eng.testa --test_file=eng.testb \
    --init_checkpoint=RUN --output_dir=ner --do_train --do_eval --do_predict --max_seq_length=128
"""

from collections.abc import Sequence
import dataclasses
from typing import TYPE_CHECKING

from absl import app, flags, logging
import finetuning_flags
import finetuning_inputs
from flag_settings import parse_flags

from albert_tf.errors import exit_on_user_error

if TYPE_CHECKING:  # At run time these would import TensorFlow before the flags are read.
  from albert_tf.finetuning.initialize import Start
  from albert_tf.finetuning.settings import FineTuneSettings

flags.adopt_module_key_flags(finetuning_flags)  # --help shows them too.
_TASK_NAME = flags.DEFINE_string(
  "task_name", None, "For results and messages, such as ner or pos. Default: tagging, or as it was trained."
)
flags.DEFINE_string("data_dir", "", "Folder with train, dev and test files, instead of naming them.")
flags.DEFINE_string("train_file", "", "Training sentences: columns (CoNLL), .conllu or .jsonl.")
flags.DEFINE_string(
  "eval_file", "", "Evaluation sentences. Default: --eval_fraction of the training sentences."
)
flags.DEFINE_string("test_file", "", "Sentences to tag; need no tags.")
flags.DEFINE_float("eval_fraction", 0.1, "Held out of the training sentences without an evaluation file.")
flags.DEFINE_integer("token_column", None, "The words' column, from 0. Default: 0; .conllu: 1.")
flags.DEFINE_integer("tag_column", None, "The tags' column; -1 is the last. Default: -1; .conllu: 3.")
flags.DEFINE_string("token_key", "tokens", "The words' key in .jsonl.")
flags.DEFINE_string("tag_key", "tags", "The tags' key in .jsonl.")
_MAX_SEQ_LENGTH = flags.DEFINE_integer(
  "max_seq_length",
  None,
  "Tokens of a sentence; longer ones become several windows. Default: as it was trained, else at most 128.",
)
_COLUMNS = ("token_column", "tag_column", "token_key", "tag_key")
_SUFFIXES = (".jsonl", ".json", ".conllu", ".conll", ".txt", ".tsv", ".bio", ".iob2")


def _prepare(start: "Start", settings: "FineTuneSettings") -> finetuning_flags.Prepared:
  from albert_tf.finetuning.tasks.conll import Columns, read_tagged
  from albert_tf.finetuning.tasks.tagging import TaggingTask

  columns = finetuning_inputs.columns(Columns, **{name: name for name in _COLUMNS})
  paths = finetuning_inputs.split_paths(settings, _SUFFIXES)
  splits = {split: read_tagged(path, columns) for split, path in paths.items()}
  splits = finetuning_inputs.with_evaluation(splits, paths)
  trained = finetuning_inputs.trained_spec()
  task = TaggingTask(
    splits=splits,
    tokenizer=start.tokenizer,
    max_seq_length=finetuning_inputs.max_seq_length(_MAX_SEQ_LENGTH.value, start, default=128),
    name=_TASK_NAME.value or (trained.name if trained else "tagging"),
    label_names=trained.label_names if trained else (),
    columns=dataclasses.asdict(columns),
    # What the weights depend on.
    data={f"{split}_file": path for split, path in paths.items() if split != "test"},
  )
  for split, sentences in splits.items():
    aligned = task.aligned(split)
    words = sum(len(sentence.words) for sentence in sentences)
    logging.info(
      "%s: %d sentences, %d words; %d sentences in several windows, %d words without pieces",
      split,
      len(sentences),
      words,
      len(aligned.windows),
      aligned.words_without_pieces,
    )
  return finetuning_flags.Prepared(task)


def main(argv: Sequence[str]) -> None:
  finetuning_flags.run(argv, _prepare)


if __name__ == "__main__":
  app.run(exit_on_user_error(main), flags_parser=parse_flags)
