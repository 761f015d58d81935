"""LiteRT files equal the Python model, hold each weight once, and survive half precision."""

import pathlib

import numpy as np
import pytest
from support.serving.small_models import DEEP, TASKS, small_model
from support.synthetic_checkpoint import CONFIG as SYNTHETIC
from support.synthetic_checkpoint import random_variables, write_tf1
from tensorflow.lite.tools import flatbuffer_utils

from albert_tf.checkpoints.convert import convert
from albert_tf.checkpoints.settings import ConvertOptions
from albert_tf.errors import UserError
from albert_tf.keras_api.exports import open_model
from albert_tf.modeling import named_variables
from albert_tf.serving import lite
from albert_tf.serving.export import sample_ids
from albert_tf.serving.lite import (
  Parity,
  export_lite,
  input_specs,
  load_lite,
  measure_parity,
  run_model,
  to_tflite,
)
from albert_tf.serving.settings import LiteSettings


@pytest.mark.parametrize("which", [which for which in TASKS if which != "regression"])
def test_every_kind_equals_the_model(which: str) -> None:
  model = small_model(which)
  free = which == "classifier"
  settings = LiteSettings(
    batch_size=0 if free else 3, max_seq_length=11, max_predictions_per_seq=2, num_choices=2
  )
  specs = input_specs(model, settings)
  run = load_lite(to_tflite(model, specs))
  for rows in (3, 5) if free else (3,):
    inputs = sample_ids(specs, model.config, rows=rows)
    expected, actual = run_model(model, inputs), run(**inputs)
    assert set(actual) == set(expected)
    for name, array in actual.items():
      np.testing.assert_allclose(array, expected[name], atol=2e-5, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize(
  ("which", "weights", "bytes_a_parameter"),
  [
    ("fill_mask", "int8", 1),
    pytest.param("fill_mask", "float32", 4, marks=pytest.mark.slow),
    pytest.param("classifier", "float16", 2, marks=pytest.mark.slow),
  ],
)
def test_shared_weights_are_stored_once_and_answers_stay_near(
  which: str, weights: str, bytes_a_parameter: int
) -> None:
  model = small_model(which, DEEP, stddev=0.1)
  specs = input_specs(
    model, LiteSettings(batch_size=4, max_seq_length=20, max_predictions_per_seq=3)
  )
  content = to_tflite(model, specs, weights=weights)
  buffers = flatbuffer_utils.convert_bytearray_to_object(bytearray(content)).buffers
  stored = sum(len(buffer.data) for buffer in buffers if buffer.data is not None)
  variables = named_variables(model).values()
  vectors = sum(v.shape.num_elements() for v in variables if v.shape.rank == 1)  # Never int8.
  total = sum(v.shape.num_elements() for v in variables)
  assert stored <= 1.08 * bytes_a_parameter * total + 4 * vectors
  for name, parity in measure_parity(model, load_lite(content), specs).items():
    assert parity.cosine > {"float32": 0.999999, "float16": 0.99999, "int8": 0.999}[weights], name
    assert parity.max_difference < {"float32": 1e-5, "float16": 1e-3, "int8": 0.05}[weights], name


def test_a_masked_lm_needs_no_pooler_and_no_sentence_head(tmp_path: pathlib.Path) -> None:
  """Checkpoints of TF-Hub and Hugging Face may have none."""
  variables = random_variables(SYNTHETIC, ("masked_lm",))
  kept = {name: value for name, value in variables.items() if "pooler" not in name}
  options = ConvertOptions(output_format="huggingface", allow_missing="^bert/pooler/")
  convert(write_tf1(tmp_path / "a", SYNTHETIC, kept), str(tmp_path / "b"), options)
  for folder in ("a", "b"):
    model = open_model("fill_mask", str(tmp_path / folder), preprocessor=None)
    found = export_lite(
      model, f"{tmp_path}/{folder}.tflite", settings=LiteSettings(max_predictions_per_seq=2)
    )
    assert found["mlm_logits"].cosine > 0.99999


@pytest.mark.parametrize("parity", [Parity(0.5, 0.1), Parity(float("nan"), float("nan"))])
def test_a_file_that_answers_something_else_is_not_written(
  tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, parity: Parity
) -> None:
  monkeypatch.setattr(lite, "_compare", lambda expected, actual: parity)
  encoder = small_model("encoder")
  with pytest.raises(UserError, match=r"must give the model's outputs.*Nothing was written"):
    export_lite(encoder, str(tmp_path / "new/x"))
  (tmp_path / "x").write_text("mine")
  with pytest.raises(UserError, match="The output must not exist yet"):
    export_lite(encoder, str(tmp_path / "x"))
  with pytest.raises(
    UserError,
    match=r"must not exceed .*max_seq_length=21 in the export, max_position_embeddings=20",
  ):
    export_lite(encoder, str(tmp_path / "y"), settings=LiteSettings(max_seq_length=21))
  assert [path.name for path in tmp_path.iterdir()] == ["x"]
