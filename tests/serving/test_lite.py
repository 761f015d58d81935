"""LiteRT files equal the Python model, hold each weight once, and survive half precision."""

import numpy as np
import pytest
from support.serving.small_models import CONFIG, DEEP, TASKS, ids_model
import tensorflow as tf
from tensorflow.lite.tools import flatbuffer_utils

from albert_tf import AlbertEncoder
from albert_tf.compat import keras
from albert_tf.errors import UserError
from albert_tf.serving.small.ids_model import IdsModel, Sizes, compare
from albert_tf.serving.small.lite import LiteRunner, to_tflite


def python_outputs(model: IdsModel, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  return {name: tensor.numpy() for name, tensor in model(inputs).items()}


@pytest.mark.parametrize("which", [which for which in TASKS if which != "regression"])
def test_every_kind_equals_the_model(which: str) -> None:
  model = ids_model(which)
  free = which == "classifier"
  run = LiteRunner(to_tflite(model, Sizes(None if free else 3, 11, 2)))
  for rows in (3, 5) if free else (3,):
    inputs = model.sample(rows=rows, length=11, predictions=2)
    expected, actual = python_outputs(model, inputs), run(inputs)
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
  model = ids_model(which, DEEP, stddev=0.1)
  content = to_tflite(model, Sizes(4, 20, 3), weights=weights)
  if weights == "float32":
    assert len(content) <= 1.3 * 4 * model.num_parameters
  buffers = flatbuffer_utils.convert_bytearray_to_object(bytearray(content)).buffers
  stored = sum(len(buffer.data) for buffer in buffers if buffer.data is not None)
  vectors = sum(v.shape.num_elements() for v in model.variables.values() if v.shape.rank == 1)  # Never int8.
  assert stored <= 1.08 * bytes_a_parameter * model.num_parameters + 4 * vectors
  inputs = model.sample(rows=4, length=20, predictions=3)
  inputs["input_mask"][1] = 0  # A row of padding alone.
  run = LiteRunner(content)
  for name, parity in compare(python_outputs(model, inputs), run(inputs)).items():
    assert parity.cosine > {"float32": 0.999999, "float16": 0.99999, "int8": 0.999}[weights], name
    assert parity.max_difference < {"float32": 1e-5, "float16": 1e-3, "int8": 0.05}[weights], name


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_a_row_of_padding_has_no_nan_in_half_precision(policy: str) -> None:
  model = AlbertEncoder(CONFIG, dtype=keras.mixed_precision.Policy(policy))
  inputs = ids_model("encoder").sample(rows=3, length=20)
  inputs["input_mask"][1] = 0
  outputs = model({name: tf.constant(array) for name, array in inputs.items()})
  for name in ("pooled_output", "sequence_output"):
    assert outputs[name].dtype == policy.removeprefix("mixed_")
    assert np.isfinite(tf.cast(outputs[name], tf.float32)).all()


def test_a_precision_that_does_not_exist_is_refused() -> None:
  with pytest.raises(UserError, match="weights must be one of float32, float16, int8"):
    to_tflite(ids_model("encoder"), Sizes(1, 8, 1), weights="int4")
