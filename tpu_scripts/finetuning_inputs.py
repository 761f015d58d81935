"""What a fine-tuning command's flags say of its data: files, columns and lengths; without training those of its run."""

from collections.abc import Mapping, Sequence
import os
from typing import TYPE_CHECKING, Any, TypeVar

from absl import flags

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.finetuning.settings import FineTuneSettings

if TYPE_CHECKING:  # At run time these would import TensorFlow before the flags are read.
  from albert_tf.configs.task import TaskSpec
  from albert_tf.finetuning.initialize import Start

_Columns = TypeVar("_Columns")
FLAGS = flags.FLAGS


def has_run() -> bool:
  """Whether --output_dir holds a run already."""
  return files.exists(os.path.join(FLAGS.output_dir, "task.json"))


def trained_spec() -> "TaskSpec | None":
  """What the fine-tuned model is for whose weights are used without training; None with training."""
  from albert_tf.configs.task import TASK_FILE, TaskSpec

  for folder in () if FLAGS.do_train else (FLAGS.init_checkpoint, FLAGS.output_dir):
    if folder and files.exists(os.path.join(folder, TASK_FILE)):
      return TaskSpec.load(folder)
  return None


def max_seq_length(given: int | None, start: "Start", *, default: int = 512) -> int:
  """--max_seq_length; without it that of the fine-tuned run, or `default`, as far as the model has positions."""
  if given is not None:
    return given
  trained = trained_spec()
  return trained.max_seq_length if trained else min(default, start.config.max_position_embeddings)


def columns(kind: type[_Columns], **flag_of: str) -> _Columns:
  """Which column is what, as `kind`: each field's flag; where it is not given, what the fine-tuned run had."""
  trained = trained_spec()
  before = trained.columns if trained else {}  # Those of another kind of task too, which is refused later.
  given = {field: FLAGS[name] for field, name in flag_of.items()}
  values = {
    field: before[field] if field in before and not flag.present else flag.value
    for field, flag in given.items()
  }
  return kind(**{field: tuple(v) if isinstance(v, list) else v for field, v in values.items()})


def refuse_flags(names: Sequence[str], *, of: str) -> None:
  """Says so where a flag was given that is of another --task_name."""
  given = [name for name in names if FLAGS[name].present]
  if given:
    raise UserError(
      f"--{given[0]} belongs to --task_name={of}. Received: it with --task_name={FLAGS.task_name}. Leave it out."
    )


def needed_splits(settings: FineTuneSettings) -> list[str]:
  """The splits that what is to be done reads."""
  evaluates = settings.do_train or settings.do_eval
  wanted = {"train": settings.do_train, "eval": evaluates, "test": settings.do_predict}
  return [split for split, is_wanted in wanted.items() if is_wanted]


def split_paths(settings: FineTuneSettings, suffixes: Sequence[str]) -> dict[str, str]:
  """The files of those splits, named or in --data_dir; the training file's too if evaluation is held out of it."""
  from albert_tf.finetuning.data import find_split_files

  needed = needed_splits(settings)
  named = {split: FLAGS[f"{split}_file"].value for split in ("train", "eval", "test")}
  paths = find_split_files(FLAGS.data_dir, suffixes, needed=needed, **named)
  if "eval" in needed and "eval" not in paths:
    needed.append("train")
  return {split: path for split, path in paths.items() if split in needed}


def with_evaluation(splits: dict[str, Any], paths: Mapping[str, str]) -> dict[str, Any]:
  """The splits; without evaluation examples --eval_fraction of the training ones are held out."""
  from albert_tf.finetuning.data import hold_out

  if "train" in splits and "eval" not in splits:
    splits["train"], splits["eval"] = hold_out(splits["train"], FLAGS.eval_fraction, source=paths["train"])
  return splits
