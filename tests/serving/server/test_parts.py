"""Parts of the local server that need no server: JSON, tf.Examples, what is wrong at the start."""

from collections.abc import Iterator
import contextlib
import socket
import threading
import time

import numpy as np
import pytest
from support.serving.wire import b64
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.serving.server import LocalServer, ServableFolder, load_servables, rest
from albert_tf.serving.server.json_tensors import examples_from_json, from_array, parse_json, to_array
from albert_tf.serving.server.servable import ApiError, request_rows


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


@pytest.mark.parametrize(
  ("host", "origin", "allowed"),
  [
    ("127.0.0.1:8501", None, True),
    ("[::1]:8501", None, True),
    ("localhost:8501", "http://localhost:8501", True),
    ("models.local", None, True),  # What the server was asked to listen on.
    ("rebound.example:8501", None, False),
    ("127.0.0.1:8501", "https://elsewhere.example", False),
    ("127.0.0.1:8501", "http://127.0.0.1:9000", False),
    ("127.0.0.1:8501", "null", False),  # A sandboxed frame.
    ("[::1", None, False),  # Of no form at all.
    ("127.0.0.1:8501", "http://[::1", False),
  ],
)
def test_requests_of_other_sites_are_refused(host: str, origin: str | None, allowed: bool) -> None:
  assert (rest.foreign(host, origin, "models.local") is None) == allowed


@pytest.fixture
def idle_server() -> Iterator[tuple[str, int]]:
  server = rest.RestServer({}, host="127.0.0.1", port=0)
  threading.Thread(target=server.serve_forever, daemon=True).start()
  yield server.server_address[:2]
  server.shutdown()
  server.server_close()


def test_a_trickling_body_is_left(idle_server: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setattr(rest, "_READ_SECONDS", 0.5)
  with socket.create_connection(idle_server) as client:
    client.sendall(b"POST /v1/models/a:predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n")
    client.settimeout(0.1)
    started = time.monotonic()
    while time.monotonic() - started < 20:
      try:
        client.sendall(b"x")  # Each byte would start a timeout of its own.
        if client.recv(1) == b"":
          break
      except TimeoutError:
        pass
      except OSError:
        break
    assert time.monotonic() - started < 10


def test_connections_are_bounded(idle_server: tuple[str, int]) -> None:
  with contextlib.ExitStack() as stack:
    for _ in range(rest.MAX_CONNECTIONS):
      stack.enter_context(socket.create_connection(idle_server))
    one_more = stack.enter_context(socket.create_connection(idle_server))
    one_more.settimeout(20)
    assert one_more.recv(12) == b"HTTP/1.1 503"


def test_choices_and_positions_are_bounded() -> None:
  assert (
    request_rows("choices", np.zeros((3, 7), object))
    == request_rows("input_ids", np.zeros((3, 7, 5), np.int32))
    == 21
  )
  assert (
    request_rows("words", np.zeros((3, 7), object))
    == request_rows("input_ids", np.zeros((3, 7), np.int32))
    == 3
  )


def test_examples_from_json() -> None:
  rows = [{"a": ["x", b64(b"\xff")], "b": [1, True], "c": 0.5, "d": []}]
  (data,) = examples_from_json({"examples": rows, "context": {"b": 9, "e": "y"}})
  features = tf.train.Example.FromString(data).features.feature
  assert list(features["a"].bytes_list.value) == [b"x", b"\xff"]
  assert list(features["b"].int64_list.value) == [1, 1]
  assert (list(features["c"].float_list.value), list(features["e"].bytes_list.value)) == ([0.5], [b"y"])
  for bad in ({"a": [1, "x"]}, {"a": None}, {"a": 2**63}, {"a": "\ud800"}, [1]):
    with pytest.raises(ApiError):
      examples_from_json({"examples": [bad]})


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
