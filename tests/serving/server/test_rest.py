"""The local server by REST: what the API promises, and any input that a wire can bring."""

import http.client
import math
import socket
from urllib import parse

import numpy as np
import pytest
from support.serving.wire import GrpcClient, b64, predict, rest, strings

from albert_tf.serving.server.rest import MAX_BODY_BYTES

MASKED = "the sky is [MASK]"


@pytest.fixture(scope="module")
def words(served) -> GrpcClient:
  return GrpcClient(served.grpc_address, "words")


def test_rows_columns_and_base64_say_the_same(served, words: GrpcClient) -> None:
  texts = [MASKED, "small [MASK] sing"]
  rows = predict(served, "words", {"instances": texts}).json["predictions"]
  assert set(rows[0]) == {"words", "probabilities", "num_masks"}
  named = predict(
    served, "words", {"signature_name": "serving_default", "instances": [{"text": t} for t in texts]}
  )
  coded = predict(served, "words", {"instances": [b64(t.encode()) for t in texts]})
  assert named.json["predictions"] == coded.json["predictions"] == rows
  columns = predict(served, "words", {"inputs": {"text": texts}}).json["outputs"]
  assert predict(served, "words", {"inputs": texts}).json["outputs"] == columns
  assert [row["words"] for row in rows] == columns["words"]
  outputs = words.predict("serving_default", {"text": strings(*(t.encode() for t in texts))})
  np.testing.assert_allclose(outputs["probabilities"], columns["probabilities"], rtol=1e-6)
  assert [[w.decode() for w in row] for row in outputs["words"][:, 0]] == [row[0] for row in columns["words"]]


def test_one_output_stands_alone(served) -> None:
  body = {"instances": ["the sky", "the grass"]}
  predictions = predict(served, "value", body).json["predictions"]
  assert [type(value) for value in predictions] == [float, float]
  assert predict(served, "value", {"inputs": ["the sky", "the grass"]}).json["outputs"] == predictions


def test_classify_regress_status_and_metadata(served) -> None:
  example = {"text": "the sky", "text_pair": ["old trees"]}
  body = {"signature_name": "examples", "examples": [example, {**example, "text": b64(b"birds")}]}
  results = rest(f"{served.url}/v1/models/pairs:classify", body).json["results"]
  assert [[label for label, _ in row] for row in results] == [["no", "yes", "both"]] * 2
  assert math.isclose(sum(score for _, score in results[0]), 1.0, rel_tol=1e-5)
  shared = {**body, "context": {"text_pair": "old trees"}, "examples": [{"text": "the sky"}]}
  (scores,) = rest(f"{served.url}/v1/models/pairs:classify", shared).json["results"]
  np.testing.assert_allclose([score for _, score in scores], [score for _, score in results[0]], rtol=1e-5)
  value = {"signature_name": "examples", "examples": [{"text": "the sky"}]}
  alone = predict(served, "value", {"instances": ["the sky"]}).json["predictions"]
  np.testing.assert_allclose(
    rest(f"{served.url}/v1/models/value/versions/3:regress", value).json["results"], alone, rtol=1e-5
  )
  state = rest(f"{served.url}/v1/models/pairs").json["model_version_status"]
  assert [(s["version"], s["state"]) for s in state] == [("3", "AVAILABLE")]
  definition = rest(f"{served.url}/v1/models/pairs/versions/3/metadata").json["metadata"]["signature_def"]
  text = definition["signature_def"]["serving_default"]["inputs"]["text"]
  assert (text["dtype"], text["tensor_shape"]["dim"][0]["size"]) == ("DT_STRING", "-1")
  assert definition["signature_def"]["examples"]["method_name"] == "tensorflow/serving/classify"


ODD = {
  "empty": b"",
  "spaces": b" \t\n ",
  "NUL": b"a\x00[MASK]\x00",
  "invalid UTF-8": b"\xff\xfe [MASK] \xed\xa0\x80 \xf4\x90\x80\x80",
  "emoji": "😀 👩‍👩‍👧‍👦 [MASK] é\u202e".encode(),
  "a megabyte": b"the sky [MASK] " * 70_000,
  "one long word": b"x" * 50_000,  # Of unknown letters: SentencePiece joins them in quadratic time.
}


@pytest.mark.parametrize("name", ODD)
def test_any_text_gets_an_answer(served, words: GrpcClient, name: str) -> None:
  outputs = words.predict("serving_default", {"text": strings(ODD[name], MASKED.encode())})
  assert np.isfinite(outputs["probabilities"]).all()
  reply = predict(served, "words", {"instances": [b64(ODD[name]), MASKED]})
  assert reply.status == 200
  np.testing.assert_array_equal(outputs["num_masks"], [row["num_masks"] for row in reply.json["predictions"]])
  pair = {"text": b64(ODD[name]), "text_pair": b64(ODD[name])}
  reply = predict(served, "pairs", {"instances": [pair]})
  assert math.isclose(sum(reply.json["predictions"][0]["probabilities"]), 1.0, rel_tol=1e-5)
  asked = {"instances": [{"question": pair["text"], "context": pair["text"]}]}
  reply = predict(served, "answers", asked)
  assert reply.status == 200
  assert np.isfinite(reply.json["predictions"][0]["probabilities"]).all()


@pytest.mark.parametrize(
  ("status", "body", "says"),
  [
    (400, b"", "JSON Parse error"),
    (400, b"{", "JSON Parse error"),
    (400, b"[1]", "Is not object"),
    (400, b'{"instances": ["\xff"]}', "byte 16"),
    (400, b'{"instances": ["\\ud800"]}', "surrogate"),
    (400, b'{"instances": ' + b"[" * 100_000, "JSON Parse error"),
    (400, b'{"instances": [' + b"9" * 10_000 + b"]}", "JSON Parse error"),
    (400, {}, "Missing 'inputs' or 'instances'"),
    (400, {"instances": ["a"], "inputs": ["a"]}, "only one of"),
    (400, {"instances": []}, "at least one"),
    (400, {"instances": "text"}, "a list"),
    (400, {"instances": ["a"] * 2000}, "At most"),
    (400, {"inputs": ["a"] * 2000}, "At most"),
    (400, {"instances": [1]}, "not of expected type: string"),
    (400, {"instances": [None]}, "not of expected type: string"),
    (400, {"instances": [{"text": "a", "other": "b"}]}, "must be equal to: text"),
    (400, {"instances": [{"text": "a"}, "b"]}, "a mix"),
    (400, {"instances": [["a"], ["b", "c"]]}, "unexpected size"),
    (400, {"instances": [["a"]]}, "must have shape"),
    (400, {"inputs": "a"}, "must have shape"),
    (400, {"inputs": {"txet": ["a"]}}, "Missing named input: text"),
    (400, {"instances": [{"b64": "?"}]}, "base64"),
    (400, {"signature_name": "no", "instances": ["a"]}, "not found in signature def"),
    (400, {"signature_name": 7, "instances": ["a"]}, "must be a string"),
    (400, {"signature_name": "tokens", "inputs": {"input_ids": [[1.5]]}}, "Missing named input"),
  ],
)
def test_wrong_bodies_are_refused_with_a_reason(served, status: int, body: object, says: str) -> None:
  reply = predict(served, "words", body)
  assert reply.status == status
  assert says in reply.json["error"]


def test_wrong_numbers_and_missing_texts_are_refused(served) -> None:
  ids = {"input_ids": [[2, 5, 3]], "input_mask": [[1, 1, 1]], "segment_ids": [[0, 0, 0]]}
  for name, value, says in [
    ("input_ids", [[2, 1.5, 3]], "expected type: int32"),
    ("input_ids", [[2, 2**31, 3]], "expected type: int32"),
    ("input_ids", [[2, "a", 3]], "expected type: int32"),
    ("input_ids", [[2, True, 3]], "expected type: int32"),
    ("input_ids", [[2, 999_999, 3]], ""),
    ("input_ids", [[2, -1, 3]], ""),
    ("input_mask", [[1, 1]], ""),
    ("input_ids", [2, 5, 3], "must have shape"),
  ]:
    reply = predict(served, "pairs", {"signature_name": "tokens", "inputs": {**ids, name: value}})
    assert reply.status == 400
    assert says in reply.json["error"]
  long = {name: [[1] * 40] for name in ids}
  reply = predict(served, "pairs", {"signature_name": "tokens", "inputs": long})
  assert (reply.status, "must not be longer" in reply.json["error"]) == (400, True)
  reply = predict(served, "pairs", {"instances": [{"text": "a"}]})
  assert (reply.status, "must be equal to: text, text_pair" in reply.json["error"]) == (400, True)
  uneven = {"inputs": {"text": ["a", "b"], "text_pair": ["c"]}}
  assert predict(served, "pairs", uneven).status == 400
  for example in ({"text": "a"}, {"text": 3, "text_pair": "b"}, "a"):
    body = {"signature_name": "examples", "examples": [example]}
    assert rest(f"{served.url}/v1/models/pairs:classify", body).status == 400
  assert predict(served, "words", {"inputs": []}).json["outputs"]["num_masks"] == []


def test_wrong_paths_and_methods(served) -> None:
  for status, path, body in [
    (404, "/v1/models/nobody:predict", {"instances": ["a"]}),
    (404, "/v1/models/words/versions/7:predict", {"instances": ["a"]}),
    (404, "/v1/models/nobody", None),
    (404, "/v1/models/nobody/metadata", None),
    (400, "/v1/models/words:sing", {}),
    (400, "/v1/models", None),
    (400, "/v1/models/words:predict", None),
    (400, "/etc/passwd", None),
    (400, "/../../etc/passwd", None),
    (400, "/v1/models/pairs:regress", {"signature_name": "examples", "examples": [{}]}),
    (400, "/v1/models/pairs:classify", {"examples": [{}]}),
    (400, "/v1/models/pairs:classify", {"signature_name": "examples", "examples": []}),
  ]:
    reply = rest(served.url + path, body)
    assert (reply.status, bool(reply.json["error"])) == (status, True), path


def test_broken_http(served) -> None:
  host = parse.urlsplit(served.url)
  connection = http.client.HTTPConnection(host.hostname, host.port, timeout=60)
  connection.request("POST", "/v1/models/words:predict", b" " * (MAX_BODY_BYTES + 1))
  assert connection.getresponse().status == 413
  connection.close()
  for request, status in [
    (b"POST /v1/models/words:predict HTTP/1.1\r\nHost: localhost\r\n\r\n", b"411"),
    (b"POST /v1/models/words:predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n", b"411"),
    (b"DELETE /v1/models/words HTTP/1.1\r\nHost: localhost\r\n\r\n", b"501"),
    (b"\x16\x03\x01\x00\xff" * 20 + b"\r\n\r\n", b"Bad request"),  # TLS: not HTTP, so no status line.
    (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", b"414"),
  ]:
    with socket.create_connection((host.hostname, host.port), timeout=60) as raw:
      raw.sendall(request)
      assert status in raw.recv(4096)
  with socket.create_connection((host.hostname, host.port)) as raw:  # A client that leaves in the middle.
    raw.sendall(b"POST /v1/models/words:predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
