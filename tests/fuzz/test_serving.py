"""Requests of any shape and size to the local server, and answers that are parts of their context."""

from collections.abc import Iterator
import contextlib
import copy
import http.client
import json
import tracemalloc
from typing import Any

from fuzz.fuzzing import damaged_json, fuzz
from fuzz.test_tokenizers import ODD
from hypothesis import strategies as st
import numpy as np
import pytest
from serving.conftest import serving
from support.tiny_run import WORDS
import tensorflow as tf

from albert_tf.serving.server import MAX_BODY_BYTES

pytestmark = pytest.mark.slow
TOKENS: dict[str, Any] = {
  "signature_name": "tokens",
  "inputs": {key: [[2, 5]] for key in ("input_ids", "input_mask", "segment_ids")},
}
ROWS = {
  "words": {"text": "the [MASK] sky"},
  "pairs": {"text": "the sky", "text_pair": "is blue"},
  "answers": {"question": "what is blue?", "context": "the sky is blue and green grass grows"},
  "choices": {"question": "the _ is", "context": "the sky is blue", "choices": ["sky", "grass"]},
}


@pytest.fixture(scope="module")
def served(exported) -> Iterator[Any]:
  names = "words=fill_mask pairs=pair answers=squad_1.1 choices=choice"
  with serving(exported, names) as server:
    yield server


# Lists of unequal lengths and depths.
LEAVES = st.sampled_from(["a", 1, None])
RAGGED = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4), max_leaves=20)


@st.composite
def large(draw: st.DrawFn) -> Any:
  """An array of up to three axes, of which one may be long."""
  array = draw(st.sampled_from(["a", 1]))
  for size in draw(st.permutations([draw(st.sampled_from([0, 65, 5000])), 1, 2])):
    array = [array] * size
  return array


@st.composite
def other_arrays(draw: st.DrawFn, body: dict[str, Any]) -> bytes:
  """A request with another array in the place of one input's, of any shape and up to 990 levels more."""
  body = copy.deepcopy(body)
  columns = body["instances"][0] if "instances" in body else body["inputs"]
  columns[draw(st.sampled_from(sorted(columns)))] = "@array"
  levels = draw(st.integers(0, 2) | st.integers(0, 990))
  array = "[" * levels + json.dumps(draw(RAGGED | large())) + "]" * levels
  return json.dumps(body).replace('"@array"', array).encode()


def check_answer(served: Any, name: str, body: bytes) -> None:
  """Sends a `predict` request, which must have an answer, or one sentence of what is wrong with it."""
  connection = http.client.HTTPConnection(*served.server_address[:2], timeout=60)
  with contextlib.closing(connection):
    connection.request("POST", f"/v1/models/{name}:predict", body)
    response = connection.getresponse()
    answer = json.load(response)
  assert ("error" in answer) == (400 <= response.status < 500), answer
  assert response.status < 500, answer


def bodies(name: str) -> st.SearchStrategy[dict[str, Any]]:
  """Good requests for a model."""
  row = ROWS[name]
  columns = {key: [value] * 2 for key, value in row.items()}
  tokens = copy.deepcopy(TOKENS)
  if name == "words":
    tokens |= {"signature_name": "mlm"}
    tokens["inputs"]["positions"] = [[0, 1]]
  if name == "choices":
    tokens["inputs"] = {key: [ids] for key, ids in tokens["inputs"].items()}
  return st.sampled_from([{"instances": [row, copy.deepcopy(row)]}, {"inputs": columns}, tokens])


@pytest.mark.parametrize("name", ROWS)
@fuzz(data=st.data())
def test_request(served: Any, name: str, data: st.DataObject) -> None:
  check_answer(served, name, data.draw(bodies(name).flatmap(damaged_json)))


@pytest.mark.parametrize("name", ROWS)
@fuzz(data=st.data())
def test_shape(served: Any, name: str, data: st.DataObject) -> None:
  check_answer(served, name, data.draw(bodies(name).flatmap(other_arrays)))


# What a body repeats: JSON, parts of it, and what is none.
PIECES = (
  st.sampled_from(["0", "1.5", "[]", "{}", '{"":[]}', '"ab"', '{"b64":""}', "[", '{"":', '"', "\\"])
  | RAGGED.map(json.dumps)
  | st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
)


@st.composite
def large_bodies(draw: st.DrawFn) -> bytes:
  """Requests of up to the allowed size that repeat one piece, as values or in a text."""
  form = draw(st.sampled_from(["instances", "inputs", "signature_name", "more"]))
  opening, closing = draw(st.sampled_from([("[", "]"), ('"', '"'), ('["', '"]'), ("[[", "]]")]))
  start = f'{{"{form}":{opening}'.encode()
  end = f"{closing}}}".encode()
  piece = draw(PIECES).encode()
  separator = draw(st.sampled_from([b",", b""]))
  size = draw(st.sampled_from([1 << 16, 1 << 20, MAX_BODY_BYTES])) - len(start) - len(end)
  copies = size // (len(piece) + len(separator))
  return start + separator.join([piece] * copies) + end


@fuzz(body=large_bodies(), cost=4)
def test_memory(served: Any, body: bytes) -> None:
  """Whatever a request holds, Python takes no more memory for it than for one of the largest."""
  tracemalloc.start()
  try:
    check_answer(served, "words", body)
    _, peak = tracemalloc.get_traced_memory()
  finally:
    tracemalloc.stop()
  assert peak < 10 * MAX_BODY_BYTES


PARTS = st.sampled_from([*ODD, *(f"{word} " for word in WORDS)]) | st.characters()
TEXT = st.lists(PARTS, max_size=60).map("".join)
RAW = st.binary(max_size=40) | TEXT.map(lambda text: text.encode("utf-8", "surrogatepass"))


@fuzz(rows=st.lists(st.tuples(RAW, RAW), min_size=1, max_size=6))
def test_answers(served: Any, rows: list[tuple[bytes, bytes]]) -> None:
  questions, contexts = (np.array(column, object) for column in zip(*rows, strict=True))
  inputs = {"question": questions, "context": contexts}
  out = served.servables["answers"].model.run("serving_default", inputs)
  read = tf.strings.unicode_transcode(contexts, "UTF-8", "UTF-8", errors="replace").numpy()
  rows = zip(read, out["answer"], out["answers"], out["starts"], out["ends"], strict=True)
  for context, answer, answers, starts, ends in rows:
    assert answer == answers[0]
    for text, start, end in zip(answers, starts, ends, strict=True):
      assert 0 <= start <= end <= len(context.decode())
      assert text.decode() == context.decode()[start:end] == text.decode().strip()
