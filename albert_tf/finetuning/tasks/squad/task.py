"""SQuAD as a fine-tuning task: windows of files, answers from the model's outputs, metrics."""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

from absl import logging
import numpy as np

from albert_tf.configs.task import TaskSpec
from albert_tf.finetuning.tasks.base import FineTuningTask, Outputs
from albert_tf.finetuning.tasks.squad import answers, metrics
from albert_tf.finetuning.tasks.squad.features import AnswerPositions, SquadFeatures, make_features
from albert_tf.finetuning.tasks.squad.read import SquadData
from albert_tf.finetuning.tasks.squad.settings import SPEC_SIZES, SquadSettings
from albert_tf.keras_api.examples import Examples
from albert_tf.keras_api.squad_heads import squad_losses
from albert_tf.tokenization import AlbertTokenizer

# Keys of a finished run's answers, in place of model outputs.
DECODED = "decoded"
THRESHOLD = "threshold"


class SquadTask(FineTuningTask):
  """SQuAD 1.1 (`SpanHead`) or 2.0 (`Squad2Head`).

  Args:
    data: questions, as of `read.read_splits`, of "train"; "eval", which chooses the checkpoint and
      the threshold; "test", with or without answers. Each split becomes `SquadFeatures`.
    version: "1.1" or "2.0".
    settings: sizes in tokens.
    tokenizer: tokenizer of the weights.
    threshold: 2.0: that of a fine-tuned run, no answer if the null score is at least this; None: the
      best one for "eval".
  """

  best_metric = "f1"
  has_one_set_of_predictions = True

  def __init__(
    self,
    data: Mapping[str, SquadData],
    *,
    version: str,
    settings: SquadSettings,
    tokenizer: AlbertTokenizer,
    threshold: float | None = None,
  ):
    self.version = version
    self.settings = settings
    self.tokenizer = tokenizer
    self.sources = {split: of_split.source for split, of_split in data.items()}
    self.splits: dict[str, SquadFeatures] = {}
    for split, of_split in data.items():
      features = make_features(of_split, tokenizer=tokenizer, settings=settings)
      logging.info("%s: %d questions, %d windows", split, len(of_split.questions), len(features))
      ids = [of_split.questions[index].id for index in np.flatnonzero(features.missing)]
      if ids:
        logging.warning(
          "  %d answers are not at their answer_start and teach nothing: %s", len(ids), ids[:5]
        )
      if split == "train" and version == "2.0" and all(each.answers for each in of_split.questions):
        logging.warning(
          "  No question is without an answer, so the model does not learn to give none. Add some, or "
          "take version 1.1."
        )
      self.splits[split] = features
    self._fixed_threshold = threshold
    self._chosen_threshold = 0.0
    # The answers of the last outputs: `evaluate` and `write_predictions` get the same ones.
    self._last_outputs: Outputs = {}
    self._last_decoded: list[answers.Decoded] = []
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

  def features(self, split: str) -> Examples:
    features: SquadFeatures = self.split(split)
    rows = features.rows
    if not features.data.labelled:
      return rows
    positions = features.positions
    if split == "train":
      # Windows of an answer at a wrong place would teach that there is none: they are left out.
      numbers = np.flatnonzero(~features.missing[features.windows.row])
      positions = AnswerPositions(*[column[numbers] for column in positions])
      rows = rows.take(numbers)
      # In training the head of 2.0 reads the true start.
      if self.version == "2.0":
        inputs = {**rows.inputs, "start_positions": positions.starts}
        rows = dataclasses.replace(rows, inputs=inputs)
    # 1.1 has only the first two outputs.
    columns = (positions.starts, positions.ends, positions.is_absent.astype(np.float32))
    return dataclasses.replace(rows, labels=dict(zip(self.loss(), columns, strict=False)))

  def loss(self) -> Any:
    return squad_losses(self.version)

  # ------------------------------------------------------------------ answers and scores

  def evaluate(self, outputs: Outputs, split: str = "eval") -> dict[str, float]:
    """Percentages by the official rules: `exact`, `f1`, `total`.

    2.0 also has `HasAns_…`, `NoAns_…`, the threshold chosen on "eval", and `best_…` with the best
    threshold for the questions themselves.
    """
    data = self.splits[split].data
    decoded = self._decode(outputs, split)
    scores = metrics.score_answers(data, answers.best_texts(data, decoded, threshold=None))
    if self.version == "1.1":
      return metrics.summarize(data, scores)

    # The best thresholds, from the scores of answering everything.
    answerable = metrics.has_answer(data)
    null_scores = np.array([answer.null_score for answer in decoded])
    best = {}
    for name, values in scores._asdict().items():
      threshold, score = metrics.best_threshold(values, answerable, null_scores)
      best[f"best_{name}_thresh"] = threshold
      best[f"best_{name}"] = score
    if split == "eval":
      self._chosen_threshold = best["best_f1_thresh"]

    # The scores with the threshold in use.
    threshold = self._threshold(outputs)
    texts = answers.best_texts(data, decoded, threshold=threshold)
    report = metrics.summarize(data, metrics.score_answers(data, texts))
    return report | best | {"null_score_diff_threshold": threshold}

  def _decode(self, outputs: Outputs, split: str) -> list[answers.Decoded]:
    """The answers to a split; those of several runs are decoded already."""
    if DECODED in outputs:
      return list(outputs[DECODED])
    if self._last_outputs is not outputs:
      self._last_decoded = answers.decode(self.splits[split], outputs)
      self._last_outputs = outputs
    return self._last_decoded

  def _threshold(self, outputs: Outputs) -> float:
    """The fixed threshold; else that of the runs with these answers, or the last choice on "eval"."""
    if self._fixed_threshold is not None:
      return self._fixed_threshold
    if THRESHOLD in outputs:
      return outputs[THRESHOLD][0]
    return self._chosen_threshold

  def write_predictions(self, outputs: Outputs, split: str, directory: str) -> None:
    """Writes predictions.json, nbest_predictions.json and, for 2.0, null_odds.json.

    There is one set of these files, for "test" or else "eval".
    """
    if split == "eval" and "test" in self.splits:
      return
    threshold = self._threshold(outputs) if self.version == "2.0" else None
    decoded = self._decode(outputs, split)
    answers.write_answers(directory, self.splits[split].data, decoded, threshold=threshold)

  # ------------------------------------------------------------------ ensembles

  def stored(self, directory: str, split: str) -> Outputs:
    decoded = answers.read_answers(directory, self.split(split).data)
    return {DECODED: decoded, THRESHOLD: [TaskSpec.load(directory).null_score_diff_threshold]}

  def ensemble(self, outputs: Sequence[Outputs]) -> Outputs:
    models = [run[DECODED] for run in outputs]
    merged = answers.merge_answers(models, n_best_size=self.settings.n_best_size)
    threshold = answers.mean_logit([run[THRESHOLD][0] for run in outputs])
    return {DECODED: merged, THRESHOLD: [threshold]}
