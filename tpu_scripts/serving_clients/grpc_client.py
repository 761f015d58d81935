"""Asks a served model over gRPC; needs only the package `tensorflow-serving-api`.

Works with TensorFlow Serving and with tpu_scripts/serve_locally.py. Copy it as a start for your own.

Example:
  python grpc_client.py --model albert --input text="The sky is [MASK]."
  python grpc_client.py --model pairs --method classify --signature examples --input text=… --input text_pair=…
  python grpc_client.py --model albert --method metadata
"""

import argparse
import json
import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import grpc
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


def parse_columns(pairs: list[str]) -> dict[str, list[bytes] | list[list[bytes]]]:
  """NAME=VALUE, in order → the values of each name, one a row; bytes stay as they were typed.

  A VALUE that is a JSON list of strings is a row of several, such as choices=["by train", "on foot"].
  """
  columns: dict[str, list] = {}
  for pair in pairs:
    name, equals, value = pair.partition("=")
    if not equals:
      raise SystemExit(f"error: --input must be NAME=VALUE. Received: {pair!r}.")
    columns.setdefault(name, []).append(parse_value(value))
  if len({len(values) for values in columns.values()}) > 1:
    counts = {name: len(values) for name, values in columns.items()}
    raise SystemExit(f"error: every input needs as many values as there are rows. Received: {counts}.")
  return columns


def parse_value(value: str) -> bytes | list[bytes]:
  """Bytes, or the bytes of each string of a JSON list."""
  try:
    strings = json.loads(value) if value.startswith("[") else None
  except ValueError:  # As "[MASK] is …".
    strings = None
  if isinstance(strings, list) and all(isinstance(string, str) for string in strings):
    return [string.encode() for string in strings]
  return os.fsencode(value)


def predict(stub: Any, arguments: argparse.Namespace) -> None:
  """Predict: a tensor in for each input, tensors out."""
  request = predict_pb2.PredictRequest()
  request.model_spec.name = arguments.model
  request.model_spec.signature_name = arguments.signature or "serving_default"
  for name, values in parse_columns(arguments.input).items():
    request.inputs[name].CopyFrom(tf.make_tensor_proto(values, dtype=tf.string))
  response = stub.Predict(request, timeout=arguments.timeout)
  for name in sorted(response.outputs):
    array = tf.make_ndarray(response.outputs[name])
    print(f"{name}: {array.tolist() if array.dtype != object else decode(array.tolist())}")


def decode(value: Any) -> Any:
  """Strings of nested lists as text."""
  return [decode(item) for item in value] if isinstance(value, list) else value.decode("utf-8", "replace")


def fill_examples(request: Any, arguments: argparse.Namespace) -> Any:
  """The examples of a Classify or Regress request: a tf.Example a row."""
  columns = parse_columns(arguments.input)
  request.model_spec.name = arguments.model
  request.model_spec.signature_name = arguments.signature
  for row in zip(*columns.values(), strict=True):
    example = request.input.example_list.examples.add()
    for name, value in zip(columns, row, strict=True):
      values = value if isinstance(value, list) else [value]
      example.features.feature[name].bytes_list.value.extend(values)
  return request


def classify(stub: Any, arguments: argparse.Namespace) -> None:
  """Classify: classes with scores, for each example."""
  request = fill_examples(classification_pb2.ClassificationRequest(), arguments)
  result = stub.Classify(request, timeout=arguments.timeout).result
  for row in result.classifications:
    print(", ".join(f"{one.label} {one.score:.6f}" for one in row.classes))


def regress(stub: Any, arguments: argparse.Namespace) -> None:
  """Regress: a value for each example."""
  request = fill_examples(regression_pb2.RegressionRequest(), arguments)
  result = stub.Regress(request, timeout=arguments.timeout).result
  for row in result.regressions:
    print(f"{row.value:.6f}")


def metadata(stub: Any, arguments: argparse.Namespace) -> None:
  """GetModelMetadata: the signatures."""
  request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
  request.model_spec.name = arguments.model
  response = stub.GetModelMetadata(request, timeout=arguments.timeout)
  signatures = get_model_metadata_pb2.SignatureDefMap()
  response.metadata["signature_def"].Unpack(signatures)
  for name, definition in sorted(signatures.signature_def.items()):
    print(f"{name}: {', '.join(sorted(definition.inputs))} -> {', '.join(sorted(definition.outputs))}")


def status(channel: grpc.Channel, arguments: argparse.Namespace) -> None:
  """GetModelStatus: the loaded versions."""
  request = get_model_status_pb2.GetModelStatusRequest()
  request.model_spec.name = arguments.model
  stub = model_service_pb2_grpc.ModelServiceStub(channel)
  names = get_model_status_pb2.ModelVersionStatus.State.Name
  for version in stub.GetModelStatus(request, timeout=arguments.timeout).model_version_status:
    print(f"version {version.version}: {names(version.state)}")


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--address", default="127.0.0.1:8500", help="of the server")
  parser.add_argument("--model", default="albert", help="its name on the server")
  methods = {"predict": predict, "classify": classify, "regress": regress, "metadata": metadata}
  parser.add_argument("--method", default="predict", choices=[*methods, "status"])
  parser.add_argument("--signature", default="", help="default: serving_default")
  parser.add_argument("--input", action="append", default=[], metavar="NAME=VALUE", help="may be repeated")
  parser.add_argument("--timeout", type=float, default=60.0, help="seconds")
  arguments = parser.parse_args()
  with grpc.insecure_channel(arguments.address) as channel:
    try:
      if arguments.method == "status":
        status(channel, arguments)
      else:
        methods[arguments.method](prediction_service_pb2_grpc.PredictionServiceStub(channel), arguments)
    except grpc.RpcError as error:
      raise SystemExit(f"error: {error.code().name}: {error.details()}") from None


if __name__ == "__main__":
  main()
