"""Golden calls of exports, by gRPC and by REST: what servers answer is what the Python model gave."""

import base64
import pathlib
from typing import Any

import numpy as np
import pytest
from support.serving.wire import GrpcClient, rest
import tensorflow as tf

from albert_tf.serving.golden import difference, read_golden
from albert_tf.serving.saved_model import CLASSIFY, PREDICT, REGRESS, read_signatures
from albert_tf.serving.warmup import read_warmup

NAMES = ("words", "pairs", "value", "answers")


def golden_cases(path: str, *methods: str) -> list[tuple[Any, Any]]:
  signatures = read_signatures(path)
  calls, answers = read_golden(path)
  cases = zip(calls, answers, strict=True)
  return [case for case in cases if signatures[case[0].signature].method in methods and not case[1].error]


@pytest.mark.parametrize("name", NAMES)
def test_grpc_answers_every_golden_call_and_warm_up_request(served, exports, name: str) -> None:
  client = GrpcClient(served.grpc_address, name)
  cases = golden_cases(exports[name], PREDICT, CLASSIFY, REGRESS)
  assert {call.signature for call, _ in cases} == set(read_signatures(exports[name]))
  for call, answer in cases:  # Predict answers for every method.
    assert difference(client.predict(call.signature, call.inputs), answer.outputs)[0] == ""
  for call in read_warmup(exports[name]):
    assert client.predict(call.signature, call.inputs)
  definitions = client.metadata()
  assert {key: set(definition.inputs) for key, definition in definitions.items()} == {
    key: set(signature.inputs) for key, signature in read_signatures(exports[name]).items()
  }
  assert client.status() == [(int(pathlib.Path(exports[name]).name), "AVAILABLE")]
  client.close()


@pytest.mark.parametrize("name", NAMES)
def test_rest_answers_every_golden_call_in_rows_and_columns(served, exports, name: str) -> None:
  url = f"{served.url}/v1/models/{name}:predict"
  for call, answer in golden_cases(exports[name], PREDICT):
    columns = {key: to_json(array) for key, array in call.inputs.items()}
    if call.num_rows or all(array.ndim == 1 for array in call.inputs.values()):  # [] has one dimension.
      outputs = rest(url, {"signature_name": call.signature, "inputs": columns}).json["outputs"]
      outputs = outputs if len(answer.outputs) > 1 else {next(iter(answer.outputs)): outputs}
      expect_same(outputs, answer.outputs)
    if call.num_rows:
      rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
      given = rest(url, {"signature_name": call.signature, "instances": rows}).json["predictions"]
      for key in answer.outputs:
        column = [row[key] for row in given] if len(answer.outputs) > 1 else given
        expect_same({key: column}, {key: answer.outputs[key]})


@pytest.mark.parametrize(("name", "verb"), [("pairs", "classify"), ("value", "regress")])
def test_classify_and_regress_say_what_the_graph_gives(served, exports, name: str, verb: str) -> None:
  client = GrpcClient(served.grpc_address, name)
  cases = [case for case in golden_cases(exports[name], CLASSIFY, REGRESS) if case[0].num_rows]
  assert cases
  for call, answer in cases:
    examples = call.inputs["inputs"]
    body = {"signature_name": call.signature, "examples": [example_json(example) for example in examples]}
    given = [
      getattr(client, verb)(call.signature, examples),
      rest(f"{served.url}/v1/models/{name}:{verb}", body).json["results"],
    ]
    for rows in given:
      if verb == "regress":
        np.testing.assert_allclose(rows, answer.outputs["outputs"], rtol=1e-5)
      else:
        labels = [[label.encode() for label, _ in row] for row in rows]
        assert labels == answer.outputs["classes"].tolist()
        scores = [[score for _, score in row] for row in rows]
        np.testing.assert_allclose(scores, answer.outputs["scores"], rtol=1e-5)
  client.close()


def to_json(array: np.ndarray) -> Any:
  """Nested lists; strings as base64 objects, which carry any bytes."""
  if array.dtype != object:
    return array.tolist()
  return [{"b64": base64.b64encode(value).decode()} for value in array]


def expect_same(given: dict[str, Any], expected: dict[str, np.ndarray]) -> None:
  for name, array in expected.items():
    if array.dtype == object:
      texts = np.vectorize(bytes.decode, otypes=[object])(array).tolist() if array.size else array.tolist()
      assert given[name] == texts, name
    else:
      np.testing.assert_allclose(np.reshape(given[name], array.shape), array, atol=1e-5, err_msg=name)


def example_json(serialized: bytes) -> dict[str, Any]:
  features = tf.train.Example.FromString(serialized).features.feature
  return {
    name: [{"b64": base64.b64encode(value).decode()} for value in feature.bytes_list.value]
    for name, feature in features.items()
  }
