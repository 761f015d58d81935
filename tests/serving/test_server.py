"""The local server: TensorFlow Serving's REST API, and refused requests."""

import base64
from concurrent import futures
import contextlib
import functools
import http.client
import json
import socket
import threading
import time
import tracemalloc
from urllib import error as urllib_error
from urllib import request as urllib_request

import numpy as np
import pytest
from support.commands.child_processes import start_python
from support.tiny_run import as_bytes

from albert_tf.errors import UserError
from albert_tf.serving import server as server_module
from albert_tf.serving.server import (
  MAX_BATCH_SIZE,
  MAX_BODY_BYTES,
  MAX_CHARACTERS,
  LocalServer,
  foreign,
)


def ask(url, body=None, **headers):
  """Status and JSON of a GET, or of a POST of an object or of bytes."""
  data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
  try:
    with urllib_request.urlopen(urllib_request.Request(url, data, headers), timeout=60) as response:
      return response.status, json.load(response)
  except urllib_error.HTTPError as error:
    with error:
      return error.code, json.load(error)


def predict(served, model, body, **headers):
  return ask(f"{served.url}/v1/models/{model}:predict", body, **headers)


def test_rows_and_columns_are_what_the_model_answers(served, exported):
  texts = {"text": ["the sky", "grass 😀"], "text_pair": ["old trees", ""]}
  inputs = {name: as_bytes(column) for name, column in texts.items()}
  want = exported("pair").session.run("serving_default", inputs)
  status, columns = predict(served, "pairs", {"inputs": texts})
  assert status == 200
  np.testing.assert_allclose(columns["outputs"]["probabilities"], want["probabilities"], atol=1e-6)
  assert columns["outputs"]["label"] == [label.decode() for label in want["label"]]
  rows = [dict(zip(texts, row, strict=True)) for row in zip(*texts.values(), strict=True)]
  _, answer = predict(served, "pairs", {"instances": rows})
  assert [row["label"] for row in answer["predictions"]] == columns["outputs"]["label"]
  assert len(predict(served, "value", {"instances": ["a", "b"]})[1]["predictions"]) == 2
  ids = {name: [[1, 1, 1]] for name in IDS}
  assert predict(served, "pairs", TOKENS | {"inputs": ids})[0] == 200
  of_version = ask(f"{served.url}/v1/models/pairs/versions/3:predict", {"instances": rows})
  assert of_version == (200, answer)


def test_a_client_learns_what_a_model_takes(served):
  _, metadata = ask(f"{served.url}/v1/models/words/metadata")
  signatures = metadata["metadata"]["signature_def"]["signature_def"]
  assert "text" in signatures["serving_default"]["inputs"]
  assert metadata["model_spec"]["version"] == "3"
  assert ask(f"{served.url}/v1/models/words/versions/3/metadata")[1] == metadata


@pytest.mark.parametrize("version", ["", "/versions/3"])
def test_the_address_of_a_model_answers_with_its_status(served, version):
  status, answer = ask(served.model_url("words") + version)
  assert status == 200
  [of_version] = answer["model_version_status"]
  assert of_version["version"] == "3"
  assert of_version["state"] == "AVAILABLE"
  assert of_version["status"] == {"error_code": "OK", "error_message": ""}


def binary(text):
  """A string of a request, as TensorFlow Serving takes bytes."""
  return {"b64": base64.b64encode(text).decode()}


def test_binary_strings_are_the_bytes_themselves(served):
  plain = [{"text": "the sky", "text_pair": "is blue"}, {"text": "é", "text_pair": "b64"}]
  coded = [{name: binary(text.encode()) for name, text in row.items()} for row in plain]
  _, answer = predict(served, "pairs", {"instances": plain})
  assert predict(served, "pairs", {"instances": coded}) == (200, answer)
  # One input needs no name, in rows and in columns, and bytes need not be UTF-8.
  broken = [binary(b"the [MASK] \xff sky")]
  _, replaced = predict(served, "words", {"instances": ["the [MASK] \ufffd sky"]})
  assert predict(served, "words", {"instances": broken})[1] == replaced
  assert predict(served, "words", {"inputs": broken})[0] == 200


IDS = ("input_ids", "input_mask", "segment_ids")
TOKENS = {"signature_name": "tokens"}
LONG_HALF = ["é" * (MAX_CHARACTERS // 2 + 1)]
MANY_POSITIONS = {key: [[1] * 9] for key in IDS} | {"positions": [[1] * 600]}
NESTED = functools.reduce(lambda inner, _: [inner], range(300), "a")  # In 300 lists.


@pytest.mark.parametrize(
  ("path", "body", "status", "words"),
  [
    ("nobody:predict", {"instances": ["a"]}, 404, "Servable not found for request: Latest(nobody)"),
    ("words:predict", b"{", 400, "must be JSON"),
    ("words:predict", [], 400, "`instances` and `inputs`"),
    ("words:predict", {"instances": ["a"], "inputs": ["a"]}, 400, "one of"),
    ("words:predict", {"instances": []}, 400, "at least one row"),
    ("words:predict", {"signature_name": "x", "instances": ["a"]}, 400, "The model has: "),
    ("words:predict", {"instances": [5]}, 400, "text takes strings. Received: 5."),
    ("words:predict", {"instances": ["a", None]}, 400, 'Received: null. For a missing text send "".'),
    ("words:predict", {"inputs": {"text": ["a"], "more": ["b"]}}, 400, "must be named text"),
    ("words:predict", {"instances": ["a"] * (MAX_BATCH_SIZE + 1)}, 400, "smaller batches"),
    ("words:predict", {"inputs": ["a"] * (MAX_BATCH_SIZE + 1)}, 400, "smaller batches"),
    ("pairs:predict", {"inputs": {"text": LONG_HALF, "text_pair": LONG_HALF}}, 400, "Received: 1,048,578"),
    ("words:predict", {"instances": [{"b64": "a?"}]}, 400, "b64 must be base64. Received: 'a?'"),
    ("pairs:predict", TOKENS | {"inputs": {key: {"b64": "AAAA"} for key in IDS}}, 400, "must have the shape"),
    ("words:predict", '{"instances": ["a"]}'.encode("utf-16"), 400, "must be JSON"),
    ("words:predict", {"inputs": {"text": NESTED}}, 400, "text must have the shape (None,)"),
    ("words:predict", {"signature_name": "mlm", "inputs": MANY_POSITIONS}, 400, "max_position_embeddings"),
    ("words/versions/4:predict", {"instances": ["a"]}, 404, "Servable not found for request: Specific(words, 4)"),
    ("words/versions/x:predict", {"instances": ["a"]}, 404, "Nothing answers"),
    ("pairs:predict", {"instances": [{"text": "a"}]}, 400, "text, text_pair"),
    ("pairs:predict", TOKENS | {"inputs": {key: [[2**40]] for key in IDS}}, 400, "int32 values"),
    ("pairs:predict", TOKENS | {"inputs": {key: [[1] * 600] for key in IDS}}, 400, "max_position_embeddings"),
  ],
)  # fmt: skip
def test_a_bad_request_gets_one_sentence(served, path, body, status, words):
  code, answer = ask(f"{served.url}/v1/models/{path}", body)
  assert (code, words in answer["error"]) == (status, True), answer
  assert predict(served, "words", {"instances": ["the [MASK]"]})[0] == 200


def test_other_sites_and_hosts_are_refused(served):
  for headers in (
    {"Host": "evil.example"},
    {"Origin": "http://evil.example"},
    {"Host": "127.0.0.1.evil.example:80"},
  ):
    assert predict(served, "words", {"instances": ["the [MASK]"]}, **headers)[0] == 403
  assert foreign("localhost:8501", "http://localhost:8501") == ""
  assert foreign("[::1]:8501", None) == ""


@pytest.mark.parametrize(
  ("headers", "status"),
  [
    ({"Content-Length": MAX_BODY_BYTES + 1}, 413),
    ({"Content-Length": "9" * 5000}, 413),
    ({"Content-Length": "-1"}, 400),
    ({"Content-Length": "²"}, 400),
    ({"Content-Length": 2, "content-length": 3}, 400),
    ({"Content-Length": 2, "Transfer-Encoding": "chunked"}, 400),
    ({}, 400),
  ],
)
def test_a_body_says_its_length_which_is_bounded(served, headers, status):
  connection = http.client.HTTPConnection(*served.server_address[:2], timeout=30)
  with contextlib.closing(connection):
    connection.putrequest("POST", "/v1/models/words:predict")
    for name, value in headers.items():
      connection.putheader(name, str(value))
    connection.endheaders()
    response = connection.getresponse()
    assert (response.status, response.headers["Connection"]) == (status, "close")


def test_who_sends_too_large_a_body_sees_why(served):
  """The server does not read it, and must not reset the connection while it is sent."""
  status, answer = predict(served, "words", b" " * (4 * MAX_BODY_BYTES))
  assert status == 413
  assert f"{4 * MAX_BODY_BYTES}" in answer["error"]


def test_the_body_of_a_get_is_not_the_next_request(served):
  body = b"GET /nowhere HTTP/1.1\r\n\r\n"
  request = b"GET /models.json HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
  last = b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n"
  with socket.create_connection(served.server_address[:2], timeout=30) as client:
    client.sendall(request + last)
    with client.makefile("rb") as answers:
      statuses = [line.split()[1] for line in answers if line.startswith(b"HTTP/1.1 ")]
  assert statuses == [b"200", b"200"]


@pytest.mark.parametrize("form", ["instances", "inputs"])
@pytest.mark.parametrize("value", ["0", "1.5", '"ab"', "[]", "{}", '{"":[]}', '"%s"'])
def test_a_request_takes_little_more_memory_than_its_body(served, form, value):
  """An attacker's values are short: Python takes up to a hundred bytes for each."""
  copies = MAX_BODY_BYTES // (len(value) + 1) - 10
  if value == '"%s"':
    text = "word " * (MAX_BODY_BYTES // 5 - 10)
    values = f'"{text}😀"'  # For which Python takes four bytes a character.
  else:
    values = ",".join([value] * copies)
  body = f'{{"{form}":[{values}]}}'.encode()
  del values
  tracemalloc.start()
  try:
    status, _ = predict(served, "words", body)
    _, peak = tracemalloc.get_traced_memory()
  finally:
    tracemalloc.stop()
  assert status == 400
  assert peak < 10 * len(body)


def test_an_answer_is_bounded(served, monkeypatch):
  monkeypatch.setattr(server_module, "MAX_ANSWER_VALUES", 40)
  assert predict(served, "words", {"instances": ["[MASK]"]})[0] == 200
  status, answer = predict(served, "words", {"instances": ["[MASK]"] * 2})
  assert status == 400
  assert "Received: a request for 42" in answer["error"]


def test_hundreds_of_connections_wait_for_their_turn(exported):
  """All before the first one is accepted, and with a part of a request that fills no buffer."""
  count = 300
  request = b"GET /models.json HTTP/1.1\r\nConnection: close\r\n\r\n"
  with contextlib.ExitStack() as opened:
    server = opened.enter_context(LocalServer([f"value={exported('value').path}"]))
    clients = []
    for _ in range(count):
      client = socket.create_connection(server.server_address[:2], timeout=30)
      clients.append(opened.enter_context(client))
      client.sendall(request)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    opened.callback(server.shutdown)
    for client in clients:
      assert client.recv(15) == b"HTTP/1.1 200 OK"


def test_slow_clients_neither_hold_others_up_nor_stay(served, monkeypatch):
  """A hundred clients send half of their headers or body and then wait."""
  monkeypatch.setattr(server_module, "READ_SECONDS", 1)
  header = b"GET /models.json HTTP/1.1\r\nHost: local"
  body = b"POST / HTTP/1.1\r\nContent-Length: 999\r\n\r\n{"
  address = served.server_address[:2]
  with contextlib.ExitStack() as opened:
    clients = []
    for part in [header, body] * 50:
      clients.append(opened.enter_context(socket.create_connection(address, timeout=10)))
      clients[-1].sendall(part)
    assert predict(served, "words", {"instances": ["the [MASK]"]})[0] == 200
    for client in clients:
      with contextlib.suppress(ConnectionResetError):
        assert client.recv(1) == b""  # Closed.


def test_a_client_that_sends_a_byte_now_and_then_does_not_stay(served, monkeypatch):
  """The limit is for the whole request, not for the time between two bytes."""
  monkeypatch.setattr(server_module, "READ_SECONDS", 1)
  with socket.create_connection(served.server_address[:2], timeout=0.2) as client:
    client.sendall(b"GET / HTTP/1.1\r\nHost: ")
    ends = time.monotonic() + 10
    with contextlib.suppress(ConnectionError):
      while time.monotonic() < ends:
        client.sendall(b"l")
        with contextlib.suppress(TimeoutError):
          if client.recv(1) == b"":
            break
  assert time.monotonic() < ends


def test_closing_waits_for_answers_and_not_for_idle_clients(exported, monkeypatch):
  started = threading.Event()
  may_answer = threading.Event()
  predict_now = server_module.Servable.predict

  def predict_later(servable, request):
    started.set()
    assert may_answer.wait(30)
    return predict_now(servable, request)

  monkeypatch.setattr(server_module.Servable, "predict", predict_later)
  server = LocalServer([f"value={exported('value').path}"])
  threading.Thread(target=server.serve_forever, daemon=True).start()
  idle = http.client.HTTPConnection(*server.server_address[:2], timeout=30)
  idle.request("GET", "/models.json")
  idle.getresponse().read()
  with contextlib.closing(idle), futures.ThreadPoolExecutor() as pool:
    answer = pool.submit(predict, server, "value", {"instances": ["a text"]})
    assert started.wait(30)
    server.shutdown()
    closed = pool.submit(server.server_close)
    with pytest.raises(TimeoutError):
      closed.result(timeout=0.3)
    may_answer.set()
    closed.result(timeout=10)  # Less than READ_SECONDS.
    assert answer.result(timeout=30)[0] == 200


def test_names_and_ports(served, exported):
  path = exported("value").path
  with pytest.raises(UserError, match="Received: a, a"):
    LocalServer([f"a={path}", f"a={path}"])
  with pytest.raises(UserError, match=r"Received: .*--port"):
    LocalServer([path], port=served.server_address[1])


@pytest.mark.slow
def test_the_command_serves_until_it_is_ended(exported, repository_dir):
  program = str(repository_dir / "tpu_scripts/serve_locally.py")
  with start_python(program, "--port=0", f"--saved_model={exported('value').path}") as process:
    lines = iter(process.stdout.readline, "")
    url = next(line.split()[1] for line in lines if line.startswith("REST"))
    assert ask(url)[0] == 200
    assert ask(f"{url}:predict", {"instances": ["a text"]})[0] == 200
    process.terminate()
    assert process.wait(30) == 0
