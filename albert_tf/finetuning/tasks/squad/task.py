"""SQuAD as a fine-tuning task: from files to windows, from the model's outputs to answers, scores and files."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from absl import logging
import numpy as np

from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning.data import hold_out
from albert_tf.finetuning.tasks.base import FeatureSet, FineTuningTask, Outputs
from albert_tf.finetuning.tasks.rows import PackedRows
from albert_tf.finetuning.tasks.squad import answers, metrics
from albert_tf.finetuning.tasks.squad.features import SquadFeatures, make_features
from albert_tf.finetuning.tasks.squad.read import SquadData, read_squad
from albert_tf.finetuning.tasks.squad.settings import SquadFiles, SquadSettings
from albert_tf.models.heads import answerability_loss, position_loss
from albert_tf.tokenization import AlbertTokenizer

DECODED, THRESHOLD = "decoded", "threshold"  # Of runs that have answered, in place of a model's outputs.
SELECTION = "selection_"  # Before the scores of the held-out questions.


def build_task(
  source: SquadFiles,
  *,
  settings: SquadSettings,
  tokenizer: AlbertTokenizer,
  default_threshold: float | None = 0.0,
) -> "SquadTask":
  """Reads and converts the files.

  Args:
    source: the files.
    settings: sizes.
    tokenizer: of the model.
    default_threshold: 2.0: where no questions choose it, such as that of the fine-tuned run; None: of the members of
      an ensemble.

  Raises:
    UserError: a file is not as it must be, or nothing can choose.
  """
  data: dict[str, SquadData] = {}
  if source.train_file:
    data["train"] = read_squad(source.train_file, version=source.version, require_answers=True)
    if source.selection_split == "train":
      data["train"], data["held_out"] = hold_out_articles(data["train"], source)
  if source.predict_file:
    data["predict"] = read_squad(source.predict_file, version=source.version)
  threshold = source.null_score_diff_threshold
  if threshold is None and source.selection_split == "predict":
    if "predict" not in data or not data["predict"].labelled:
      raise UserError(
        "What is to choose needs answers. Received: --selection_split=predict and a --predict_file without "
        f"({source.predict_file or 'none'}). Use --selection_split=train, or --null_score_diff_threshold."
      )
  elif threshold is None and "held_out" not in data:
    threshold = default_threshold
  converted = {
    name: make_features(each, tokenizer=tokenizer, settings=settings) for name, each in data.items()
  }
  for name, each in converted.items():
    logging.info("%s: %d questions, %d windows", name, len(each.data.questions), len(each))
    ids = [each.data.questions[index].id for index in np.flatnonzero(each.missing)]
    if ids:
      logging.warning(
        "  %d questions whose answer is not at its answer_start teach nothing: %s", len(ids), ids[:5]
      )
  return SquadTask(
    version=source.version, settings=settings, threshold=threshold, data=source.record(), **converted
  )


def hold_out_articles(data: SquadData, source: SquadFiles) -> tuple[SquadData, SquadData]:
  """Training and held-out questions: whole articles, so that no paragraph is in both; of one article paragraphs."""
  groups = [data.paragraphs[question.paragraph].article for question in data.questions]
  if len(set(groups)) < 2:
    groups = [question.paragraph for question in data.questions]
  train, held = hold_out(
    range(len(data.questions)),
    source.held_out_fraction,
    source=source.train_file,
    groups=groups,
    seed=source.split_seed,
  )
  return data.subset(train), data.subset(held)


class _Scored(NamedTuple):
  """One file's questions, their candidates, and the scores of the best ones, none withheld."""

  features: SquadFeatures
  decoded: list[answers.Decoded]
  scores: metrics.Scores

  @property
  def null_scores(self) -> np.ndarray:
    """float64 [Q], of 2.0."""
    return np.array([each.null_score or 0.0 for each in self.decoded])


class _Evaluation(NamedTuple):
  """What the outputs for the scored questions come to; `threshold` is None for 1.1."""

  outputs: Outputs
  files: list[_Scored]
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
    self._evaluated: _Evaluation | None = None
    scored = [each for each in (held_out, predict) if each is not None and each.data.labelled]
    unscored = [each for each in (predict,) if each is not None and not each.data.labelled]
    splits = {"train": [train] if train else [], "eval": scored, "test": unscored}
    self.splits: Mapping[str, list[SquadFeatures]] = {name: each for name, each in splits.items() if each}
    self._selects = held_out is not None
    self.best_metric = f"{SELECTION}f1" if self._selects else "f1"
    self.loss_weights = dict.fromkeys(self.loss(), 0.5)  # The original's, in both versions.
    if version == "2.0":
      self.head_options = {"start_n_top": settings.start_n_top, "end_n_top": settings.end_n_top}
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
    return FeatureSet(_rows(self.split(split)), None, pad_values={"p_mask": 1})

  def _training_features(self) -> FeatureSet:
    (train,) = self.split("train")
    starts, ends, lacking = train.positions
    chosen = np.flatnonzero(~train.missing[train.windows.row])
    if not len(chosen):
      raise UserError(
        f"Training needs windows with answers. Received: none of {len(train)} windows. Check answer_start in "
        "--train_file."
      )
    starts, ends = starts[chosen], ends[chosen]
    if self.version == "1.1":
      return FeatureSet(_rows([train], chosen), {"start_logits": starts, "end_logits": ends})
    labels = {
      "start_log_probs": starts,
      "end_log_probs": ends,
      "cls_logits": lacking[chosen].astype(np.float32),
    }
    rows = _rows([train], chosen, start_positions=starts)
    return FeatureSet(rows, labels, pad_values={"p_mask": 1})

  def loss(self) -> Any:
    if self.version == "1.1":
      return {"start_logits": position_loss(), "end_logits": position_loss()}
    return {
      "start_log_probs": position_loss(),
      "end_log_probs": position_loss(),
      "cls_logits": answerability_loss,
    }

  # ------------------------------------------------------------------ answers and scores

  def evaluate(self, outputs: Outputs, split: str = "eval") -> dict[str, float]:
    """Percent, by the official rules: `exact`, `f1`, `total`, and for 2.0 `HasAns_…`, `NoAns_…`, the threshold, and
    `best_…` (chosen on the reported questions themselves); `selection_…` of the held-out questions."""
    del split
    evaluated = self._evaluate(outputs)
    report: dict[str, float] = {}
    for scored in reversed(evaluated.files):  # Those that are reported, then those that chose.
      found = _report(scored, evaluated.threshold)
      if self._selects and scored is evaluated.files[0]:
        found = {f"{SELECTION}{name}": value for name, value in found.items() if not name.startswith("best_")}
      report |= found
    if evaluated.threshold is not None:
      report["null_score_diff_threshold"] = evaluated.threshold
    return report

  def _evaluate(self, outputs: Outputs) -> _Evaluation:
    """Decodes the outputs, once: what they come to is kept until others are given."""
    if self._evaluated is None or self._evaluated.outputs is not outputs:
      scored: list[_Scored] = []
      begin = 0
      for features in self.splits["eval"]:
        rows = slice(begin, begin + len(features))
        begin = rows.stop
        decoded = _decoded(features, outputs, rows)
        best = answers.best_texts(features.data, decoded, threshold=None)
        scored.append(_Scored(features, decoded, metrics.score_answers(features.data, best)))
      threshold = self._threshold_of(outputs)
      if self.version == "2.0" and threshold is None:
        answerable = metrics.has_answer(scored[0].features.data)
        threshold = metrics.best_threshold(scored[0].scores.f1, answerable, scored[0].null_scores).value
      self._evaluated = _Evaluation(outputs, scored, threshold)
    return self._evaluated

  def _threshold_of(self, outputs: Outputs) -> float | None:
    """2.0: the one that was given, or that of the runs whose answers these are; None: it is to be searched."""
    if self.version == "1.1":
      return None
    return (
      float(outputs[THRESHOLD][0]) if self._threshold is None and THRESHOLD in outputs else self._threshold
    )

  def write_predictions(
    self, outputs: Outputs, split: str, directory: str, *, spec: TaskSpec | None = None
  ) -> None:
    """predictions.json, nbest_predictions.json and, for 2.0, null_odds.json, of the questions to predict."""
    features = self._predict
    if features is None or features not in self.splits[split]:
      return
    if split == "test":
      decoded = _decoded(features, outputs, slice(0, len(features)))
      threshold = self._threshold_of(outputs)
      if self.version == "2.0" and (threshold is None or THRESHOLD not in outputs):
        threshold = (spec or self.spec).null_score_diff_threshold
    else:
      evaluated = self._evaluate(outputs)
      decoded, threshold = evaluated.files[-1].decoded, evaluated.threshold
    answers.write_answers(directory, features.data, decoded, threshold=threshold)

  def stored(self, directory: str, split: str) -> Outputs:
    if self._predict is None:
      return super().stored(directory, split)
    decoded: Any = answers.read_answers(directory, self._predict.data)
    return {DECODED: decoded, THRESHOLD: np.array([TaskSpec.load(directory).null_score_diff_threshold])}

  def ensemble(self, outputs: Sequence[Outputs]) -> Outputs:
    models: Any = [each[DECODED] for each in outputs]
    merged: Any = answers.merge_answers(models, n_best_size=self.settings.n_best_size)
    threshold = answers.mean_logit([float(each[THRESHOLD][0]) for each in outputs])
    return {DECODED: merged, THRESHOLD: np.array([threshold])}


def _rows(parts: Sequence[SquadFeatures], chosen: Any = slice(None), **more: np.ndarray) -> PackedRows:
  """The inputs of all windows of some files, or of chosen ones of one file."""
  ids: list[np.ndarray] = []
  for each in parts:
    flat, splits = each.input_ids.flat_values.numpy(), each.input_ids.row_splits.numpy()
    windows = np.arange(len(each))[chosen]
    ids += [flat[splits[index] : splits[index + 1]] for index in windows]
  text_begins = np.concatenate([each.windows.text_begin[chosen] for each in parts])
  p_mask = parts[0].data.version == "2.0"
  return PackedRows(ids, [len(row) for row in ids], text_begins, p_mask=p_mask, more=more)


def _decoded(features: SquadFeatures, outputs: Outputs, rows: slice) -> list[answers.Decoded]:
  """Of the model's outputs for these rows; what several runs answered is decoded already."""
  if DECODED in outputs:
    return list(outputs[DECODED])  # type: ignore[arg-type]
  return answers.decode(features, {name: column[rows] for name, column in outputs.items()})


def _report(scored: _Scored, threshold: float | None) -> dict[str, float]:
  data = scored.features.data
  if threshold is None:
    return metrics.summarize(data, scored.scores)
  given = answers.best_texts(data, scored.decoded, threshold=threshold)
  report = metrics.summarize(data, metrics.score_answers(data, given))
  return report | metrics.best_thresholds(scored.scores, metrics.has_answer(data), scored.null_scores)
