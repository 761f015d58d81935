"""Outputs, losses and gradients against arrays recorded from the original code, from its own checkpoints."""

import functools

import numpy as np
import pytest
from support.goldens import GOLDENS, golden, golden_checkpoint
import tensorflow as tf

from albert_tf.checkpoints.checkpoint import Checkpoint, load_weights, read_checkpoint
from albert_tf.configs import AlbertConfig
from albert_tf.modeling import AlbertForPreTraining, named_variables
from albert_tf.modeling.losses import cross_entropy_sums

TOLERANCE = 1e-5
ORIGINAL_EPSILON = 1e-5  # The original divides the masked-LM sum by the sum of weights plus this.
ENCODER_OPTIONS = {
  "gather": {},
  "accelerated": {"accelerated": True},
  "remat": {"remat": True},
  "while": {"layer_loop": "while"},
  "read": {"read_positions_only": True},
  "read_remat": {"read_positions_only": True, "remat": True},
  "read_remat_while": {"read_positions_only": True, "remat": True, "layer_loop": "while"},
  "read_while": {"read_positions_only": True, "layer_loop": "while"},
}
RARE = ("while", "read_remat", "read_remat_while")  # Others have each of their parts.


@functools.cache
class Case:
  """One recorded model: its checkpoint, inputs and arrays."""

  def __init__(self, name):
    self.golden = golden(name)
    self.checkpoint = read_checkpoint(golden_checkpoint(name))
    self.inputs = {key: tf.constant(value) for key, value in self.golden.under("in/").items()}

  def model(self, *, read_positions_only=False, **encoder_options):
    model = AlbertForPreTraining(
      self.checkpoint.config,
      encoder_options=encoder_options,
      read_positions_only=read_positions_only,
    )
    load_weights(model, self.checkpoint)
    return model

  def losses(self, outputs):
    mlm = cross_entropy_sums(
      outputs["mlm_logits"], self.inputs["masked_lm_ids"], self.inputs["masked_lm_weights"]
    )
    sop = cross_entropy_sums(outputs["sop_logits"], self.inputs["next_sentence_labels"][:, 0])
    return mlm.loss / (mlm.weight + ORIGINAL_EPSILON), sop.loss / sop.weight


def assert_outputs(case, outputs, *, every_layer=True):
  golden = case.golden
  hidden = golden["sequence_output"]
  if outputs["sequence_output"].shape != hidden.shape:  # Only where it is read.
    hidden = np.take_along_axis(hidden, golden["in/masked_lm_positions"][..., np.newaxis], axis=1)
  np.testing.assert_allclose(outputs["sequence_output"], hidden, atol=TOLERANCE)
  for key in ("embedding_output", "pooled_output", "sop_logits"):
    np.testing.assert_allclose(outputs[key], golden[key], atol=TOLERANCE, err_msg=key)
  golden.assert_close("mlm_logits", outputs["mlm_logits"], atol=TOLERANCE)
  assert ("all_encoder_layers" in outputs) == every_layer
  if every_layer:
    golden.assert_close(
      "all_encoder_layers", tf.stack(outputs["all_encoder_layers"]), atol=TOLERANCE
    )
  masked_lm, sentence_order = case.losses(outputs)
  np.testing.assert_allclose(masked_lm, golden["masked_lm_loss"], atol=TOLERANCE)
  np.testing.assert_allclose(sentence_order, golden["sentence_order_loss"], atol=TOLERANCE)


@pytest.mark.parametrize(
  ("name", "options"),
  [
    *(("tiny", options) for options in ENCODER_OPTIONS if options not in RARE),
    *(pytest.param("tiny", options, marks=pytest.mark.slow) for options in RARE),
    ("tiny_groups", "gather"),
  ],
)
def test_outputs_losses_and_gradients(name, options):
  """All forms of the encoder give the recorded values; those with loops or functions of their own in a graph too."""
  case = Case(name)
  model = case.model(**ENCODER_OPTIONS[options])
  variables = named_variables(model)
  assert case.golden.names("grad/") == set(variables)

  def gradients():
    with tf.GradientTape() as tape:
      outputs = model(case.inputs, training=True)
      total = tf.add_n(case.losses(outputs))
    return outputs, [
      tf.convert_to_tensor(g) for g in tape.gradient(total, list(variables.values()))
    ]

  runs = [gradients]
  if ENCODER_OPTIONS[options].keys() & {"remat", "layer_loop"}:
    runs.append(tf.function(gradients, autograph=False))
  for run in runs:
    outputs, got = run()
    assert_outputs(case, outputs, every_layer=options in ("gather", "accelerated"))
    for variable, gradient in zip(variables, got, strict=True):
      case.golden.assert_close(f"grad/{variable}", gradient, atol=TOLERANCE, rtol=TOLERANCE)


def seeded_weights(names_and_shapes):
  """The weights the recorded run used: drawn in sorted order of name from one generator."""
  rng = np.random.RandomState(20200101)
  scales = {"gamma": 0.1, "beta": 0.1, "bias": 0.1, "output_bias": 0.1}
  weights = {}
  for name, shape in sorted(names_and_shapes):
    leaf = name.rsplit("/", 1)[-1]
    value = rng.standard_normal(shape).astype(np.float32) * np.float32(scales.get(leaf, 0.05))
    weights[name] = value + np.float32(1) if leaf == "gamma" else value
  return weights


@pytest.mark.slow
def test_tfhub_base_graph():
  lines = (GOLDENS / "released_variables_crc32c.tsv").read_text().splitlines()[1:]
  shapes = [
    (row[0], [int(n) for n in row[1].split("x")]) for row in (line.split("\t") for line in lines)
  ]
  config = AlbertConfig.from_name("base_v2")
  model = AlbertForPreTraining(config)
  checkpoint = Checkpoint(config=config, variables=seeded_weights(shapes), path="seeded")
  load_weights(
    model, checkpoint, allow_missing="^cls/seq_relationship/"
  )  # The module has no such head.
  recorded = golden("tfhub_base")
  inputs = {key: recorded[key] for key in ("input_ids", "input_mask", "segment_ids")}
  inputs["masked_lm_positions"] = recorded["mlm_positions"]
  # The original computes vectors of padding too; without it they are zeros.
  for packs, keys in (
    (False, ("sequence_output", "pooled_output", "mlm_logits")),
    (True, ("pooled_output", "mlm_logits")),
  ):
    model.encoder.packs = packs
    outputs = model(inputs)
    for key in keys:
      recorded.assert_close(key, outputs[key], atol=1e-4)
