"""Fine-tunes ALBERT to tag words - names, parts of speech, tags of your own - with Keras' `model.fit`.

Example:
  python tpu_scripts/run_tagging.py --train_file=eng.train --eval_file=eng.testa --test_file=eng.testb \
    --init_checkpoint=RUN --output_dir=ner --do_train --do_eval --do_predict --max_seq_length=128
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from absl import app, flags, logging
import finetuning_flags

from albert_tf.errors import exit_on_user_error

if TYPE_CHECKING:  # At run time these would import TensorFlow before the flags are read.
  from albert_tf.finetuning.conll import TaggedSentence
  from albert_tf.finetuning.initialize import Start
  from albert_tf.finetuning.settings import FineTuneSettings

flags.adopt_module_key_flags(finetuning_flags)  # --help shows them too.
_TASK_NAME = flags.DEFINE_string(
  "task_name", None, "For results and messages, such as ner or pos. Default: tagging, or as it was trained."
)
_DATA_DIR = flags.DEFINE_string(
  "data_dir", "", "Folder with train, dev and test files, instead of naming them."
)
_TRAIN_FILE = flags.DEFINE_string("train_file", "", "Training sentences: columns (CoNLL), .conllu or .jsonl.")
_EVAL_FILE = flags.DEFINE_string(
  "eval_file", "", "Evaluation sentences. Default: --eval_fraction of the training sentences."
)
_TEST_FILE = flags.DEFINE_string("test_file", "", "Sentences to tag; need no tags.")
_EVAL_FRACTION = flags.DEFINE_float(
  "eval_fraction", 0.1, "Held out of the training sentences without an evaluation file."
)
_TOKEN_COLUMN = flags.DEFINE_integer(
  "token_column", None, "The words' column, from 0. Default: 0; .conllu: 1."
)
_TAG_COLUMN = flags.DEFINE_integer(
  "tag_column", None, "The tags' column; -1 is the last. Default: -1; .conllu: 3."
)
_TOKEN_KEY = flags.DEFINE_string("token_key", "tokens", "The words' key in .jsonl.")
_TAG_KEY = flags.DEFINE_string("tag_key", "tags", "The tags' key in .jsonl.")
_MAX_SEQ_LENGTH = flags.DEFINE_integer(
  "max_seq_length",
  None,
  "Pieces of a sentence; longer ones become several windows. Default: as it was trained, else at most 128.",
)
_SUFFIXES = (".jsonl", ".json", ".conllu", ".conll", ".txt", ".tsv", ".bio", ".iob2")


def _read(settings: "FineTuneSettings") -> "tuple[dict[str, list[TaggedSentence]], dict[str, str]]":
  """The sentences of each split that is needed, and their files."""
  from albert_tf.finetuning.conll import Columns, read_tagged
  from albert_tf.finetuning.split_files import find_split_files, hold_out

  columns = Columns(
    token_column=_TOKEN_COLUMN.value,
    tag_column=_TAG_COLUMN.value,
    token_key=_TOKEN_KEY.value,
    tag_key=_TAG_KEY.value,
  )
  evaluates = settings.do_train or settings.do_eval
  wanted = {"train": settings.do_train, "eval": evaluates, "test": settings.do_predict}
  paths = find_split_files(
    _DATA_DIR.value,
    _SUFFIXES,
    needed=[split for split, is_wanted in wanted.items() if is_wanted],
    train=_TRAIN_FILE.value,
    eval=_EVAL_FILE.value,
    test=_TEST_FILE.value,
  )
  wanted["train"] |= evaluates and "eval" not in paths  # A part of it is held out.
  paths = {split: path for split, path in paths.items() if wanted[split]}
  splits = {split: read_tagged(path, columns) for split, path in paths.items()}
  if "train" in splits and "eval" not in splits:
    splits["train"], splits["eval"] = hold_out(splits["train"], _EVAL_FRACTION.value, source=paths["train"])
  return splits, paths


def _make_task(start: "Start", settings: "FineTuneSettings") -> Any:
  from albert_tf.finetuning.tagging_task import TaggingTask

  splits, paths = _read(settings)
  trained = finetuning_flags.trained_spec()
  task = TaggingTask(
    splits=splits,
    tokenizer=start.tokenizer,
    max_seq_length=finetuning_flags.max_seq_length(_MAX_SEQ_LENGTH.value, start, default=128),
    name=_TASK_NAME.value or (trained.name if trained else "tagging"),
    label_names=trained.label_names if trained else (),
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
  return task


def main(argv: Sequence[str]) -> None:
  finetuning_flags.run(argv, _make_task, model="token_classification")


if __name__ == "__main__":
  app.run(exit_on_user_error(main))
