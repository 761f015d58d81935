"""LiteRT files equal the Python model, hold each weight once, and survive half precision."""

import dataclasses
import pathlib

import numpy as np
import pytest
from serving.conftest import TASKS
from support.synthetic_checkpoint import CONFIG as SYNTHETIC
from support.synthetic_checkpoint import convert_to, random_variables, write_tf1
from support.tiny_records import tiny_config
from support.tiny_run import randomize
from tensorflow.lite.tools import flatbuffer_utils

from albert_tf import AlbertEncoder, AlbertMaskedLM
from albert_tf.errors import UserError
from albert_tf.keras_api.tasks import CLASS_OF_KIND, open_model
from albert_tf.modeling import named_variables
from albert_tf.serving import lite
from albert_tf.serving.export import sample_ids
from albert_tf.serving.settings import LiteSettings

KINDS = (
  "fill_mask",
  "pair",
  "choice",
  "squad_2.0",
  "encoder",
  "labels",
  "vectors",
  "tags",
  "squad_1.1",
)
CONFIG = tiny_config(vocab_size=97, hidden_size=24, max_position_embeddings=20)
# Wide enough for matrices to outweigh the graph, deep enough to betray a copy a layer.
DEEP = dataclasses.replace(
  CONFIG,
  vocab_size=1000,
  embedding_size=64,
  hidden_size=192,
  num_hidden_layers=12,
  intermediate_size=768,
)


def small_model(which, config=CONFIG, *, stddev=0.3):
  """The model of a key of `TASKS` with random weights."""
  if which in TASKS:
    model = CLASS_OF_KIND[TASKS[which].kind](config, task=TASKS[which])
  else:
    model = (AlbertEncoder if which == "encoder" else AlbertMaskedLM)(config)
  randomize(model, seed=7, stddev=stddev)
  return model


@pytest.mark.parametrize(
  "which",
  [which if which == "pair" else pytest.param(which, marks=pytest.mark.slow) for which in KINDS],
)
def test_every_kind_equals_the_model(which: str) -> None:
  model = small_model(which)
  free = which == "pair"
  settings = LiteSettings(
    batch_size=0 if free else 3, max_seq_length=11, max_predictions_per_seq=2, num_choices=2
  )
  specs = lite.input_specs(model, settings)
  run = lite.load_lite(lite.to_tflite(model, specs))
  for rows in (3, 5) if free else (3,):
    inputs = sample_ids(specs, model.config, rows=rows)
    expected, actual = lite.run_model(model, inputs), run(**inputs)
    assert set(actual) == set(expected)
    for name, array in actual.items():
      np.testing.assert_allclose(array, expected[name], atol=2e-5, rtol=1e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("which", "weights", "bytes_a_parameter"),
  [("fill_mask", "int8", 1), ("fill_mask", "float32", 4), ("pair", "float16", 2)],
)
def test_shared_weights_are_stored_once_and_answers_stay_near(
  which: str, weights: str, bytes_a_parameter: int
) -> None:
  model = small_model(which, DEEP, stddev=0.1)
  specs = lite.input_specs(
    model, LiteSettings(batch_size=4, max_seq_length=20, max_predictions_per_seq=3)
  )
  content = lite.to_tflite(model, specs, weights=weights)
  buffers = flatbuffer_utils.convert_bytearray_to_object(bytearray(content)).buffers
  stored = sum(len(buffer.data) for buffer in buffers if buffer.data is not None)
  variables = named_variables(model).values()
  vectors = sum(v.shape.num_elements() for v in variables if v.shape.rank == 1)  # Never int8.
  total = sum(v.shape.num_elements() for v in variables)
  assert stored <= 1.08 * bytes_a_parameter * total + 4 * vectors
  for name, parity in lite.measure_parity(model, lite.load_lite(content), specs).items():
    assert parity.cosine > {"float32": 0.999999, "float16": 0.99999, "int8": 0.999}[weights], name
    assert parity.max_difference < {"float32": 1e-5, "float16": 1e-3, "int8": 0.05}[weights], name


@pytest.mark.slow
def test_a_masked_lm_needs_no_pooler_and_no_sentence_head(tmp_path: pathlib.Path) -> None:
  """Checkpoints of TF-Hub and Hugging Face may have none."""
  variables = random_variables(SYNTHETIC, ("masked_lm",))
  kept = {name: value for name, value in variables.items() if "pooler" not in name}
  write_tf1(tmp_path / "a", SYNTHETIC, kept)
  convert_to(tmp_path / "b", tmp_path / "a", "huggingface", allow_unmatched="^bert/pooler/")
  open_model("fill_mask", str(tmp_path / "a"), preprocessor=None)
  model = open_model("fill_mask", str(tmp_path / "b"), preprocessor=None)
  settings = LiteSettings(max_predictions_per_seq=2)
  assert lite.export_lite(model, f"{tmp_path}/b.tflite", settings)["mlm_logits"].cosine > 0.99999


def test_a_file_that_answers_something_else_is_not_written(tmp_path, monkeypatch) -> None:
  encoder = small_model("encoder")
  monkeypatch.setattr(lite, "to_tflite", lambda model, specs, weights: b"")
  monkeypatch.setattr(lite, "load_lite", lambda content: None)
  for parity in (lite.Parity(0.5, 0.1), lite.Parity(float("nan"), float("nan"))):
    monkeypatch.setattr(lite, "measure_parity", lambda *_, parity=parity: {"name": parity})
    with pytest.raises(UserError, match=r"Received: .*Parity\("):
      lite.export_lite(encoder, str(tmp_path / "new/x"), LiteSettings())
  (tmp_path / "x").write_text("mine")
  with pytest.raises(UserError, match=f"Received: {tmp_path}/x,"):
    lite.export_lite(encoder, str(tmp_path / "x"), LiteSettings())
  with pytest.raises(UserError, match=r"max_seq_length=21 in .*, max_position_embeddings=20"):
    lite.export_lite(encoder, str(tmp_path / "y"), LiteSettings(max_seq_length=21))
  assert [path.name for path in tmp_path.iterdir()] == ["x"]
