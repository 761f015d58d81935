"""SQuAD as a fine-tuning task: windows to the engine, its outputs to answers, scores and files."""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import os
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf import files
from albert_tf.compat import keras
from albert_tf.errors import UserError
from albert_tf.finetuning.features import FeatureSet
from albert_tf.finetuning.squad import decoding, metrics
from albert_tf.finetuning.squad.ensemble import merge_beams
from albert_tf.finetuning.squad.features import SquadFeatures
from albert_tf.finetuning.squad.plots import draw_scores
from albert_tf.finetuning.squad.settings import SquadSettings
from albert_tf.finetuning.task import FineTuningTask, Outputs
from albert_tf.finetuning.task_spec import TaskSpec

PREDICTIONS_FILE, N_BEST_FILE, NULL_ODDS_FILE = (
  "predictions.json",
  "nbest_predictions.json",
  "null_odds.json",
)
SELECTION = "selection_"  # Before the scores of the held-out questions.


class SquadTask(FineTuningTask):
  """SQuAD 1.1 (`AlbertForSpan`) or 2.0 (`AlbertForSquad2`).

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
    self._train, self._held_out, self._predict = train, held_out, predict
    self._fixed_threshold = threshold
    self._scored = [each for each in (held_out, predict) if each is not None and each.data.labelled]
    self.best_metric = f"{SELECTION}f1" if held_out is not None else "f1"
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

  # ------------------------------------------------------------------ features

  def train_features(self) -> FeatureSet:
    if self._train is None:
      raise UserError("Training needs questions. Received: none. Name --train_file.")
    starts, ends, lacking = self._train.positions
    impossible = np.array([question.is_impossible for question in self._train.data.questions])
    statuses = np.array([question.answer for question in self._train.questions])
    of_window = self._train.windows.question
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
      labels = {"start_logits": starts, "end_logits": ends}
      return FeatureSet(_Rows([(self._train, chosen)]), labels)
    labels = {
      "start_log_probs": starts,
      "end_log_probs": ends,
      "cls_logits": lacking[chosen].astype(np.float32),
    }
    return FeatureSet(_Rows([(self._train, chosen)], starts=starts), labels, pad_values={"p_mask": 1})

  def eval_features(self) -> FeatureSet:
    if not self._scored:
      raise UserError(
        "Evaluation needs questions with answers, to choose a checkpoint by. Received: no such --predict_file, and "
        "none held out. Use --threshold_split=train, or --do_predict alone."
      )
    return self._windows(self._scored)

  def test_features(self) -> FeatureSet | None:
    if self._predict is None or self._predict.data.labelled:
      return None
    return self._windows([self._predict])

  def _windows(self, parts: Sequence[SquadFeatures]) -> FeatureSet:
    return FeatureSet(_Rows([(part, np.arange(len(part))) for part in parts]), None, pad_values={"p_mask": 1})

  # ------------------------------------------------------------------ loss

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
    decoded = self._decode(outputs)
    report: dict[str, float] = {}
    if self._held_out is not None:
      scored = self._score(self._held_out, decoded[0])
      report = {f"{SELECTION}{name}": value for name, value in scored.items() if not name.startswith("best_")}
    if self._predict is not None and self._predict.data.labelled:
      report = {**self._score(self._predict, decoded[-1]), **report}
    if self.version == "2.0":
      report["null_score_diff_threshold"] = self.spec.null_score_diff_threshold
    return report

  def _decode(self, outputs: Outputs) -> list[list[decoding.Decoded]]:
    """Answers of each scored part; also settles the threshold."""
    parts, begin = [], 0
    for features in self._scored:
      rows = slice(begin, begin + len(features))
      parts.append(decoding.decode(features, {name: column[rows] for name, column in outputs.items()}))
      begin += len(features)
    if self.version == "2.0" and self._fixed_threshold is None:
      found = best_f1_threshold(self._scored[0], parts[0])
      self.spec = dataclasses.replace(self.spec, null_score_diff_threshold=found)
    return parts

  def _score(self, features: SquadFeatures, decoded: Sequence[decoding.Decoded]) -> dict[str, float]:
    predictions = decoding.answers(features, decoded, threshold=self._threshold)
    report = metrics.summarize(features.data, metrics.score_answers(features.data, predictions))
    if self.version == "2.0":
      always = metrics.score_answers(features.data, decoding.answers(features, decoded, threshold=None))
      report |= metrics.best_thresholds(always, metrics.has_answer(features.data), null_scores(decoded))
    return report

  @property
  def _threshold(self) -> float | None:
    return self.spec.null_score_diff_threshold if self.version == "2.0" else None

  def write_predictions(self, outputs: Outputs, split: str, directory: str) -> None:
    """predictions.json, nbest_predictions.json and, for 2.0, null_odds.json, of the questions to predict."""
    if self._predict is None:
      return
    decoded = decoding.decode(self._predict, outputs) if split == "test" else self._decode(outputs)[-1]
    contents: dict[str, Any] = {
      PREDICTIONS_FILE: decoding.answers(self._predict, decoded, threshold=self._threshold),
      N_BEST_FILE: decoding.n_best_json(self._predict, decoded),
    }
    if self.version == "2.0":
      ids = [question.id for question in self._predict.data.questions]
      contents[NULL_ODDS_FILE] = dict(zip(ids, null_scores(decoded), strict=True))
    for name, content in contents.items():
      with files.atomic_writer(os.path.join(directory, name), "w") as stream:
        stream.write(json.dumps(content, indent=1, ensure_ascii=False) + "\n")

  def plot(self, outputs: Outputs, path: str) -> bool:
    features, decoded = self._scored[-1], self._decode(outputs)[-1]
    always = metrics.score_answers(features.data, decoding.answers(features, decoded, threshold=None))
    draw_scores(features.data, decoded, always, threshold=self._threshold, path=path)
    return True

  def average(self, outputs: Sequence[Outputs]) -> Outputs:
    if self.version == "1.1":
      return super().average(outputs)
    return merge_beams(outputs)

  def example(self) -> Mapping[str, Any]:
    first = next(each for each in (self._predict, self._held_out, self._train) if each is not None).data
    question = first.questions[0]
    return {"question": question.text, "context": first.paragraphs[question.paragraph].context}


def position_loss() -> Any:
  """Cross-entropy of a position; log-probabilities are logits too."""
  return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def answerability_loss(is_impossible: tf.Tensor, cls_logits: tf.Tensor) -> tf.Tensor:
  """Sigmoid cross-entropy of each example, `[B]`: Keras' own would average over the batch, its last axis."""
  labels = tf.cast(tf.reshape(is_impossible, [-1]), tf.float32)
  return tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=tf.reshape(cls_logits, [-1]))


def null_scores(decoded: Sequence[decoding.Decoded]) -> list[float]:
  """How unanswerable each question of 2.0 is."""
  return [0.0 if each.null_score is None else each.null_score for each in decoded]


def best_f1_threshold(features: SquadFeatures, decoded: Sequence[decoding.Decoded]) -> float:
  """The threshold that gives these questions their best F1."""
  scores = metrics.score_answers(features.data, decoding.answers(features, decoded, threshold=None))
  nulls = np.array(null_scores(decoded))
  return metrics.best_threshold(scores.f1, metrics.has_answer(features.data), nulls).value


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
