"""ONNX files equal the Python model, hold each weight once, and survive half precision."""

import sys

import numpy as np
import onnx
import pytest
from support.serving.small_models import CONFIG, DEEP, TASKS, ids_model

from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.serving.small.ids_model import IdsModel, Sizes, compare
from albert_tf.serving.small.onnx import convert as serving_onnx
from albert_tf.serving.small.onnx.convert import OnnxRunner, to_onnx


def python_outputs(model: IdsModel, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  return {name: tensor.numpy() for name, tensor in model(inputs).items()}


@pytest.mark.parametrize("which", TASKS)
def test_every_kind_equals_the_model(which: str) -> None:
  model = ids_model(which)
  run = OnnxRunner(to_onnx(model))
  for rows, length, predictions in ((5, 20, 3), (1, 7, 1)):  # Every size is free.
    inputs = model.sample(rows=rows, length=length, predictions=predictions)
    expected, actual = python_outputs(model, inputs), run(inputs)
    assert set(actual) == set(expected)
    for name, array in actual.items():
      assert array.dtype == expected[name].dtype
      np.testing.assert_allclose(array, expected[name], atol=2e-5, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize(
  "changes",
  [
    {"sharing": "none", "hidden_act": "relu"},
    {"sharing": "attention", "hidden_act": "gelu_exact", "num_hidden_layers": 3},
    {"sharing": "ffn", "hidden_act": "tanh", "inner_group_num": 2},
    {"num_hidden_groups": 2, "num_hidden_layers": 4, "hidden_act": "linear"},
    {"embedding_size": 24},  # As wide as the hidden layer: no mapping.
  ],
)
def test_every_configuration_equals_the_model(changes: dict[str, object]) -> None:
  config: AlbertConfig = CONFIG.replace(**changes)
  model = ids_model("fill_mask", config)
  inputs = model.sample(rows=4, length=11, predictions=3)
  parity = compare(python_outputs(model, inputs), OnnxRunner(to_onnx(model))(inputs))["mlm_logits"]
  assert parity.max_difference < 5e-5


@pytest.mark.parametrize(("half", "bytes_a_parameter"), [(False, 4), (True, 2)])
def test_shared_weights_are_stored_once(half: bool, bytes_a_parameter: int) -> None:
  model = ids_model("fill_mask", DEEP)
  content = to_onnx(model, half=half)
  assert len(content) <= 1.1 * bytes_a_parameter * model.num_parameters
  large = [tensor for tensor in onnx.load_from_string(content).graph.initializer if np.prod(tensor.dims) > 1]
  stored = {tensor.name: tuple(tensor.dims) for tensor in large if tensor.name in model.variables}
  assert stored == {name: tuple(variable.shape) for name, variable in model.variables.items()}
  assert sum(int(np.prod(tensor.dims)) for tensor in large) < 1.001 * model.num_parameters


def test_fixed_sizes_are_in_the_file() -> None:
  content = to_onnx(ids_model("fill_mask"), Sizes(2, 8, 3))
  graph = onnx.load_from_string(content).graph
  shapes = {
    value.name: [size.dim_value or size.dim_param for size in value.type.tensor_type.shape.dim]
    for value in (*graph.input, *graph.output)
  }
  assert shapes["input_ids"] == shapes["input_mask"] == shapes["segment_ids"] == [2, 8]
  assert shapes["positions"] == [2, 3]
  assert shapes["mlm_logits"] == [2, 3, CONFIG.vocab_size]


@pytest.mark.parametrize("which", ["encoder", "classifier", "squad2"])
def test_half_precision_is_near_and_has_no_nan_where_a_row_is_all_padding(which: str) -> None:
  model = ids_model(which, stddev=0.1)
  run = OnnxRunner(to_onnx(model, half=True))
  inputs = model.sample(rows=4, length=20)
  inputs["input_mask"][1] = 0
  expected, actual = python_outputs(model, inputs), run(inputs)
  for name, array in actual.items():
    assert not np.isnan(array).any()
    if np.issubdtype(array.dtype, np.floating):
      np.testing.assert_allclose(array, expected[name], atol=0.02, rtol=0.01, err_msg=name)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setitem(sys.modules, "onnx", None)
  with pytest.raises(
    UserError, match=r'the package onnx, which is not installed.*pip install "albert-tf\[onnx\]"'
  ):
    serving_onnx.to_onnx(ids_model("encoder"))
