"""Outputs, losses and gradients against arrays recorded from the original code, from its own checkpoints."""

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.interop import load_weights, read_checkpoint
from albert_tf.modeling import AlbertForPreTraining, named_variables
from albert_tf.modeling.losses import masked_lm_sums, sentence_order_sums

TOLERANCE = 1e-5
ORIGINAL_EPSILON = 1e-5  # The original divides the masked-LM sum by the sum of weights plus this.
ENCODER_OPTIONS = {
  "gather": {},
  "one_hot": {"use_one_hot_embeddings": True},
  "remat": {"remat": True},
  "while": {"layer_loop": "while"},
  "read": {"read_positions_only": True},
  "read_remat": {"read_positions_only": True, "remat": True},
  "read_remat_while": {"read_positions_only": True, "remat": True, "layer_loop": "while"},
  "read_while": {"read_positions_only": True, "layer_loop": "while"},
}


class Case:
  """One recorded model: its checkpoint, inputs and arrays."""

  def __init__(self, oracle_dir, name):
    self.golden = dict(np.load(oracle_dir / f"golden_{name}.npz"))
    self.checkpoint = read_checkpoint(str(oracle_dir / f"ckpt_{name}" / "model.ckpt-best"))
    self.inputs = {k[3:]: tf.constant(v) for k, v in self.golden.items() if k.startswith("in/")}

  def model(self, *, read_positions_only=False, **encoder_options):
    model = AlbertForPreTraining(
      self.checkpoint.config, encoder_options=encoder_options, read_positions_only=read_positions_only
    )
    load_weights(model, self.checkpoint)
    return model

  def losses(self, outputs):
    mlm = masked_lm_sums(
      outputs["mlm_logits"], self.inputs["masked_lm_ids"], self.inputs["masked_lm_weights"]
    )
    sop = sentence_order_sums(outputs["sop_logits"], self.inputs["next_sentence_labels"][:, 0])
    return mlm.loss / (mlm.weight + ORIGINAL_EPSILON), sop.loss / sop.count


@pytest.fixture(scope="module", params=["tiny", "tiny_groups"])
def case(request, oracle_dir):
  return Case(oracle_dir, request.param)


@pytest.fixture(scope="module")
def tiny(oracle_dir):
  return Case(oracle_dir, "tiny")


def assert_outputs(case, outputs):
  golden = case.golden
  hidden = golden["sequence_output"]
  if outputs["sequence_output"].shape != hidden.shape:  # Only where it is read.
    hidden = np.take_along_axis(hidden, golden["in/masked_lm_positions"][..., np.newaxis], axis=1)
  np.testing.assert_allclose(outputs["sequence_output"], hidden, atol=TOLERANCE)
  for key in ("embedding_output", "pooled_output", "sop_logits"):
    np.testing.assert_allclose(outputs[key], golden[key], atol=TOLERANCE, err_msg=key)
  flat = tf.reshape(outputs["mlm_logits"], golden["mlm_logits"].shape)
  np.testing.assert_allclose(flat, golden["mlm_logits"], atol=TOLERANCE)
  if "all_encoder_layers" in outputs:
    np.testing.assert_allclose(
      tf.stack(outputs["all_encoder_layers"]), golden["all_encoder_layers"], atol=TOLERANCE
    )
  masked_lm, sentence_order = case.losses(outputs)
  np.testing.assert_allclose(masked_lm, golden["masked_lm_loss"], atol=TOLERANCE)
  np.testing.assert_allclose(sentence_order, golden["sentence_order_loss"], atol=TOLERANCE)


def test_outputs_and_losses(case):
  assert_outputs(case, case.model()(case.inputs))


@pytest.mark.parametrize("options", ENCODER_OPTIONS)
def test_gradients(options, tiny):
  """Every way to run the encoder has the recorded outputs and gradients, in a graph and eagerly."""
  model = tiny.model(**ENCODER_OPTIONS[options])
  variables = named_variables(model)

  def gradients():
    with tf.GradientTape() as tape:
      outputs = model(tiny.inputs, training=True)
      total = tf.add_n(tiny.losses(outputs))
    return outputs, [tf.convert_to_tensor(g) for g in tape.gradient(total, list(variables.values()))]

  for run in (gradients, tf.function(gradients)):
    outputs, got = run()
    assert_outputs(tiny, outputs)
    for name, gradient in zip(variables, got, strict=True):
      want = tiny.golden[f"grad/{name}"]
      np.testing.assert_allclose(gradient, want, atol=TOLERANCE, rtol=TOLERANCE, err_msg=name)


def test_gradients_of_groups(oracle_dir):
  case = Case(oracle_dir, "tiny_groups")
  model = case.model()
  variables = named_variables(model)
  with tf.GradientTape() as tape:
    total = tf.add_n(case.losses(model(case.inputs, training=True)))
  got = tape.gradient(total, list(variables.values()))
  recorded = {key[5:] for key in case.golden if key.startswith("grad/")}
  assert recorded == set(variables)
  for name, gradient in zip(variables, got, strict=True):
    want = case.golden[f"grad/{name}"]
    np.testing.assert_allclose(
      tf.convert_to_tensor(gradient), want, atol=TOLERANCE, rtol=TOLERANCE, err_msg=name
    )
