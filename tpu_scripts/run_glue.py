"""Fine-tunes ALBERT on a task of GLUE, or on a table of your own, with Keras' `model.fit`.

Example:
  python tpu_scripts/run_glue.py --task_name=mrpc --data_dir=glue --init_checkpoint=RUN --output_dir=mrpc \
    --do_train --do_eval --do_predict --max_seq_length=128 --learning_rate=2e-5 --seeds=1,2,3
  python tpu_scripts/run_glue.py --task_name=custom --train_file=train.csv --eval_file=dev.csv \
    --text_columns=review --label_column=stars --init_checkpoint=RUN --output_dir=reviews --do_train
"""

from collections.abc import Sequence
import os
from typing import TYPE_CHECKING, Any

from absl import app, flags
import device_flags
import finetuning_flags

from albert_tf import files
from albert_tf.errors import UserError, exit_on_user_error
from albert_tf.startup import load_tensorflow

if TYPE_CHECKING:
  from albert_tf.finetuning.initialize import Start

flags.adopt_module_key_flags(finetuning_flags)  # --help shows them too.
_TASK_NAME = flags.DEFINE_string(
  "task_name", None, "cola, sst-2, mrpc, sts-b, qqp, mnli, qnli, rte, wnli, ax, or custom.", required=True
)
_DATA_DIR = flags.DEFINE_string("data_dir", "", "The task's folder, or the one with GLUE's folders.")
_MAX_SEQ_LENGTH = flags.DEFINE_integer(
  "max_seq_length",
  None,
  "Pieces of an example; longer ones are cut. Default: as it was trained, else at most 512.",
)
_VOCAB_FILE = flags.DEFINE_string(
  "vocab_file",
  "",
  "WordPiece vocabulary (.txt), for models without a SentencePiece model, as the Chinese ones. Such a model is not "
  "exported: SavedModels read text with SentencePiece.",
)

# --task_name=custom
_TRAIN_FILE = flags.DEFINE_string("train_file", "", "Training table: .tsv, .csv, .jsonl or .parquet.")
_EVAL_FILE = flags.DEFINE_string(
  "eval_file", "", "Evaluation table. Default: --eval_fraction of the training rows."
)
_TEST_FILE = flags.DEFINE_string("test_file", "", "Table to predict; needs no labels.")
_EVAL_FRACTION = flags.DEFINE_float("eval_fraction", 0.1, "Held out of --train_file without --eval_file.")
_TEXT_COLUMNS = flags.DEFINE_list("text_columns", ["text"], "One column, or two for pairs.")
_LABEL_COLUMN = flags.DEFINE_string("label_column", "label", "The label's column.")
_ID_COLUMN = flags.DEFINE_string("id_column", "", "Names the rows in predictions. Default: their numbers.")
_LABEL_NAMES = flags.DEFINE_list(
  "label_names", [], "The classes in order. Default: those of the training data."
)
_REGRESSION = flags.DEFINE_bool("regression", False, "Labels are numbers to predict.")


_CUSTOM_ONLY = (
  "train_file", "eval_file", "test_file", "eval_fraction", "text_columns", "label_column", "id_column",
  "label_names", "regression",
)  # fmt: skip


def _make_task(start: "Start") -> Any:
  trained = finetuning_flags.trained_spec()
  max_seq_length = finetuning_flags.max_seq_length(_MAX_SEQ_LENGTH.value, start)
  if _TASK_NAME.value.lower() != "custom":
    return _glue_task(start, max_seq_length)
  from albert_tf.finetuning.tables import TableColumns, TableTask

  if _DATA_DIR.value:
    raise UserError(
      "--data_dir is of GLUE's tasks. Received: it with --task_name=custom. Name --train_file, …"
    )
  return TableTask(
    {"train": _TRAIN_FILE.value, "eval": _EVAL_FILE.value, "test": _TEST_FILE.value},
    columns=TableColumns(texts=tuple(_TEXT_COLUMNS.value), label=_LABEL_COLUMN.value, id=_ID_COLUMN.value),
    tokenizer=start.tokenizer,
    regression=_REGRESSION.value or (trained is not None and trained.kind == "regression"),
    label_names=_LABEL_NAMES.value or (trained.label_names if trained else ()),
    max_seq_length=max_seq_length,
    eval_fraction=_EVAL_FRACTION.value,
  )


def _glue_task(start: "Start", max_seq_length: int) -> Any:
  from albert_tf.finetuning.glue_tasks import GlueTextTask

  given = [name for name in _CUSTOM_ONLY if flags.FLAGS[name].present]
  if given:
    raise UserError(
      f"--{given[0]} belongs to --task_name=custom. Received: it with --task_name={_TASK_NAME.value}. Leave it out."
    )
  if not _DATA_DIR.value:
    raise UserError("GLUE's tasks need their data. Received: an empty --data_dir. Name GLUE's folder.")
  return GlueTextTask(
    _TASK_NAME.value, data_dir=_DATA_DIR.value, tokenizer=start.tokenizer, max_seq_length=max_seq_length
  )


def _vocabulary() -> str:
  """The WordPiece vocabulary that is named, or that a fine-tuned run has."""
  if _VOCAB_FILE.value or flags.FLAGS.spm_model_file:
    return str(_VOCAB_FILE.value)
  folders = (flags.FLAGS.init_checkpoint, finetuning_flags.output_dir())
  paths = [
    os.path.join(folder, "vocab.txt") for folder in folders if finetuning_flags.trained_spec() and folder
  ]
  return next((path for path in paths if files.exists(path)), "")


def main(argv: Sequence[str]) -> None:
  finetuning_flags.refuse_arguments(argv)
  flags_text = flags.FLAGS.flags_into_string()  # TensorFlow adds flags that only it knows.
  load_tensorflow(device_flags.tpu())
  finetuning_flags.quiet_logging()
  settings = finetuning_flags.settings()
  vocab_file = _vocabulary()
  start = finetuning_flags.read_start(vocab_file=vocab_file)
  finetuning_flags.fine_tune(
    _make_task(start),
    settings,
    start=start,
    flags_text=flags_text,
    model="" if vocab_file else "classifier",
  )


if __name__ == "__main__":
  app.run(exit_on_user_error(main))
