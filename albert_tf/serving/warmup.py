"""Warm-up requests, which a server answers before it takes a model into use.

They are records of `PredictionLog`. Its few messages are written here in protocol buffers' wire format, so that an
export does not need the package that defines them.
"""

from collections.abc import Iterator, Mapping
import os

import numpy as np
import tensorflow as tf

from albert_tf import files
from albert_tf.records import TFRecordWriter, read_records
from albert_tf.serving.bare_loader import Call
from albert_tf.serving.samples import make_inputs, string_array
from albert_tf.serving.saved_model import CLASSIFY, EXTRA_DIR, PREDICT, REGRESS, read_signatures

WARMUP_NAME = "tf_serving_warmup_requests"
MAX_RECORDS = 1000  # More are refused by servers.
BATCH_SIZES = (1, 8, 32)

# Field numbers of tensorflow_serving/apis: prediction_log.proto, predict.proto, classification.proto, model.proto.
_LOG_OF = {PREDICT: 6, CLASSIFY: 2, REGRESS: 3}
_REQUEST, _MODEL_SPEC, _PAYLOAD = 1, 1, 2
_NAME, _SIGNATURE_NAME = 1, 3
_KEY, _VALUE = 1, 2
_EXAMPLE_LIST, _EXAMPLES = 1, 1


def write_warmup(directory: str, *, model_name: str) -> int:
  """Writes `assets.extra/tf_serving_warmup_requests` of an export.

  Args:
    directory: the SavedModel, already written.
    model_name: under which it is served.

  Returns:
    How many requests: one for each signature and each of `BATCH_SIZES`.
  """
  signatures = read_signatures(directory)
  files.makedirs(os.path.join(directory, EXTRA_DIR))
  with files.atomic_writer(os.path.join(directory, EXTRA_DIR, WARMUP_NAME)) as stream:
    writer = TFRecordWriter(stream)
    for name, signature in signatures.items():
      inputs = make_inputs(signature, signatures)
      for size in BATCH_SIZES:
        batch = {key: array[np.arange(size) % len(array)] for key, array in inputs.items()}
        writer.write(prediction_log(model_name, name, signature.method, batch))
  return writer.num_records


def read_warmup(directory: str) -> list[Call] | None:
  """The recorded requests as calls; None without the package that defines their messages."""
  try:
    from tensorflow_serving.apis import prediction_log_pb2
  except ImportError:
    return None
  path = os.path.join(directory, EXTRA_DIR, WARMUP_NAME)
  calls = []
  for record in read_records(path) if files.exists(path) else ():
    log = prediction_log_pb2.PredictionLog.FromString(record)
    request = getattr(log, log.WhichOneof("log_type")).request
    if hasattr(request, "inputs"):
      inputs = {name: tf.make_ndarray(proto) for name, proto in request.inputs.items()}
    else:
      examples = request.input.example_list.examples
      inputs = {"inputs": string_array([example.SerializeToString() for example in examples])}
    calls.append(Call(request.model_spec.signature_name, inputs))
  return calls


def prediction_log(
  model_name: str, signature_name: str, method: str, inputs: Mapping[str, np.ndarray]
) -> bytes:
  """A serialized `PredictionLog` with a request.

  Args:
    model_name, signature_name: to whom it goes.
    method: a signature's method name. Classify and Regress take `inputs`, serialized tf.Examples.
    inputs: by name.
  """
  spec = _field(_NAME, model_name.encode()) + _field(_SIGNATURE_NAME, signature_name.encode())
  request = _field(_MODEL_SPEC, spec)
  if method == PREDICT:
    request += b"".join(_field(_PAYLOAD, entry) for entry in _tensors(inputs))
  else:
    examples = b"".join(_field(_EXAMPLES, example) for example in inputs["inputs"].tolist())
    request += _field(_PAYLOAD, _field(_EXAMPLE_LIST, examples))
  return _field(_LOG_OF[method], _field(_REQUEST, request))


def _tensors(inputs: Mapping[str, np.ndarray]) -> Iterator[bytes]:
  for name, array in sorted(inputs.items()):
    proto = tf.make_tensor_proto(array, shape=array.shape)
    yield _field(_KEY, name.encode()) + _field(_VALUE, proto.SerializeToString(deterministic=True))


def _field(number: int, payload: bytes) -> bytes:
  """A length-delimited field."""
  return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
  encoded = bytearray()
  while value > 0x7F:
    encoded.append(value & 0x7F | 0x80)
    value >>= 7
  return bytes([*encoded, value])
