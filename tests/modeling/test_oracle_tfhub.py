"""The model against Google's released TF-Hub graph of ALBERT-base, both on the same seeded random weights."""

import numpy as np
import pytest
from support.goldens import GOLDENS, golden

from albert_tf.checkpoints import Checkpoint, load_weights
from albert_tf.configs import AlbertConfig
from albert_tf.modeling import AlbertForPreTraining

TOLERANCE = 1e-4


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
  shapes = [(row[0], [int(n) for n in row[1].split("x")]) for row in (line.split("\t") for line in lines)]
  config = AlbertConfig.from_name("base_v2")
  model = AlbertForPreTraining(config)
  checkpoint = Checkpoint(config=config, variables=seeded_weights(shapes), path="seeded")
  load_weights(model, checkpoint, allow_missing="^cls/seq_relationship/")  # The module has no such head.
  recorded = golden("tfhub_base")
  inputs = {key: recorded[key] for key in ("input_ids", "input_mask", "segment_ids")}
  outputs = model({**inputs, "masked_lm_positions": recorded["mlm_positions"]})
  for key in ("sequence_output", "pooled_output", "mlm_logits"):
    recorded.assert_close(key, outputs[key], atol=TOLERANCE)
