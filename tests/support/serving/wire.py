"""Minimal clients for tests: REST with the standard library, gRPC with the published stubs."""

import base64
from collections.abc import Mapping
import json
from typing import Any, NamedTuple
from urllib import error as urllib_error
from urllib import request as urllib_request

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import (
  classification_pb2,
  get_model_metadata_pb2,
  get_model_status_pb2,
  model_service_pb2_grpc,
  predict_pb2,
  prediction_service_pb2_grpc,
  regression_pb2,
)

_SECONDS = 120


class Reply(NamedTuple):
  """HTTP status and the JSON of the body."""

  status: int
  json: Any


def rest(url: str, body: Any = None) -> Reply:
  """GET, or POST of an object (or of bytes as they are)."""
  data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
  try:
    with urllib_request.urlopen(urllib_request.Request(url, data), timeout=_SECONDS) as response:
      return Reply(response.status, json.load(response))
  except urllib_error.HTTPError as error:
    with error:
      return Reply(error.code, json.load(error))


def b64(data: bytes) -> dict[str, str]:
  return {"b64": base64.b64encode(data).decode()}


def predict(served: Any, model: str, body: object) -> Reply:
  return rest(f"{served.url}/v1/models/{model}:predict", body)


def strings(*values: bytes) -> np.ndarray:
  array = np.empty(len(values), object)
  array[:] = values
  return array


class GrpcClient:
  """Calls one model.

  Args:
    address: host:port.
    model: its name.
  """

  def __init__(self, address: str, model: str):
    self._channel = grpc.insecure_channel(address, [("grpc.max_receive_message_length", -1)])
    self._prediction = prediction_service_pb2_grpc.PredictionServiceStub(self._channel)
    self._models = model_service_pb2_grpc.ModelServiceStub(self._channel)
    self._model = model

  def predict(self, signature: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    request = predict_pb2.PredictRequest()
    request.model_spec.name, request.model_spec.signature_name = self._model, signature
    for name, array in inputs.items():
      dtype = tf.string if array.dtype == object else tf.dtypes.as_dtype(array.dtype)
      request.inputs[name].CopyFrom(tf.make_tensor_proto(array, dtype=dtype, shape=array.shape))
    return self.send(request)

  def send(self, request: Any) -> dict[str, np.ndarray]:
    """A PredictRequest as it is."""
    response = self._prediction.Predict(request, timeout=_SECONDS)
    return {name: tf.make_ndarray(proto) for name, proto in response.outputs.items()}

  def classify(self, signature: str, examples: np.ndarray) -> list[list[tuple[str, float]]]:
    request = classification_pb2.ClassificationRequest()
    result = self._prediction.Classify(self._fill(request, signature, examples), timeout=_SECONDS).result
    return [[(c.label, c.score) for c in row.classes] for row in result.classifications]

  def regress(self, signature: str, examples: np.ndarray) -> list[float]:
    request = regression_pb2.RegressionRequest()
    result = self._prediction.Regress(self._fill(request, signature, examples), timeout=_SECONDS).result
    return [row.value for row in result.regressions]

  def _fill(self, request: Any, signature: str, examples: np.ndarray) -> Any:
    request.model_spec.name, request.model_spec.signature_name = self._model, signature
    request.input.example_list.examples.extend(tf.train.Example.FromString(e) for e in examples)
    return request

  def metadata(self) -> Any:
    """The signatures: a map of SignatureDef by name."""
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = self._model
    response = self._prediction.GetModelMetadata(request, timeout=_SECONDS)
    signatures = get_model_metadata_pb2.SignatureDefMap()
    response.metadata["signature_def"].Unpack(signatures)
    return signatures.signature_def

  def status(self) -> list[tuple[int, str]]:
    """(version, state) of the loaded versions."""
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = self._model
    versions = self._models.GetModelStatus(request, timeout=_SECONDS).model_version_status
    names = get_model_status_pb2.ModelVersionStatus.State.Name
    return [(version.version, names(version.state)) for version in versions]

  def close(self) -> None:
    self._channel.close()
