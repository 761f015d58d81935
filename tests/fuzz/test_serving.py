"""Requests of any shape to the local server, and answers that are parts of their context."""

import contextlib
import http.client
import json
from typing import Any

from fuzz.fuzzing import damaged_json, fuzz
from fuzz.test_tokenizers import ODD
from hypothesis import strategies as st
import numpy as np
import pytest
from support.tiny_run import WORDS
import tensorflow as tf

pytestmark = pytest.mark.slow
TOKENS = {
  "signature_name": "tokens",
  "inputs": {key: [[2, 5]] for key in ("input_ids", "input_mask", "segment_ids")},
}
ROWS = {
  "words": {"text": "the [MASK] sky"},
  "pairs": {"text": "the sky", "text_pair": "is blue"},
  "answers": {"question": "what is blue?", "context": "the sky is blue and green grass grows"},
}


@pytest.mark.parametrize("name", ROWS)
@fuzz(data=st.data())
def test_request(served: Any, name: str, data: st.DataObject) -> None:
  row = ROWS[name]
  bodies = [{"instances": [row, row]}, {"inputs": {key: [value] * 2 for key, value in row.items()}}, TOKENS]
  body = data.draw(st.sampled_from(bodies).flatmap(damaged_json))
  connection = http.client.HTTPConnection(*served.server_address[:2], timeout=60)
  with contextlib.closing(connection):
    connection.request("POST", f"/v1/models/{name}:predict", body)
    response = connection.getresponse()
    answer = json.load(response)
  assert ("error" in answer) == (400 <= response.status < 500), answer
  assert response.status < 500, answer


TEXT = st.lists(st.sampled_from([*ODD, *(f"{word} " for word in WORDS)]) | st.characters(), max_size=60)
RAW = st.binary(max_size=40) | TEXT.map(lambda parts: "".join(parts).encode("utf-8", "surrogatepass"))


@fuzz(rows=st.lists(st.tuples(RAW, RAW), min_size=1, max_size=6))
def test_answers(served: Any, rows: list[tuple[bytes, bytes]]) -> None:
  questions, contexts = (np.array(column, object) for column in zip(*rows, strict=True))
  out = served.servables["answers"].run("serving_default", {"question": questions, "context": contexts})
  read = tf.strings.unicode_transcode(contexts, "UTF-8", "UTF-8", errors="replace").numpy()
  rows = zip(read, out["answer"], out["answers"], out["starts"], out["ends"], strict=True)
  for context, answer, answers, starts, ends in rows:
    assert answer == answers[0]
    for text, start, end in zip(answers, starts, ends, strict=True):
      assert 0 <= start <= end <= len(context.decode())
      assert text.decode() == context.decode()[start:end] == text.decode().strip()
