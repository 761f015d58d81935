"""Requests of any shape to the local server, and answers that are parts of their context."""

import json
import threading
from typing import Any
from urllib import error as urllib_error
from urllib import request as urllib_request

from fuzz.test_tokenizers import ODD
from hypothesis import strategies as st
import numpy as np
import pytest
from support import tiny_run
from support.fuzzing import damaged_json, fuzz
import tensorflow as tf

from albert_tf.configs.task import TaskSpec
from albert_tf.models.exports import export_saved_model
from albert_tf.serving.server import LocalServer
from albert_tf.serving.settings import ExportSettings

pytestmark = pytest.mark.slow
SIZES = {"max_seq_length": 24, "max_query_length": 8, "doc_stride": 6, "max_answer_length": 5}
TASKS = {
  "pairs": TaskSpec(kind="classification", name="t", label_names=("no", "yes"), pair=True, max_seq_length=16),
  "answers": TaskSpec(kind="question_answering", name="q", squad_version="1.1", **SIZES),
  "choice": TaskSpec(kind="multiple_choice", name="c", max_seq_length=24, max_qa_length=10),
  "tags": TaskSpec(kind="token_classification", name="t", label_names=("O", "B-X", "I-X"), max_seq_length=12),
}
ROWS = {
  "pairs": {"text": "the sky", "text_pair": "is blue"},
  "answers": {"question": "what is blue?", "context": "the sky is blue and green grass grows"},
  "choice": {"context": "the sky", "question": "is?", "choices": ["blue", "green"]},
  "tags": {"text": "the sky"},
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Any:
  folder = tmp_path_factory.mktemp("served")
  tokenizer = tiny_run.train_tokenizer(folder)
  config = tiny_run.tiny_model(tokenizer.vocab_size).config
  paths = []
  for name, task in TASKS.items():
    tiny_run.write_fine_tuned_run(folder / name, task, config, tokenizer)
    paths.append(
      export_saved_model(
        model=task.export_kind,
        init_checkpoint=str(folder / name),
        output_dir=str(folder / f"{name}_export"),
        settings=ExportSettings(max_windows=12),
      )
    )
  server = LocalServer([f"{name}={path}" for name, path in zip(TASKS, paths, strict=True)])
  threading.Thread(target=server.serve_forever, daemon=True).start()
  yield server
  server.shutdown()
  server.server_close()


def ask(served: LocalServer, name: str, body: bytes) -> tuple[int, Any]:
  try:
    with urllib_request.urlopen(f"{served.url}/v1/models/{name}:predict", body, timeout=60) as response:
      return response.status, json.load(response)
  except urllib_error.HTTPError as error:
    with error:
      return error.code, json.load(error)


@pytest.mark.parametrize("name", TASKS)
@fuzz(data=st.data(), cost=2)
def test_a_request(served: LocalServer, name: str, data: st.DataObject) -> None:
  row = ROWS[name]
  columns = {key: [value, value] for key, value in row.items()}
  ids = {key: [[2, 5, 3]] for key in ("input_ids", "input_mask", "segment_ids")}
  bodies = [{"instances": [row, row]}, {"inputs": columns}, {"signature_name": "tokens", "inputs": ids}]
  body = data.draw(st.sampled_from(bodies).flatmap(lambda body: damaged_json(json.dumps(body))))
  status, answer = ask(served, name, body)
  assert (status == 200 and "error" not in answer) or (400 <= status < 500 and answer["error"]), (
    status,
    answer,
  )


TEXT = st.lists(
  st.sampled_from([*ODD, *(f"{word} " for word in tiny_run.WORDS)]) | st.characters(), max_size=60
)
RAW = st.binary(max_size=40) | TEXT.map(lambda parts: "".join(parts).encode("utf-8", "surrogatepass"))


@fuzz(rows=st.lists(st.tuples(RAW, RAW), min_size=1, max_size=6), cost=2)
def test_answers_are_parts_of_their_context(served: LocalServer, rows: list[tuple[bytes, bytes]]) -> None:
  questions, contexts = (np.array(column, object) for column in zip(*rows, strict=True))
  out = served.servables["answers"].run("serving_default", {"question": questions, "context": contexts})
  for raw, answer, answers, starts, ends in zip(
    contexts, out["answer"], out["answers"], out["starts"], out["ends"], strict=True
  ):
    context = tf.strings.unicode_transcode(raw, "UTF-8", "UTF-8", errors="replace").numpy().decode()
    assert answer == answers[0]
    for text, start, end in zip(answers, starts, ends, strict=True):
      assert 0 <= start <= end <= len(context)
      assert text.decode() == context[start:end] == text.decode().strip()
