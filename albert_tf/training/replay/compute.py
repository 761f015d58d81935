"""The batch of one update of a finished or running run, example by example: what a spike was made of."""

from collections.abc import Mapping, Sequence
import dataclasses
import os
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.checkpoints.restore import restore_variables
from albert_tf.errors import UserError
from albert_tf.modeling import AlbertForPreTraining, initialize_variables, named_variables
from albert_tf.modeling.pretraining import trained_variables
from albert_tf.optim.clipping import global_norm
from albert_tf.pipelines.order import RecordPlace
from albert_tf.training.distribution import set_precision
from albert_tf.training.replay.source import (
  Arrays,
  Origin,
  find_origin,
  read_batch,
  read_index,
  read_run,
  reported_near,
)
from albert_tf.training.settings import PretrainingSettings
from albert_tf.training.step import WEIGHT_EPSILON


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplayedExample:
  """One example of the batch.

  Attributes:
    row: its place in the batch.
    place: its file and record.
    features: what the record holds, `[S]`, `[P]` or a scalar each.
    gradient_norm: of its part of the batch's gradient; None where it was not asked for.
    loss: `masked_lm_loss`, the mean of its predictions, plus `sentence_loss` if the run has one; nats.
    share: its part of the batch's loss; all parts add up to it.
    prediction_losses, predicted_ids, predicted_probabilities: `[P]`.
    predicted_label: 0 in order, 1 swapped or from another document.
  """

  row: int
  place: RecordPlace
  features: Arrays
  gradient_norm: float | None
  loss: float
  share: float
  masked_lm_loss: float
  sentence_loss: float
  prediction_losses: np.ndarray
  predicted_ids: np.ndarray
  predicted_probabilities: np.ndarray
  predicted_label: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplayedStep:
  """One update, without dropout.

  Attributes:
    step: its number; the first is 1.
    weights: in words, where they are from.
    weights_step: after how many updates they are; `step` - 1 if they are those that the update was made from.
    has_dropout: whether training had dropout, which is left out here.
    loss, masked_lm_loss, masked_lm_accuracy, sentence_loss, sentence_accuracy: of the batch.
    sentence_task: see `StepConfig`; where it is empty the sentences are in no loss.
    gradient_norm: of the batch, before clipping.
    reported: what metrics.jsonl says of the updates around it, with `first_step`; None without a report.
    examples: the highest loss first, those that are not finite before all.
  """

  step: int
  weights: str
  weights_step: int
  has_dropout: bool
  loss: float
  masked_lm_loss: float
  masked_lm_accuracy: float
  sentence_task: str
  sentence_loss: float
  sentence_accuracy: float
  gradient_norm: float
  reported: Mapping[str, Any] | None
  examples: tuple[ReplayedExample, ...]


def replay_step(
  run_dir: str, step: int, *, input_files: Sequence[str] = (), rows_at_once: int = 8, num_gradients: int = 5
) -> ReplayedStep:
  """Computes the batch of update `step` again.

  Args:
    run_dir: of run_pretrain.py.
    step: number of the update, from 1 on; it need not have been made yet.
    input_files: where the run's records are now; by default where they were.
    rows_at_once: examples of one forward and backward pass at most.
    num_gradients: for so many of the highest losses, the gradient norm of the example alone.

  Raises:
    UserError: no pretraining run there, a step beyond it, or other records than those of the run.
  """
  settings, identity = read_run(run_dir)
  if not 1 <= step <= settings.num_train_steps:
    raise UserError(
      f"--step must be an update of the run. Received: {step}; {run_dir} has updates 1 to "
      f"{settings.num_train_steps:,}. Steps are counted from 1, as in metrics.jsonl."
    )
  index = read_index(list(input_files) or list(settings.input_files), settings, identity)
  origin = find_origin(run_dir, settings, step)
  batch, places = read_batch(index, settings, origin, int(identity.get("order_version", 1)))
  set_precision(settings.distribution.precision)
  model = AlbertForPreTraining(settings.model, read_positions_only=True)
  variables = named_variables(model)
  weights = _fill(variables, origin, settings)
  has_sentence_loss = bool(settings.step.sentence_task)
  trained = trained_variables(model, sentence_loss=has_sentence_loss)
  passes = _Passes(model, list(trained.values()), batch, has_sentence_loss=has_sentence_loss)
  results, gradient_norm = passes.all_rows(rows_at_once)
  losses = results["loss"]
  ranks = np.argsort(np.where(np.isfinite(losses), -losses, -np.inf), kind="stable").tolist()
  norms = {row: passes.norm_alone(row) for row in ranks[:num_gradients]}

  def of_predictions(values: np.ndarray) -> float:
    with np.errstate(invalid="ignore"):  # What is not finite is what one looks for.
      total = batch["masked_lm_weights"].sum()
      return float((values * batch["masked_lm_weights"]).sum() / max(total, 1.0))

  return ReplayedStep(
    step=step,
    weights=weights,
    weights_step=origin.step,
    has_dropout=settings.model.hidden_dropout_prob + settings.model.attention_probs_dropout_prob > 0,
    loss=float(results["share"].sum()),
    masked_lm_loss=of_predictions(results["prediction_losses"]),
    masked_lm_accuracy=of_predictions(results["predicted_ids"] == batch["masked_lm_ids"]),
    sentence_task=settings.step.sentence_task,
    sentence_loss=float(results["sentence_loss"].mean()),
    sentence_accuracy=float((results["predicted_label"] == batch["sentence_order_labels"]).mean()),
    gradient_norm=gradient_norm,
    reported=reported_near(run_dir, step),
    examples=tuple(
      ReplayedExample(
        row=row,
        place=places[row],
        features={name: value[row] for name, value in batch.items()},
        gradient_norm=norms.get(row),
        **{name: values[row].item() if values.ndim == 1 else values[row] for name, values in results.items()},
      )
      for row in ranks
    ),
  )


def _fill(variables: Mapping[str, tf.Variable], origin: Origin, settings: PretrainingSettings) -> str:
  """Fills the variables; returns in words where they are from."""
  if origin.prefix is not None:
    restore_variables(variables, origin.prefix)
    return os.path.basename(origin.prefix)
  if settings.init_checkpoint:
    restore_variables(variables, settings.init_checkpoint)
    return f"the weights that the run started from ({settings.init_checkpoint})"
  initialize_variables(variables, seed=settings.step.seed, initializer_range=settings.model.initializer_range)
  return "the run's initial weights"


class _Passes:
  """Forward and backward passes over rows of one batch; both denominators are those of the whole."""

  def __init__(
    self, model: AlbertForPreTraining, variables: list[tf.Variable], batch: Arrays, *, has_sentence_loss: bool
  ):
    self._model = model
    self._has_sentence_loss = has_sentence_loss
    self._variables = variables
    self._batch = batch
    self._size = len(batch["input_ids"])
    # A tensor: of a constant that is infinite TensorFlow 2.15 makes a product with 0, and leaves that out.
    self._weight = tf.constant(batch["masked_lm_weights"].sum() + WEIGHT_EPSILON, tf.float32)
    self._run = tf.function(self._compute, autograph=False)

  def _rows(self, rows: slice) -> tuple[dict[str, tf.Tensor], list[tf.Tensor]]:
    return self._run({name: tf.constant(value[rows]) for name, value in self._batch.items()})

  def all_rows(self, at_once: int) -> tuple[Arrays, float]:
    """The results of all rows, and the norm of the whole gradient."""
    part = max(n for n in range(1, min(at_once, self._size) + 1) if self._size % n == 0)
    total = [tf.zeros(variable.shape) for variable in self._variables]
    found = []
    for begin in range(0, self._size, part):
      results, gradients = self._rows(slice(begin, begin + part))
      found.append(results)
      total = [old + new for old, new in zip(total, gradients, strict=True)]
    return {name: np.concatenate([results[name] for results in found]) for name in found[0]}, _norm(total)

  def norm_alone(self, row: int) -> float:
    """The norm of one row's part of the gradient."""
    return _norm(self._rows(slice(row, row + 1))[1])

  def _compute(self, batch: dict[str, tf.Tensor]) -> tuple[dict[str, tf.Tensor], list[tf.Tensor]]:
    weights = batch["masked_lm_weights"]
    with tf.GradientTape() as tape:
      outputs = self._model(batch, training=False)
      logits = tf.cast(outputs["mlm_logits"], tf.float32)  # [b, P, V]
      losses = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["masked_lm_ids"], logits)  # [b, P]
      sums = tf.reduce_sum(weights * losses, axis=1)
      label_logits = tf.cast(outputs["sop_logits"], tf.float32)
      sentence = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["sentence_order_labels"], label_logits)
      if not self._has_sentence_loss:
        sentence = tf.zeros_like(sentence)
      share = sums / self._weight + sentence / self._size
      loss = tf.reduce_sum(share)
    gradients = [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, self._variables)]
    masked_lm_loss = sums / tf.maximum(tf.reduce_sum(weights, axis=1), 1.0)
    results = {
      "loss": masked_lm_loss + sentence,
      "share": share,
      "masked_lm_loss": masked_lm_loss,
      "sentence_loss": sentence,
      "prediction_losses": losses,
      "predicted_ids": tf.argmax(logits, axis=-1, output_type=tf.int32),
      "predicted_probabilities": tf.reduce_max(tf.nn.softmax(logits), axis=-1),
      "predicted_label": tf.argmax(label_logits, axis=-1, output_type=tf.int32),
    }
    return results, gradients


def _norm(gradients: list[tf.Tensor]) -> float:
  return float(global_norm({str(i): gradient for i, gradient in enumerate(gradients)}))
