"""SQuAD as a fine-tuning task: windows of files, answers from the model's outputs, metrics and predictions."""

from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging
import numpy as np

from albert_tf.configs.task import TaskSpec
from albert_tf.finetuning.data import hold_out
from albert_tf.finetuning.tasks.base import FeatureSet, FineTuningTask, Outputs
from albert_tf.finetuning.tasks.squad import answers, metrics
from albert_tf.finetuning.tasks.squad.features import SquadFeatures, make_features
from albert_tf.finetuning.tasks.squad.read import SquadData, read_squad
from albert_tf.finetuning.tasks.squad.settings import SPEC_SIZES, SquadFiles, SquadSettings
from albert_tf.keras_api.heads import squad_losses
from albert_tf.tokenization import AlbertTokenizer

DECODED, THRESHOLD = "decoded", "threshold"  # Keys of a finished run's answers, in place of model outputs.


def build_task(
  source: SquadFiles,
  *,
  settings: SquadSettings,
  tokenizer: AlbertTokenizer,
  default_threshold: float | None = 0.0,
) -> "SquadTask":
  """Reads and converts the files: "train"; "eval", which chooses checkpoint and threshold; other questions as "test".

  `default_threshold` is the threshold of 2.0 if no questions choose it, such as that of the fine-tuned run; None: that
  of an ensemble's members.
  """
  data: dict[str, SquadData] = {}
  if source.train_file:
    data["train"] = read_squad(source.train_file, version=source.version, require_answers=True)
    if source.selection_split == "train":
      whole = data["train"]  # Whole articles are held out, so that no paragraph is in both.
      groups = [whole.paragraphs[question.paragraph].article for question in whole.questions]
      numbers, fraction = range(len(groups)), source.held_out_fraction
      train, held = hold_out(numbers, fraction, source=source.train_file, groups=groups)
      data["train"], data["eval"] = whole.subset(train), whole.subset(held)
  if source.predict_file:
    predict = read_squad(source.predict_file, version=source.version)
    data["eval" if predict.labelled and "eval" not in data else "test"] = predict
  threshold = source.null_score_diff_threshold
  if threshold is None and not source.train_file and source.selection_split == "train":
    threshold = default_threshold
  splits = {name: make_features(each, tokenizer=tokenizer, settings=settings) for name, each in data.items()}
  for name, each in splits.items():
    logging.info("%s: %d questions, %d windows", name, len(each.data.questions), len(each))
    ids = [each.data.questions[index].id for index in np.flatnonzero(each.missing)]
    if ids:
      logging.warning("  %d answers are not at their answer_start and teach nothing: %s", len(ids), ids[:5])
  return SquadTask(version=source.version, settings=settings, splits=splits, threshold=threshold)


class SquadTask(FineTuningTask):
  """SQuAD 1.1 (`SpanHead`) or 2.0 (`Squad2Head`).

  Args:
    version: "1.1" or "2.0".
    settings: sizes in tokens.
    splits: "train"; "eval", which chooses the checkpoint and the threshold; "test", with or without answers.
    threshold: 2.0: no answer if the null score is at least this; None: the best one for "eval".
  """

  best_metric = "f1"

  def __init__(
    self,
    *,
    version: str,
    settings: SquadSettings,
    splits: Mapping[str, SquadFeatures],
    threshold: float | None = None,
  ):
    self.version = version
    self.settings = settings
    self.splits: Mapping[str, SquadFeatures] = splits
    self._given = threshold
    self._found = 0.0
    self._decoded: tuple[Outputs, list[answers.Decoded]] = ({}, [])
    self.loss_weights = dict.fromkeys(self.loss(), 0.5)  # The original's, in both versions.
    if version == "2.0":
      self.head_options = {"start_n_top": settings.start_n_top, "end_n_top": settings.end_n_top}
    sizes = {name: getattr(settings, name) for name in SPEC_SIZES}
    self.spec = TaskSpec(
      kind="question_answering",
      name="squad",
      pair=True,
      squad_version=version,
      null_score_diff_threshold=threshold or 0.0,
      **sizes,
    )

  def features(self, split: str) -> FeatureSet:
    features: SquadFeatures = self.split(split)
    if not features.data.labelled:
      return FeatureSet(features.rows, pad_values={"p_mask": 1})
    starts, ends, lacking = features.positions
    rows = features.rows
    if split == "train":  # Windows with an answer at a wrong place are left out.
      chosen = np.flatnonzero(~features.missing[features.windows.row])
      starts, ends, lacking = (column[chosen] for column in (starts, ends, lacking))
      rows = rows.take(chosen, **({"start_positions": starts} if self.version == "2.0" else {}))
    columns = (starts, ends, lacking.astype(np.float32))
    return FeatureSet(rows, dict(zip(self.loss(), columns, strict=False)), pad_values={"p_mask": 1})

  def loss(self) -> Any:
    return squad_losses(self.version)

  # ------------------------------------------------------------------ answers and scores

  def evaluate(self, outputs: Outputs, split: str = "eval") -> dict[str, float]:
    """Percentages by the official rules: `exact`, `f1`, `total`; for 2.0 also `HasAns_…`, `NoAns_…`, the threshold
    chosen on "eval", and `best_…` with the best threshold for the questions themselves."""
    data, decoded = self.splits[split].data, self._decode(outputs, split)
    scores = metrics.score_answers(data, answers.best_texts(data, decoded, threshold=None))
    if self.version == "1.1":
      return metrics.summarize(data, scores)
    answerable, nulls = metrics.has_answer(data), np.array([each.null_score for each in decoded])
    best = {}
    for name, values in scores._asdict().items():
      best[f"best_{name}_thresh"], best[f"best_{name}"] = metrics.best_threshold(values, answerable, nulls)
    if split == "eval":
      self._found = best["best_f1_thresh"]
    threshold = self._threshold(outputs)
    given = answers.best_texts(data, decoded, threshold=threshold)
    report = metrics.summarize(data, metrics.score_answers(data, given))
    return report | best | {"null_score_diff_threshold": threshold}

  def _decode(self, outputs: Outputs, split: str) -> list[answers.Decoded]:
    """The answers to a split; those of the last outputs are kept, and those of several runs are decoded already."""
    if DECODED in outputs:
      return list(outputs[DECODED])  # type: ignore[arg-type]
    if self._decoded[0] is not outputs:
      self._decoded = outputs, answers.decode(self.splits[split], outputs)
    return self._decoded[1]

  def _threshold(self, outputs: Outputs) -> float:
    """The given threshold; else that of the runs with these answers, or the last choice on "eval"."""
    if self._given is not None:
      return self._given
    return float(outputs[THRESHOLD][0]) if THRESHOLD in outputs else self._found

  def write_predictions(self, outputs: Outputs, split: str, directory: str) -> None:
    """Writes predictions.json, nbest_predictions.json and, for 2.0, null_odds.json, for "test" or else "eval"."""
    if split == "eval" and "test" in self.splits:
      return
    threshold = self._threshold(outputs) if self.version == "2.0" else None
    answers.write_answers(
      directory, self.splits[split].data, self._decode(outputs, split), threshold=threshold
    )

  def stored(self, directory: str, split: str) -> Outputs:
    decoded: Any = answers.read_answers(directory, self.split(split).data)
    return {DECODED: decoded, THRESHOLD: np.array([TaskSpec.load(directory).null_score_diff_threshold])}

  def ensemble(self, outputs: Sequence[Outputs]) -> Outputs:
    models: Any = [each[DECODED] for each in outputs]
    merged: Any = answers.merge_answers(models, n_best_size=self.settings.n_best_size)
    threshold = answers.mean_logit([float(each[THRESHOLD][0]) for each in outputs])
    return {DECODED: merged, THRESHOLD: np.array([threshold])}
