"""The local server by gRPC: wrong requests get a status, and the server goes on."""

import grpc
import numpy as np
import pytest
from support.serving.wire import GrpcClient, strings
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2, types_pb2
from tensorflow_serving.apis import get_model_metadata_pb2, predict_pb2, prediction_service_pb2_grpc


@pytest.fixture(scope="module")
def words(served) -> GrpcClient:
  return GrpcClient(served.grpc_address, "words")


def _refused(send) -> grpc.StatusCode:
  with pytest.raises(grpc.RpcError) as caught:
    send()
  assert caught.value.details()
  return caught.value.code()


def test_wrong_grpc_requests_are_refused(served, words: GrpcClient) -> None:
  invalid = grpc.StatusCode.INVALID_ARGUMENT
  text = {"text": strings(b"a")}
  assert _refused(lambda: words.predict("no", text)) == invalid
  assert _refused(lambda: words.predict("", {})) == invalid
  assert _refused(lambda: words.predict("", {"text": np.zeros(1, np.float32)})) == invalid
  assert _refused(lambda: words.predict("", {"text": np.full([1, 1], b"a", object)})) == invalid
  assert _refused(lambda: words.classify("", strings(tf.train.Example().SerializeToString()))) == invalid
  assert (
    _refused(lambda: GrpcClient(served.grpc_address, "nobody").predict("", text)) == grpc.StatusCode.NOT_FOUND
  )
  pairs = GrpcClient(served.grpc_address, "pairs")
  assert _refused(lambda: pairs.predict("", text)) == invalid  # The pair is missing.
  assert _refused(lambda: pairs.classify("examples", strings())) == invalid
  assert words.predict("", {"text": strings()})["num_masks"].shape == (0,)
  request = predict_pb2.PredictRequest()
  request.model_spec.name = "words"
  request.inputs["text"].CopyFrom(tf.make_tensor_proto([b"a"]))
  request.output_filter.append("no")
  assert _refused(lambda: words.send(request)) == invalid


@pytest.mark.parametrize("dtype", [types_pb2.DT_INT32, types_pb2.DT_STRING, 120])
@pytest.mark.parametrize("dims", [[10**12], [-1], [3], [2**40, 2**40], []])
def test_tensors_that_promise_more_than_they_hold(
  words: GrpcClient, served, dims: list[int], dtype: int
) -> None:
  request = predict_pb2.PredictRequest()
  request.model_spec.name = "words"
  tensor = tensor_pb2.TensorProto(dtype=dtype, tensor_content=b"abc")
  for size in dims:
    tensor.tensor_shape.dim.add(size=size)
  request.inputs["text"].CopyFrom(tensor)
  assert _refused(lambda: words.send(request)) == grpc.StatusCode.INVALID_ARGUMENT


def test_grpc_limits_and_metadata_fields(served, words: GrpcClient) -> None:
  large = {"text": strings(b"x" * (65 << 20))}
  assert _refused(lambda: words.predict("", large)) == grpc.StatusCode.RESOURCE_EXHAUSTED
  with grpc.insecure_channel(served.grpc_address) as channel:
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["no"])
    request.model_spec.name = "words"
    assert _refused(lambda: stub.GetModelMetadata(request)) == grpc.StatusCode.INVALID_ARGUMENT
    assert _refused(lambda: stub.Predict(predict_pb2.PredictRequest())) == grpc.StatusCode.INVALID_ARGUMENT
