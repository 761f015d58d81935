"""Fine-tunes ALBERT on a task of GLUE, or on a table of your own, with Keras' `model.fit`.

Example:
  python tpu_scripts/run_glue.py --task_name=mrpc --data_dir=glue --init_checkpoint=RUN --output_dir=mrpc \
    --do_train --do_eval --do_predict --max_seq_length=128 --learning_rate=2e-5 --seeds=1,2,3
  python tpu_scripts/run_glue.py --task_name=custom --train_file=train.csv --eval_file=dev.csv \
    --text_columns=review --label_column=stars --init_checkpoint=RUN --output_dir=reviews --do_train
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import app, flags
import finetuning_flags
import finetuning_inputs
from flag_settings import parse_flags

from albert_tf.errors import UserError, exit_on_user_error

if TYPE_CHECKING:  # At run time these would import TensorFlow before the flags are read.
  from albert_tf.finetuning.initialize import Start
  from albert_tf.finetuning.settings import FineTuneSettings
  from albert_tf.finetuning.tasks.base import FineTuningTask

flags.adopt_module_key_flags(finetuning_flags)  # --help shows them too.
_TASK_NAME = flags.DEFINE_string(
  "task_name", None, "cola, sst-2, mrpc, sts-b, qqp, mnli, qnli, rte, wnli, ax, or custom.", required=True
)
_DATA_DIR = flags.DEFINE_string("data_dir", "", "The task's folder, or the one with GLUE's folders.")
_MAX_SEQ_LENGTH = flags.DEFINE_integer(
  "max_seq_length",
  None,
  "Tokens of an example; longer ones are cut. Default: as it was trained, else at most 512.",
)
_VOCAB_FILE = flags.DEFINE_string(
  "vocab_file",
  "",
  "WordPiece vocabulary (.txt), for models without a SentencePiece model, as the Chinese ones.",
)

# --task_name=custom
_TRAIN_FILE = flags.DEFINE_string("train_file", "", "Training table: .tsv, .csv, .jsonl or .parquet.")
_EVAL_FILE = flags.DEFINE_string(
  "eval_file", "", "Evaluation table. Default: --eval_fraction of the training rows."
)
_TEST_FILE = flags.DEFINE_string("test_file", "", "Table to predict; needs no labels.")
_EVAL_FRACTION = flags.DEFINE_float("eval_fraction", 0.1, "Held out of --train_file without --eval_file.")
flags.DEFINE_list("text_columns", ["text"], "One column, or two for pairs.")
flags.DEFINE_string("label_column", "label", "The label's column.")
flags.DEFINE_string("id_column", "", "Names the rows in predictions. Default: their numbers.")
_LABEL_NAMES = flags.DEFINE_list(
  "label_names", [], "The classes in order. Default: those of the training data."
)
_REGRESSION = flags.DEFINE_bool("regression", False, "Labels are numbers to predict.")


_CUSTOM_ONLY = (
  "train_file", "eval_file", "test_file", "eval_fraction", "text_columns", "label_column", "id_column",
  "label_names", "regression",
)  # fmt: skip


def _prepare(start: "Start", settings: "FineTuneSettings") -> finetuning_flags.Prepared:
  del settings
  max_seq_length = finetuning_inputs.max_seq_length(_MAX_SEQ_LENGTH.value, start)
  make = _custom_task if _TASK_NAME.value.lower() == "custom" else _glue_task
  return finetuning_flags.Prepared(make(start, max_seq_length))


def _custom_task(start: "Start", max_seq_length: int) -> "FineTuningTask":
  from albert_tf.finetuning.tasks.table import TableColumns, TableTask

  if _DATA_DIR.value:
    raise UserError(
      "--data_dir is of GLUE's tasks. Received: it with --task_name=custom. Name --train_file, …"
    )
  trained = finetuning_inputs.trained_spec()
  return TableTask(
    {"train": _TRAIN_FILE.value, "eval": _EVAL_FILE.value, "test": _TEST_FILE.value},
    columns=finetuning_inputs.columns(
      TableColumns, texts="text_columns", label="label_column", id="id_column"
    ),
    tokenizer=start.tokenizer,
    regression=_REGRESSION.value or (trained is not None and trained.kind == "regression"),
    label_names=_LABEL_NAMES.value or (trained.label_names if trained else ()),
    max_seq_length=max_seq_length,
    eval_fraction=_EVAL_FRACTION.value,
  )


def _glue_task(start: "Start", max_seq_length: int) -> "FineTuningTask":
  from albert_tf.finetuning.tasks.glue import GlueTextTask

  finetuning_inputs.refuse_flags(_CUSTOM_ONLY, of="custom")
  if not _DATA_DIR.value:
    raise UserError("GLUE's tasks need their data. Received: an empty --data_dir. Name GLUE's folder.")
  return GlueTextTask(
    _TASK_NAME.value, data_dir=_DATA_DIR.value, tokenizer=start.tokenizer, max_seq_length=max_seq_length
  )


def main(argv: Sequence[str]) -> None:
  finetuning_flags.run(argv, _prepare, vocab_file=_VOCAB_FILE.value)


if __name__ == "__main__":
  app.run(exit_on_user_error(main), flags_parser=parse_flags)
