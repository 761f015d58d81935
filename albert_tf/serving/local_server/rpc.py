"""The gRPC side: PredictionService and ModelService of `tensorflow-serving-api`."""

from collections.abc import Callable
from concurrent import futures
import functools
import logging
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import (
  classification_pb2,
  get_model_metadata_pb2,
  get_model_status_pb2,
  model_pb2,
  model_service_pb2_grpc,
  predict_pb2,
  prediction_service_pb2_grpc,
  regression_pb2,
)

from albert_tf.serving.local_server.api import Api, ModelSpec, merge_context
from albert_tf.serving.local_server.errors import ApiError
from albert_tf.serving.local_server.servable import MAX_ELEMENTS, Servable

MAX_MESSAGE_BYTES = 64 << 20
_OPTIONS = [
  ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
  ("grpc.max_send_message_length", -1),
  ("grpc.so_reuseport", 0),  # A port in use is an error, not a second server on it.
]


def _answers(method: Callable[..., Any]) -> Callable[..., Any]:
  """Errors become gRPC statuses; nothing a request brings ends the server."""

  @functools.wraps(method)
  def wrapped(self: Any, request: Any, context: grpc.ServicerContext) -> Any:
    try:
      return method(self, request)
    except ApiError as error:
      code, message = error.code, error.message
    except MemoryError:
      code, message = "RESOURCE_EXHAUSTED", "Out of memory. Send smaller batches."
    except Exception as error:
      code, message = "INTERNAL", f"{type(error).__name__}: {error}"
    return context.abort(getattr(grpc.StatusCode, code, grpc.StatusCode.UNKNOWN), message)

  return wrapped


def to_spec(message: Any) -> ModelSpec:
  """From a ModelSpec message."""
  if message.version_label:
    raise ApiError(f"Version labels are not known here. Received: {message.version_label}.")
  version = message.version.value if message.HasField("version") else None
  return ModelSpec(message.name, version, message.signature_name)


def _spec_of(servable: Servable, signature_name: str) -> Any:
  spec = model_pb2.ModelSpec(name=servable.name, signature_name=signature_name or "serving_default")
  spec.version.value = servable.version
  return spec


def to_array(proto: Any, *, name: str) -> np.ndarray:
  """A TensorProto's array; refuses one whose shape asks for more than was sent."""
  dims = [dim.size for dim in proto.tensor_shape.dim]
  count = 1
  for dim in dims:
    if dim < 0:
      raise ApiError(f'Input "{name}" must have a known shape. Received: {dims}.')
    count *= dim
  if proto.tensor_shape.unknown_rank or count > MAX_ELEMENTS:
    raise ApiError(f'Input "{name}" must have at most {MAX_ELEMENTS} elements. Received: shape {dims}.')
  try:
    return tf.make_ndarray(proto)
  except (TypeError, ValueError, LookupError) as error:
    raise ApiError(f'Input "{name}" is not a valid TensorProto: {error}') from error


def _examples(message: Any) -> list[bytes]:
  kind = message.WhichOneof("kind")
  if kind == "example_list":
    return merge_context(message.example_list.examples, None)
  if kind == "example_list_with_context":
    given = message.example_list_with_context
    return merge_context(given.examples, given.context)
  raise ApiError("Input is empty.")


class PredictionService(prediction_service_pb2_grpc.PredictionServiceServicer):
  """Predict, Classify, Regress and GetModelMetadata."""

  def __init__(self, api: Api):
    self._api = api

  @_answers
  def Predict(self, request: Any) -> Any:  # noqa: N802  The service's names.
    spec = to_spec(request.model_spec)
    servable = self._api.servable(spec)
    inputs = {name: to_array(proto, name=name) for name, proto in request.inputs.items()}
    outputs = self._api.predict(spec, inputs, outputs=list(request.output_filter))
    response = predict_pb2.PredictResponse(model_spec=_spec_of(servable, spec.signature_name))
    for name, array in outputs.items():
      dtype = tf.dtypes.as_dtype(servable.signature(spec.signature_name).outputs[name].dtype)
      response.outputs[name].CopyFrom(tf.make_tensor_proto(array, dtype=dtype, shape=array.shape))
    return response

  @_answers
  def Classify(self, request: Any) -> Any:  # noqa: N802
    spec = to_spec(request.model_spec)
    response = classification_pb2.ClassificationResponse(
      model_spec=_spec_of(self._api.servable(spec), spec.signature_name)
    )
    for row in self._api.classify(spec, _examples(request.input)):
      classes = response.result.classifications.add().classes
      for label, score in row:
        classes.add(label=label, score=score)
    return response

  @_answers
  def Regress(self, request: Any) -> Any:  # noqa: N802
    spec = to_spec(request.model_spec)
    response = regression_pb2.RegressionResponse(
      model_spec=_spec_of(self._api.servable(spec), spec.signature_name)
    )
    for value in self._api.regress(spec, _examples(request.input)):
      response.result.regressions.add(value=value)
    return response

  @_answers
  def GetModelMetadata(self, request: Any) -> Any:  # noqa: N802
    if list(request.metadata_field) != ["signature_def"]:
      raise ApiError(f"metadata_field must be signature_def. Received: {list(request.metadata_field)}.")
    servable = self._api.servable(to_spec(request.model_spec))
    signatures = get_model_metadata_pb2.SignatureDefMap()
    for name, definition in servable.signatures.items():
      signatures.signature_def[name].CopyFrom(definition)
    response = get_model_metadata_pb2.GetModelMetadataResponse(model_spec=_spec_of(servable, ""))
    response.model_spec.ClearField("signature_name")
    response.metadata["signature_def"].Pack(signatures)
    return response


class ModelService(model_service_pb2_grpc.ModelServiceServicer):
  """GetModelStatus; reloading is not offered."""

  def __init__(self, api: Api):
    self._api = api

  @_answers
  def GetModelStatus(self, request: Any) -> Any:  # noqa: N802
    response = get_model_status_pb2.GetModelStatusResponse()
    available = get_model_status_pb2.ModelVersionStatus.AVAILABLE
    for servable in self._api.status(to_spec(request.model_spec)):
      response.model_version_status.add(version=servable.version, state=available)
    return response


def make_grpc_server(api: Api, *, host: str, port: int) -> tuple[Any, int]:
  """A server that is bound and not yet started, and its port."""
  # A message that is no protocol buffer gets its status from gRPC, which else prints a traceback too.
  logging.getLogger("grpc._common").setLevel(logging.CRITICAL)
  server = grpc.server(futures.ThreadPoolExecutor(max_workers=4), options=_OPTIONS)
  prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(PredictionService(api), server)
  model_service_pb2_grpc.add_ModelServiceServicer_to_server(ModelService(api), server)
  address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
  try:
    bound = server.add_insecure_port(address)
  except RuntimeError as error:
    raise OSError(str(error)) from error
  if bound == 0:
    raise OSError(f"{address} cannot be bound")
  return server, bound
