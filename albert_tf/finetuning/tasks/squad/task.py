"""SQuAD as a fine-tuning task: windows to the engine, its outputs to answers, scores and files."""

from collections.abc import Mapping, Sequence
import json
import os
from typing import Any, NamedTuple

import numpy as np

from albert_tf import files
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning.engine.features import FeatureSet
from albert_tf.finetuning.tasks.base import FineTuningTask, Outputs
from albert_tf.finetuning.tasks.squad import decode as decoding
from albert_tf.finetuning.tasks.squad import metrics
from albert_tf.finetuning.tasks.squad.ensemble import merge_answers, read_decoded
from albert_tf.finetuning.tasks.squad.plots import draw_scores
from albert_tf.finetuning.tasks.squad.windows import SquadFeatures, SquadSettings
from albert_tf.finetuning.tasks.stored import mean_logit
from albert_tf.models.heads import answerability_loss, position_loss

PREDICTIONS_FILE, N_BEST_FILE, NULL_ODDS_FILE = (
  "predictions.json",
  "nbest_predictions.json",
  "null_odds.json",
)
DECODED, THRESHOLD = "decoded", "threshold"  # Of runs that have answered, in place of a model's outputs.
SELECTION = "selection_"  # Before the scores of the held-out questions.


class _Part(NamedTuple):
  """One file's questions, their candidates, and the scores of the best ones, none withheld."""

  features: SquadFeatures
  decoded: list[decoding.Decoded]
  scores: metrics.Scores


class _Judgement(NamedTuple):
  """What the outputs for the scored questions come to; `threshold` is None for 1.1."""

  outputs: Outputs
  parts: list[_Part]
  threshold: float | None


class SquadTask(FineTuningTask):
  """SQuAD 1.1 (`SpanHead`) or 2.0 (`Squad2Head`).

  The model is evaluated on the held-out questions, which choose the checkpoint and the threshold, and on the
  questions to predict if they have answers, which are only reported. Without held-out questions the latter serve
  for both, as in the original.

  Args:
    version: "1.1" or "2.0".
    settings: sizes.
    train: training questions.
    held_out: questions that choose; none of `train`.
    predict: questions to predict; with or without answers.
    threshold: 2.0: no answer where the null score is at least this; None: the best one of `held_out`, else of
      `predict`.
    data: what the questions were read from, for run.json.
  """

  def __init__(
    self,
    *,
    version: str,
    settings: SquadSettings,
    train: SquadFeatures | None = None,
    held_out: SquadFeatures | None = None,
    predict: SquadFeatures | None = None,
    threshold: float | None = None,
    data: Mapping[str, str] | None = None,
  ):
    self.version = version
    self.settings = settings
    self.data = dict(data or {})
    self._predict = predict
    self._threshold = threshold
    self._judged: _Judgement | None = None
    scored = [each for each in (held_out, predict) if each is not None and each.data.labelled]
    unscored = [each for each in (predict,) if each is not None and not each.data.labelled]
    parts = {"train": [train] if train else [], "eval": scored, "test": unscored}
    self.splits: Mapping[str, list[SquadFeatures]] = {name: each for name, each in parts.items() if each}
    self._selects = held_out is not None
    self.best_metric = f"{SELECTION}f1" if self._selects else "f1"
    if version == "2.0":
      # A class variable of the base, here decided by settings.
      self.head_options = {  # type: ignore[misc]
        "start_n_top": settings.start_n_top,
        "end_n_top": settings.end_n_top,
      }
    self.spec = TaskSpec(
      kind="question_answering",
      name="squad",
      pair=True,
      squad_version=version,
      max_seq_length=settings.max_seq_length,
      max_query_length=settings.max_query_length,
      doc_stride=settings.doc_stride,
      max_answer_length=settings.max_answer_length,
      null_score_diff_threshold=threshold or 0.0,
    )

  def features(self, split: str) -> FeatureSet:
    if split == "train":
      return self._training_features()
    if split not in self.splits:
      raise UserError(
        "Evaluation needs questions with answers, to choose a checkpoint by. Received: no such --predict_file, and "
        "none held out. Use --selection_split=train, or --do_predict alone."
      )
    rows = _Rows([(part, np.arange(len(part))) for part in self.splits[split]])
    return FeatureSet(rows, None, pad_values={"p_mask": 1})

  def _training_features(self) -> FeatureSet:
    if "train" not in self.splits:
      raise UserError("Training needs questions. Received: none. Name --train_file.")
    (train,) = self.splits["train"]
    starts, ends, lacking = train.positions
    impossible = np.array([question.is_impossible for question in train.data.questions])
    statuses = np.array([question.answer for question in train.questions])
    of_window = train.windows.question
    usable = statuses[of_window] != "missing"  # An answer that is not in the text teaches nothing.
    if not self.settings.keep_empty_windows:
      usable &= (lacking == 0) | impossible[of_window]
    chosen = np.flatnonzero(usable)
    if not len(chosen):
      raise UserError(
        "Training needs windows with answers. Received: none of "
        f"{len(of_window)} windows. Check the answers of --train_file and --max_seq_length."
      )
    starts, ends = starts[chosen], ends[chosen]
    if self.version == "1.1":
      return FeatureSet(_Rows([(train, chosen)]), {"start_logits": starts, "end_logits": ends})
    labels = {
      "start_log_probs": starts,
      "end_log_probs": ends,
      "cls_logits": lacking[chosen].astype(np.float32),
    }
    return FeatureSet(_Rows([(train, chosen)], starts=starts), labels, pad_values={"p_mask": 1})

  def loss(self) -> Any:
    if self.version == "1.1":
      return {"start_logits": position_loss(), "end_logits": position_loss()}
    return {
      "start_log_probs": position_loss(),
      "end_log_probs": position_loss(),
      "cls_logits": answerability_loss,
    }

  def loss_weights(self) -> Any:
    return dict.fromkeys(self.loss(), 0.5)  # The original's, in both versions.

  # ------------------------------------------------------------------ answers and scores

  def evaluate(self, outputs: Outputs, split: str = "eval") -> dict[str, float]:
    """Percent, by the official rules: `exact`, `f1`, `total`, and for 2.0 `HasAns_…`, `NoAns_…`, the threshold, and
    `best_…` (chosen on the reported questions themselves); `selection_…` of the held-out questions."""
    del split
    judged = self._judge(outputs)
    report: dict[str, float] = {}
    for part in reversed(judged.parts):  # Those that are reported, then those that chose.
      scored = _report(part, judged.threshold)
      if self._selects and part is judged.parts[0]:
        scored = {
          f"{SELECTION}{name}": value for name, value in scored.items() if not name.startswith("best_")
        }
      report |= scored
    if judged.threshold is not None:
      report["null_score_diff_threshold"] = judged.threshold
    return report

  def _judge(self, outputs: Outputs) -> _Judgement:
    """Decodes the outputs, once: what they come to is kept until others are given."""
    if self._judged is None or self._judged.outputs is not outputs:
      parts: list[_Part] = []
      begin = 0
      for features in self.splits["eval"]:
        rows = slice(begin, begin + len(features))
        begin = rows.stop
        decoded = _decoded(features, outputs, rows)
        best = decoding.answers(features, decoded, threshold=None)
        parts.append(_Part(features, decoded, metrics.score_answers(features.data, best)))
      threshold = None
      if self.version == "2.0":
        threshold = self._threshold_for(outputs)
        threshold = best_f1_threshold(parts[0]) if threshold is None else threshold
      self._judged = _Judgement(outputs, parts, threshold)
    return self._judged

  def _threshold_for(self, outputs: Outputs) -> float | None:
    """The one that was given, or that of the runs whose answers these are; None: it is to be searched."""
    if self._threshold is None and THRESHOLD in outputs:
      return float(outputs[THRESHOLD][0])
    return self._threshold

  def write_predictions(
    self, outputs: Outputs, split: str, directory: str, *, spec: TaskSpec | None = None
  ) -> None:
    """predictions.json, nbest_predictions.json and, for 2.0, null_odds.json, of the questions to predict."""
    features = self._predict
    if features is None or features not in self.splits[split]:
      return
    if split == "test":
      decoded = _decoded(features, outputs, slice(0, len(features)))
      of_run = (spec or self.spec).null_score_diff_threshold
      of_runs = self._threshold_for(outputs) if THRESHOLD in outputs else None
      threshold = None if self.version == "1.1" else of_run if of_runs is None else of_runs
    else:
      judged = self._judge(outputs)
      decoded, threshold = judged.parts[-1].decoded, judged.threshold
    contents: dict[str, Any] = {
      PREDICTIONS_FILE: decoding.answers(features, decoded, threshold=threshold),
      N_BEST_FILE: decoding.n_best_json(features, decoded),
    }
    if self.version == "2.0":
      ids = [question.id for question in features.data.questions]
      contents[NULL_ODDS_FILE] = dict(zip(ids, null_scores(decoded), strict=True))
    for name, content in contents.items():
      with files.atomic_writer(os.path.join(directory, name), "w") as stream:
        stream.write(json.dumps(content, indent=1, ensure_ascii=False) + "\n")

  def plot(self, outputs: Outputs, path: str) -> bool:
    judged = self._judge(outputs)
    features, decoded, scores = judged.parts[-1]
    draw_scores(features.data, decoded, scores, threshold=judged.threshold, path=path)
    return True

  def average(self, outputs: Sequence[Outputs]) -> Outputs:
    return super().average(outputs) if self.version == "1.1" else decoding.merge_beams(outputs)

  def stored(self, directory: str, split: str) -> Outputs:
    if self._predict is None:
      return super().stored(directory, split)
    names = {"n_best_file": N_BEST_FILE, "null_odds_file": NULL_ODDS_FILE}
    decoded: Any = read_decoded(directory, self._predict.data, **names)
    return {DECODED: decoded, THRESHOLD: np.array([TaskSpec.load(directory).null_score_diff_threshold])}

  def ensemble(self, outputs: Sequence[Outputs]) -> Outputs:
    models: Any = [each[DECODED] for each in outputs]
    merged: Any = merge_answers(models, n_best_size=self.settings.n_best_size)
    threshold = mean_logit([float(each[THRESHOLD][0]) for each in outputs])
    return {DECODED: merged, THRESHOLD: np.array([threshold])}


def _decoded(features: SquadFeatures, outputs: Outputs, rows: slice) -> list[decoding.Decoded]:
  """Of the model's outputs for these rows; what several runs answered is decoded already."""
  if DECODED in outputs:
    return list(outputs[DECODED])  # type: ignore[arg-type]
  return decoding.decode(features, {name: column[rows] for name, column in outputs.items()})


def null_scores(decoded: Sequence[decoding.Decoded]) -> list[float]:
  """How unanswerable each question of 2.0 is."""
  return [0.0 if each.null_score is None else each.null_score for each in decoded]


def best_f1_threshold(part: _Part) -> float:
  """The threshold that gives these questions their best F1."""
  answerable = metrics.has_answer(part.features.data)
  return metrics.best_threshold(part.scores.f1, answerable, np.array(null_scores(part.decoded))).value


def _report(part: _Part, threshold: float | None) -> dict[str, float]:
  data = part.features.data
  if threshold is None:
    return metrics.summarize(data, part.scores)
  answers = decoding.answers(part.features, part.decoded, threshold=threshold)
  report = metrics.summarize(data, metrics.score_answers(data, answers))
  return report | metrics.best_thresholds(part.scores, metrics.has_answer(data), null_scores(part.decoded))


class _Rows(Sequence[Mapping[str, np.ndarray]]):
  """Chosen windows of several files one after another, with the start of the answer where it is an input."""

  def __init__(self, parts: Sequence[tuple[SquadFeatures, np.ndarray]], *, starts: np.ndarray | None = None):
    self._rows = [part.rows for part, _ in parts]
    self._part = np.repeat(np.arange(len(parts)), [len(chosen) for _, chosen in parts])
    self._window = np.concatenate([chosen for _, chosen in parts])
    self._starts = starts

  def __len__(self) -> int:
    return len(self._window)

  def __getitem__(self, index):  # type: ignore[no-untyped-def]
    row = self._rows[self._part[index]][self._window[index]]
    return row if self._starts is None else {**row, "start_positions": self._starts[index]}
