"""Parts of the local server that need no server: JSON, tf.Examples, what is wrong at the start."""

import socket

import numpy as np
import pytest
from reference.serving_requests import b64
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.serving.local_server import LocalServer, ServableFolder, load_servables
from albert_tf.serving.local_server.api import examples_from_json
from albert_tf.serving.local_server.errors import ApiError
from albert_tf.serving.local_server.json_tensors import from_array, parse_json, to_array


def test_numbers_keep_their_value_in_json() -> None:
  info = type(
    "Info", (), {"dtype": tf.float32.as_datatype_enum, "tensor_shape": tf.TensorShape([None]).as_proto()}
  )
  values = [0.2, 1e-30, 16777217, -3, float("nan"), float("inf")]
  array = to_array(values, info, name="x")
  np.testing.assert_array_equal(array, np.array(values, np.float32))
  assert from_array(array)[:4] == [0.2, 1e-30, 16777216.0, -3.0]
  with pytest.raises(ApiError, match="loss of precision"):
    to_array([1e39], info, name="x")
  assert from_array(np.array([b"\xff", b"a"], object), name="x_bytes") == [b64(b"\xff"), b64(b"a")]
  assert parse_json(b'{"a": 1}') == {"a": 1}


def test_examples_from_json() -> None:
  rows = [{"a": ["x", b64(b"\xff")], "b": [1, True], "c": 0.5, "d": []}]
  (data,) = examples_from_json({"examples": rows, "context": {"b": 9, "e": "y"}}, max_rows=1)
  features = tf.train.Example.FromString(data).features.feature
  assert list(features["a"].bytes_list.value) == [b"x", b"\xff"]
  assert list(features["b"].int64_list.value) == [1, 1]
  assert (list(features["c"].float_list.value), list(features["e"].bytes_list.value)) == ([0.5], [b"y"])
  for bad in ({"a": [1, "x"]}, {"a": None}, {"a": 2**63}, {"a": "\ud800"}, [1]):
    with pytest.raises(ApiError):
      examples_from_json({"examples": [bad]}, max_rows=1)


def test_a_server_that_cannot_start_says_why(exports: dict[str, str], tmp_path) -> None:
  with socket.socket() as taken:
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    port = taken.getsockname()[1]
    with pytest.raises(UserError, match="port must be free"):
      LocalServer({}, rest_port=port)
    with pytest.raises(UserError, match="port must be free"):
      LocalServer({}, grpc_port=port)
  folder = ServableFolder.parse(exports["words"])
  assert folder.name == "fill_mask"  # From models.config beside the version.
  with pytest.raises(UserError, match="a name of its own"):
    load_servables([folder, folder])
  with pytest.raises(UserError, match="which is neither"):
    ServableFolder.parse(f"words={tmp_path}")
  with pytest.raises(UserError, match="Write NAME=PATH"):
    ServableFolder.parse(f"a/b={tmp_path}")
  (tmp_path / "1").mkdir()
  (tmp_path / "1/saved_model.pb").write_bytes(b"\xff")
  with pytest.raises(UserError, match="tag `serve`"):
    load_servables([ServableFolder.parse(str(tmp_path))])
