"""Fine-tuned heads against the original's recorded outputs, from the original's own checkpoints."""

import numpy as np
from reference.squad import squad2_loss
from support.goldens import TINY_CONFIG, golden, golden_checkpoint
from support.synthetic_checkpoint import CONFIG
import tensorflow as tf

from albert_tf.checkpoints.checkpoint import load_weights, read_checkpoint
from albert_tf.keras_api.tasks import (
  AlbertClassifier,
  AlbertMultipleChoice,
  AlbertQuestionAnswering,
)
from albert_tf.modeling import named_variables

TOLERANCE = 1e-5
HEADS = golden("heads")


def load(model_class, name, **options):
  checkpoint = read_checkpoint(golden_checkpoint(name), config_file=TINY_CONFIG)
  model = model_class(checkpoint.config, **options)
  report = load_weights(model, checkpoint)  # Nothing missing, nothing left over.
  assert len(report.matched) == len(named_variables(model)) == len(checkpoint.variables)
  return model


def features():
  return {key: tf.constant(value) for key, value in HEADS.under("in/").items()}


def test_classification():
  model = load(AlbertClassifier, "tiny_mnli", head_options={"num_labels": 3})
  logits = model(features())
  np.testing.assert_allclose(logits, HEADS["mnli/logits"], atol=TOLERANCE)
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(HEADS["mnli/labels"], logits)
  np.testing.assert_allclose(losses, HEADS["mnli/per_example_loss"], atol=TOLERANCE)


def test_multiple_choice():
  model = load(AlbertMultipleChoice, "tiny_race")
  inputs = {
    key: tf.reshape(value, [2, 2, 64]) for key, value in features().items() if value.ndim == 2
  }
  np.testing.assert_allclose(model(inputs), HEADS["race/logits"], atol=TOLERANCE)


def test_squad2_inference():
  model = load(AlbertQuestionAnswering, "tiny_squad_v2")
  inputs = features()
  del inputs["start_positions"]
  outputs = model(inputs)
  assert set(outputs) == {
    "cls_logits", "start_top_log_probs", "start_top_index", "end_top_log_probs", "end_top_index",
  }  # fmt: skip
  for key, value in outputs.items():
    np.testing.assert_allclose(value, HEADS[f"squad_v2/{key}"], atol=TOLERANCE, err_msg=key)


def test_squad2_training():
  model = load(AlbertQuestionAnswering, "tiny_squad_v2", head_options={"classifier_dropout": 0.0})
  inputs = features()
  outputs = model(inputs, training=True)
  for key in ("start_log_probs", "end_log_probs", "cls_logits"):
    want = HEADS[f"squad_v2/train_{key}"]
    np.testing.assert_allclose(
      np.maximum(outputs[key], -1e6), np.maximum(want, -1e6), atol=TOLERANCE
    )
  loss = squad2_loss(
    outputs, inputs["start_positions"], inputs["end_positions"], inputs["is_impossible"]
  )
  np.testing.assert_allclose(loss, HEADS["squad_v2/train_total_loss"], atol=TOLERANCE)


def test_span_head_reads_rows():
  """There are no recorded arrays for version 1.1, so the expected values come from the equation."""
  model = AlbertQuestionAnswering(
    CONFIG, task=AlbertQuestionAnswering.make_task(squad_version="1.1")
  )
  variables = named_variables(model)
  rng = np.random.default_rng(0)
  weights, bias = rng.normal(size=(2, 6)).astype("f"), rng.normal(size=2).astype("f")
  variables["cls/squad/output_weights"].assign(weights)
  variables["cls/squad/output_bias"].assign(bias)
  inputs = {"input_ids": tf.constant([[1, 2, 3, 4, 5], [6, 7, 8, 0, 0]])}
  outputs = model(inputs)
  want = model.encoder(inputs)["sequence_output"].numpy() @ weights.T + bias
  np.testing.assert_allclose(outputs["start_logits"], want[..., 0], atol=1e-6)
  np.testing.assert_allclose(outputs["end_logits"], want[..., 1], atol=1e-6)
