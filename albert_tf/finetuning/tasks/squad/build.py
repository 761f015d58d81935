"""From files to the task: what is trained on, what chooses, what is reported; and what was found in the files."""

from collections.abc import Mapping
import dataclasses
import os
from typing import Any

from albert_tf.errors import UserError
from albert_tf.finetuning.data import hold_out
from albert_tf.finetuning.tasks.squad.read import SquadData, read_squad
from albert_tf.finetuning.tasks.squad.task import SquadTask
from albert_tf.finetuning.tasks.squad.windows import SquadFeatures, SquadSettings, make_features
from albert_tf.tokenization import AlbertTokenizer

SELECTION_SPLITS = ("train", "predict")
_QUESTIONS_FOR_WORKERS = 20_000  # Fewer are converted before processes have started.
_MOST_WORKERS = 8
_OF_THE_RUN = "the fine-tuned run"  # Where a threshold may come from.


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadFiles:
  """Which files, and how they are used.

  Attributes:
    version: "1.1" or "2.0".
    train_file: with answers; empty where nothing is trained.
    predict_file: with answers (scored) or without; may be empty in training.
    selection_split: what chooses the checkpoint and 2.0's threshold: "train", questions held out of the training
      file; "predict", the very questions that are reported, as in the original.
    held_out_fraction: of the training questions, in whole articles.
    split_seed: decides which articles.
    threshold: 2.0: given by the user; then none is searched.
    of_members: the answers are those of several runs (`SquadTask.ensemble`), which bring their thresholds.
  """

  version: str
  train_file: str = ""
  predict_file: str = ""
  selection_split: str = "train"
  held_out_fraction: float = 0.05
  split_seed: int = 12345
  threshold: float | None = None
  of_members: bool = False

  def __post_init__(self) -> None:
    if self.selection_split not in SELECTION_SPLITS:
      raise UserError(
        f"selection_split must be one of {', '.join(SELECTION_SPLITS)}. Received: {self.selection_split!r}."
      )
    if not (self.train_file or self.predict_file):
      raise UserError("SQuAD needs questions. Received: no file. Name --train_file, --predict_file or both.")

  def record(self) -> dict[str, str]:
    """For run.json."""
    values = {"train_file": self.train_file, "predict_file": self.predict_file}
    if self.train_file:
      values["selection_split"] = self.selection_split
    if self.train_file and self.selection_split == "train":
      values |= {"held_out_fraction": str(self.held_out_fraction), "split_seed": str(self.split_seed)}
    return {name: value for name, value in values.items() if value}


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuiltTask:
  """The task, and what goes into results.json beside its scores."""

  task: SquadTask
  notes: Mapping[str, Any]


def build_task(
  source: SquadFiles,
  *,
  settings: SquadSettings,
  tokenizer: AlbertTokenizer,
  trained_threshold: float | None = None,
  num_workers: int = 0,
) -> BuiltTask:
  """Reads and converts the files.

  Args:
    source: the files.
    settings: sizes.
    tokenizer: of the model.
    trained_threshold: 2.0, without a training file: of the fine-tuned run that is used.
    num_workers: processes; 0: one, or several where there are many questions.

  Raises:
    UserError: a file is not as it must be, or nothing can choose.
  """

  def convert(data: SquadData) -> SquadFeatures:
    workers = num_workers or (
      min(os.cpu_count() or 1, _MOST_WORKERS) if len(data.questions) >= _QUESTIONS_FOR_WORKERS else 1
    )
    return make_features(data, tokenizer=tokenizer, settings=settings, num_workers=workers)

  train = held_out = predict = None
  if source.predict_file:
    predict = convert(read_squad(source.predict_file, version=source.version))
  if source.train_file:
    data = read_squad(source.train_file, version=source.version, require_answers=True)
    if source.selection_split == "train":
      data, held = hold_out_articles(data, source)
      held_out = convert(held)
    train = convert(data)
  threshold, origin = _threshold(source, held_out, predict, trained_threshold)
  record = source.record()
  if source.version == "2.0":
    record["threshold_from"] = origin
  task = SquadTask(
    version=source.version,
    settings=settings,
    train=train,
    held_out=held_out,
    predict=predict,
    threshold=threshold,
    data=record,
  )
  notes: dict[str, Any] = {"version": source.version}
  if source.version == "2.0":
    notes["threshold_from"] = origin
  parts = {"train": train, "held_out": held_out, "predict": predict}
  notes["questions"] = {name: describe(part) for name, part in parts.items() if part is not None}
  return BuiltTask(task=task, notes=notes)


def later_notes(notes: Mapping[str, Any], *, evaluates: bool) -> dict[str, Any]:
  """Those of a command that finds a trained run in its directory: the run's own word on its threshold stays.

  Where it comes from is said again only with scores that another threshold gave.
  """
  chosen = evaluates and notes.get("threshold_from") != _OF_THE_RUN
  return {name: note for name, note in notes.items() if name != "threshold_from" or chosen}


def _threshold(
  source: SquadFiles,
  held_out: SquadFeatures | None,
  predict: SquadFeatures | None,
  trained: float | None,
) -> tuple[float | None, str]:
  """The threshold if none is to be searched, and in words where it comes from."""
  labelled = predict is not None and predict.data.labelled
  if source.threshold is not None:
    return source.threshold, "--null_score_diff_threshold"
  if source.of_members:
    return None, "the members' own"
  if held_out is not None:
    return None, f"{len(held_out.data.questions)} questions held out of the training file"
  if source.selection_split == "predict":
    if not labelled:
      raise UserError(
        "What is to choose needs answers. Received: --selection_split=predict and a --predict_file without "
        f"({source.predict_file or 'none'}). Use --selection_split=train, or --null_score_diff_threshold."
      )
    return None, "the reported questions themselves"
  if trained is not None:
    return trained, _OF_THE_RUN
  return 0.0, "the default, 0"


def hold_out_articles(data: SquadData, source: SquadFiles) -> tuple[SquadData, SquadData]:
  """Training and held-out questions: whole articles, so that no paragraph is in both; of one article paragraphs."""
  groups = [data.paragraphs[question.paragraph].article for question in data.questions]
  if len(set(groups)) < 2:
    groups = [question.paragraph for question in data.questions]
  parts = hold_out(
    range(len(data.questions)),
    source.held_out_fraction,
    source=source.train_file,
    groups=groups,
    seed=source.split_seed,
    advice="Use --selection_split=predict",
  )
  return data.subset(parts[0]), data.subset(parts[1])


def describe(features: SquadFeatures) -> dict[str, Any]:
  """Counts of a file, and the questions whose answers are not where they should be."""
  data = features.data
  contexts = [data.paragraphs[question.paragraph].context for question in data.questions]
  statuses = [question.answer for question in features.questions]
  found: dict[str, Any] = {
    "total": len(data.questions),
    "paragraphs": len({question.paragraph for question in data.questions}),
    "windows": len(features),
  }
  if data.version == "2.0" and data.labelled:
    found["impossible"] = sum(question.is_impossible for question in data.questions)
  odd = {
    "answers_moved": [status == "moved" for status in statuses],
    "answers_missing": [status == "missing" for status in statuses],
    "empty_questions": [not question.text.strip() for question in data.questions],
    "empty_contexts": [not context.strip() for context in contexts],
  }
  ids = [question.id for question in data.questions]
  return found | {
    name: [key for key, is_odd in zip(ids, flags, strict=True) if is_odd]
    for name, flags in odd.items()
    if any(flags)
  }
