"""Reads serialized `tf.train.Example` messages with protobuf, but without TensorFlow."""

import functools
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError
import numpy as np

from albert_tf.errors import UserError

# As tensorflow/core/example/feature.proto has it. A map is repeated entries on the wire.
_SCHEMA = """
name: "albert_tf/example.proto"  package: "albert_tf"  syntax: "proto3"
message_type { name: "BytesList"  field { name: "value" number: 1 type: TYPE_BYTES label: LABEL_REPEATED } }
message_type { name: "FloatList"  field { name: "value" number: 1 type: TYPE_FLOAT label: LABEL_REPEATED } }
message_type { name: "Int64List"  field { name: "value" number: 1 type: TYPE_INT64 label: LABEL_REPEATED } }
message_type { name: "Feature"
  field { name: "bytes_list" number: 1 type: TYPE_MESSAGE type_name: ".albert_tf.BytesList" oneof_index: 0 }
  field { name: "float_list" number: 2 type: TYPE_MESSAGE type_name: ".albert_tf.FloatList" oneof_index: 0 }
  field { name: "int64_list" number: 3 type: TYPE_MESSAGE type_name: ".albert_tf.Int64List" oneof_index: 0 }
  oneof_decl { name: "kind" } }
message_type { name: "Entry"
  field { name: "key" number: 1 type: TYPE_STRING }
  field { name: "value" number: 2 type: TYPE_MESSAGE type_name: ".albert_tf.Feature" } }
message_type { name: "Features"
  field { name: "feature" number: 1 type: TYPE_MESSAGE type_name: ".albert_tf.Entry" label: LABEL_REPEATED } }
message_type { name: "Example"
  field { name: "features" number: 1 type: TYPE_MESSAGE type_name: ".albert_tf.Features" } }
"""
_TYPES: dict[str | None, Any] = {"bytes_list": object, "float_list": np.float32, "int64_list": np.int64}


@functools.cache
def _example_class() -> Any:
  pool = descriptor_pool.DescriptorPool()
  pool.Add(text_format.Parse(_SCHEMA, descriptor_pb2.FileDescriptorProto()))
  return message_factory.GetMessageClass(pool.FindMessageTypeByName("albert_tf.Example"))


def decode_example(data: bytes) -> dict[str, np.ndarray]:
  """The features of a serialized `tf.train.Example`: int64 or float32 [N]; bytes as an object array.

  Raises:
    UserError: `data` is not such a message.
  """
  try:
    example = _example_class().FromString(data)
  except DecodeError as error:
    raise UserError(
      f"A record must be a tf.train.Example. Received: {len(data)} bytes that are not one ({error}). "
      "Is it a file of pretraining records?"
    ) from error
  features = {}
  for entry in example.features.feature:
    kind = entry.value.WhichOneof("kind") or "int64_list"
    features[entry.key] = np.array(getattr(entry.value, kind).value, _TYPES[kind])
  return features
