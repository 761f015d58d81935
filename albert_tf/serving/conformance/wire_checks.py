"""Checks of an export behind a server on loopback that follows TensorFlow Serving's API."""

import base64
from collections.abc import Callable, Mapping, Sequence
import functools
from typing import Any

import grpc
import numpy as np
import tensorflow as tf

from albert_tf.serving.conformance import warmup
from albert_tf.serving.conformance.compare import difference
from albert_tf.serving.conformance.probes import CannotProbe, NotApplicable
from albert_tf.serving.conformance.results import CheckFailed
from albert_tf.serving.conformance.signatures import CLASSIFY, REGRESS, Signature
from albert_tf.serving.conformance.tensor_file import Answer, Call
from albert_tf.serving.conformance.wire import GrpcClient, rest

_SCORES = 1e-6


class WireChecks:
  """The checks that talk to one server.

  Args:
    url: of the REST side.
    address: of the gRPC side.
    model: the model's name there.
    directory: the SavedModel.
    signatures: its signatures.
    calls: sample calls of them.
    answers: what they must give.
  """

  def __init__(
    self,
    *,
    url: str,
    address: str,
    model: str,
    directory: str,
    signatures: Mapping[str, Signature],
    calls: Sequence[Call],
    answers: Sequence[Answer],
  ):
    self._model_url = f"{url}/v1/models/{model}"
    self._client = GrpcClient(address, model)
    self._directory = directory
    self._signatures = signatures
    self._cases = [case for case in zip(calls, answers, strict=True) if not case[1].status]

  def all(self) -> dict[str, Callable[[], str]]:
    """The checks by name, in order."""
    return {
      "warm-up replay": self.warmup,
      "gRPC Predict": self.grpc_predict,
      "gRPC Classify": lambda: self._examples(CLASSIFY),
      "gRPC Regress": lambda: self._examples(REGRESS),
      "gRPC GetModelMetadata": self.grpc_metadata,
      "gRPC errors": self.grpc_errors,
      "REST predict, rows and columns": self.rest_predict,
      "REST classify": lambda: self._rest_examples(CLASSIFY),
      "REST regress": lambda: self._rest_examples(REGRESS),
      "REST metadata and status": self.rest_metadata,
      "REST errors": self.rest_errors,
      "still answers": self.grpc_predict,
    }

  def close(self) -> None:
    self._client.close()

  def warmup(self) -> str:
    logs = warmup.read_warmup(self._directory)
    if not logs:
      raise CannotProbe(f"the export holds no {warmup.EXTRA_DIR}/{warmup.WARMUP_NAME}")
    if len(logs) > warmup.MAX_RECORDS:
      raise CheckFailed(f"{len(logs)} records; servers take {warmup.MAX_RECORDS} at most")

    def on_examples(kind: str, request: Any) -> None:
      examples = np.empty(len(request.input.example_list.examples), object)
      examples[:] = [example.SerializeToString() for example in request.input.example_list.examples]
      getattr(self._client, kind)(request.model_spec.signature_name, examples)

    counts = warmup.replay(logs, self._client.predict, on_examples)
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())

  def grpc_predict(self) -> str:
    for call, answer in self._cases:
      outputs = self._client.predict(call.signature, call.inputs)
      self._expect(call, difference(outputs, answer.outputs))
    return f"{len(self._cases)} calls of {', '.join(self._signatures)}"

  def _expect(self, call: Call, found: str) -> None:
    if found:
      raise CheckFailed(f"{call.signature}: {found}")

  def _cases_of(self, method: str) -> list[tuple[Call, Answer]]:
    cases = [case for case in self._cases if self._signatures[case[0].signature].method == method]
    if not cases:
      raise NotApplicable(f"no signature has the method {method}")
    return [case for case in cases if len(case[0].inputs["inputs"])]

  def _expected(self, answer: Answer, method: str) -> list[Any]:
    if method == REGRESS:
      return [float(value) for value in answer.outputs["outputs"].reshape(-1)]
    rows = zip(answer.outputs["classes"], answer.outputs["scores"], strict=True)
    return [[(c.decode(), float(s)) for c, s in zip(*row, strict=True)] for row in rows]

  def _same_results(self, found: Any, expected: Any) -> None:
    flat_found, flat_expected = np.array(found, object).reshape(-1), np.array(expected, object).reshape(-1)
    if len(flat_found) != len(flat_expected):
      raise CheckFailed(f"{found} instead of {expected}")
    for one, other in zip(flat_found, flat_expected, strict=True):
      same = one == other if isinstance(other, str) else abs(one - other) <= _SCORES * max(1.0, abs(other))
      if not same:
        raise CheckFailed(f"{found} instead of {expected}")

  def _examples(self, method: str) -> str:
    send = self._client.classify if method == CLASSIFY else self._client.regress
    cases = self._cases_of(method)
    for call, answer in cases:
      self._same_results(send(call.signature, call.inputs["inputs"]), self._expected(answer, method))
    return f"signature {cases[0][0].signature}, {len(cases[0][0].inputs['inputs'])} examples"

  def grpc_metadata(self) -> str:
    definitions = self._client.metadata()
    if set(definitions) != set(self._signatures):
      raise CheckFailed(f"signatures {sorted(definitions)} instead of {sorted(self._signatures)}")
    for name, signature in self._signatures.items():
      found = {key: info.dtype for key, info in definitions[name].inputs.items()}
      if found != {key: spec.dtype for key, spec in signature.inputs.items()}:
        raise CheckFailed(f"{name} takes {found}")
    (version, state), *_ = self._client.status()
    if state != "AVAILABLE":
      raise CheckFailed(f"version {version} is {state}")
    return f"{len(definitions)} signatures; GetModelStatus: version {version} {state}"

  def grpc_errors(self) -> str:
    call = self._cases[0][0]
    name, array = next(iter(call.inputs.items()))
    wrong_type = np.zeros(array.shape, np.float64)
    trials: list[tuple[str, str, dict[str, np.ndarray]]] = [
      ("INVALID_ARGUMENT", "no_such_signature", dict(call.inputs)),
      ("INVALID_ARGUMENT", call.signature, {}),
      ("INVALID_ARGUMENT", call.signature, {**call.inputs, "no_such_input": array}),
      ("INVALID_ARGUMENT", call.signature, {**call.inputs, name: wrong_type}),
    ]
    for code, signature, inputs in trials:
      self._expect_code(code, functools.partial(self._client.predict, signature, inputs))
    return f"{len(trials)} wrong requests refused with INVALID_ARGUMENT"

  def _expect_code(self, code: str, send: Callable[[], Any]) -> None:
    try:
      send()
    except grpc.RpcError as error:
      if error.code().name != code or not error.details():
        raise CheckFailed(f"{error.code().name}: {error.details()} instead of {code}") from error
      return
    raise CheckFailed(f"a wrong request was answered instead of refused with {code}")

  def rest_predict(self) -> str:
    # JSON's [] has no second dimension: an empty batch of ids cannot be said in it.
    cases = [
      case for case in self._cases if case[0].num_rows or all(a.ndim == 1 for a in case[0].inputs.values())
    ]
    for call, answer in cases:
      body = {"signature_name": call.signature}
      columns = {name: to_json(array) for name, array in call.inputs.items()}
      reply = rest(f"{self._model_url}:predict", {**body, "inputs": columns})
      self._expect(call, self._json_difference(reply.status, reply.json, "outputs", answer))
      if call.num_rows:
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        reply = rest(f"{self._model_url}:predict", {**body, "instances": rows})
        self._expect(call, self._json_difference(reply.status, reply.json, "predictions", answer))
    return f"{len(cases)} calls; strings as base64"

  def _json_difference(self, status: int, body: Any, key: str, answer: Answer) -> str:
    if status != 200:
      return f"HTTP {status}: {body.get('error')}"
    given = body[key]
    if len(answer.outputs) == 1:
      outputs = {next(iter(answer.outputs)): given}
    elif key == "predictions":
      outputs = {name: [row[name] for row in given] for name in answer.outputs}
    else:
      outputs = given
    return difference(
      {name: from_json(outputs[name], array) for name, array in answer.outputs.items()}, answer.outputs
    )

  def _rest_examples(self, method: str) -> str:
    cases, verb = self._cases_of(method), method.rsplit("/", 1)[-1]
    for call, answer in cases:
      rows = [example_json(example) for example in call.inputs["inputs"]]
      body = {"signature_name": call.signature, "examples": rows}
      reply = rest(f"{self._model_url}:{verb}", body)
      if reply.status != 200:
        raise CheckFailed(f"HTTP {reply.status}: {reply.json.get('error')}")
      self._same_results(reply.json["results"], self._expected(answer, method))
    return f"signature {cases[0][0].signature}"

  def rest_metadata(self) -> str:
    reply = rest(f"{self._model_url}/metadata")
    found = reply.json["metadata"]["signature_def"]["signature_def"]
    if set(found) != set(self._signatures):
      raise CheckFailed(f"signatures {sorted(found)} instead of {sorted(self._signatures)}")
    state = rest(self._model_url).json["model_version_status"][0]
    if state["state"] != "AVAILABLE":
      raise CheckFailed(f"status {state}")
    return f"{len(found)} signatures, version {state['version']} {state['state']}"

  def rest_errors(self) -> str:
    predict = f"{self._model_url}:predict"
    trials: list[tuple[int, str, Any]] = [
      (404, predict.replace(self._model_url, f"{self._model_url}-unknown"), {"instances": [1]}),
      (400, predict, b'{"instances": ['),
      (400, predict, b"\xff\xfe"),
      (400, predict, {"signature_name": "no_such_signature", "instances": [1]}),
      (400, predict, {"instances": []}),
      (400, predict, {"instances": [{"no_such_input": 1}]}),
      (400, predict, {}),
      (400, f"{self._model_url}:no_such_method", {}),
    ]
    for status, url, body in trials:
      reply = rest(url, body)
      if reply.status != status or not reply.json.get("error"):
        raise CheckFailed(f"{body!r} got HTTP {reply.status} {reply.json} instead of {status} with an error")
    return f"{len(trials)} wrong requests refused with a reason"


def to_json(array: np.ndarray) -> Any:
  """Nested lists; strings as base64 objects, which carry any bytes."""
  if array.dtype != object:
    return array.tolist()
  if array.ndim == 1:
    return [{"b64": base64.b64encode(value).decode()} for value in array]
  return [to_json(row) for row in array]


def from_json(value: Any, like: np.ndarray) -> np.ndarray:
  """An array of the type of `like`; an empty one takes its shape too, which JSON does not keep."""
  if like.size == 0:
    return np.empty(like.shape, like.dtype) if not np.array(value, object).size else np.array(value)
  if like.dtype != object:
    return np.array(value, like.dtype)
  flat = np.array(value, object)
  strings = np.empty(flat.shape, object)
  strings.reshape(-1)[:] = [
    base64.b64decode(v["b64"]) if isinstance(v, dict) else v.encode() for v in flat.reshape(-1)
  ]
  return strings


def example_json(serialized: bytes) -> dict[str, Any]:
  """A tf.Example as the REST API takes it."""
  features = tf.train.Example.FromString(serialized).features.feature
  row: dict[str, Any] = {}
  for name, feature in features.items():
    kind = feature.WhichOneof("kind")
    values = list(getattr(feature, kind).value) if kind else []
    if kind == "bytes_list":
      values = [{"b64": base64.b64encode(value).decode()} for value in values]
    row[name] = values
  return row
