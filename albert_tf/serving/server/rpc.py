"""The gRPC side: PredictionService and ModelService of `tensorflow-serving-api`."""

from collections.abc import Callable, Mapping
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

from albert_tf.serving.server.json_tensors import merge_context
from albert_tf.serving.server.servable import MAX_ELEMENTS, ApiError, Servable, find_servable

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


def _find(servables: Mapping[str, Servable], spec: Any, *, for_status: bool = False) -> Servable:
  if spec.version_label:
    raise ApiError(f"Version labels are not known here. Received: {spec.version_label}.")
  version = spec.version.value if spec.HasField("version") else None
  return find_servable(servables, spec.name, version, for_status=for_status)


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
  if kind is None:
    raise ApiError("Input is empty.")
  given = getattr(message, kind)
  return merge_context(given.examples, getattr(given, "context", tf.train.Example()))


class PredictionService(prediction_service_pb2_grpc.PredictionServiceServicer):
  """Predict, Classify, Regress and GetModelMetadata."""

  def __init__(self, servables: Mapping[str, Servable]):
    self._servables = servables

  @_answers
  def Predict(self, request: Any) -> Any:  # noqa: N802  The service's names.
    name, servable = request.model_spec.signature_name, _find(self._servables, request.model_spec)
    inputs = {key: to_array(proto, name=key) for key, proto in request.inputs.items()}
    outputs = servable.run(name, inputs, outputs=list(request.output_filter))
    response = predict_pb2.PredictResponse(model_spec=_spec_of(servable, name))
    for key, array in outputs.items():
      dtype = tf.dtypes.as_dtype(servable.signature(name).outputs[key].dtype)
      response.outputs[key].CopyFrom(tf.make_tensor_proto(array, dtype=dtype, shape=array.shape))
    return response

  @_answers
  def Classify(self, request: Any) -> Any:  # noqa: N802
    name, servable = request.model_spec.signature_name, _find(self._servables, request.model_spec)
    response = classification_pb2.ClassificationResponse(model_spec=_spec_of(servable, name))
    for row in servable.classify(name, _examples(request.input)):
      classes = response.result.classifications.add().classes
      for label, score in row:
        classes.add(label=label, score=score)
    return response

  @_answers
  def Regress(self, request: Any) -> Any:  # noqa: N802
    name, servable = request.model_spec.signature_name, _find(self._servables, request.model_spec)
    response = regression_pb2.RegressionResponse(model_spec=_spec_of(servable, name))
    for value in servable.regress(name, _examples(request.input)):
      response.result.regressions.add(value=value)
    return response

  @_answers
  def GetModelMetadata(self, request: Any) -> Any:  # noqa: N802
    if list(request.metadata_field) != ["signature_def"]:
      raise ApiError(f"metadata_field must be signature_def. Received: {list(request.metadata_field)}.")
    servable = _find(self._servables, request.model_spec)
    signatures = get_model_metadata_pb2.SignatureDefMap(signature_def=servable.signatures)
    response = get_model_metadata_pb2.GetModelMetadataResponse(model_spec=_spec_of(servable, ""))
    response.model_spec.ClearField("signature_name")
    response.metadata["signature_def"].Pack(signatures)
    return response


class ModelService(model_service_pb2_grpc.ModelServiceServicer):
  """GetModelStatus; reloading is not offered."""

  def __init__(self, servables: Mapping[str, Servable]):
    self._servables = servables

  @_answers
  def GetModelStatus(self, request: Any) -> Any:  # noqa: N802
    response = get_model_status_pb2.GetModelStatusResponse()
    response.model_version_status.add(
      version=_find(self._servables, request.model_spec, for_status=True).version,
      state=get_model_status_pb2.ModelVersionStatus.AVAILABLE,
    )
    return response


def make_grpc_server(servables: Mapping[str, Servable], *, host: str, port: int) -> tuple[Any, int]:
  """A server that is bound and not yet started, and its port."""
  # A message that is no protocol buffer gets its status from gRPC, which else prints a traceback too.
  logging.getLogger("grpc._common").setLevel(logging.CRITICAL)
  server = grpc.server(futures.ThreadPoolExecutor(max_workers=4), options=_OPTIONS)
  prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(PredictionService(servables), server)
  model_service_pb2_grpc.add_ModelServiceServicer_to_server(ModelService(servables), server)
  address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
  try:
    bound = server.add_insecure_port(address)
  except RuntimeError as error:
    raise OSError(str(error)) from error
  if bound == 0:
    raise OSError(f"{address} cannot be bound")
  return server, bound
