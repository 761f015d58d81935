"""Writes `tf.train.Example` messages without TensorFlow or protobuf.

A pretraining record has eight features of known type and length, so its bytes
can be put together from NumPy arrays directly: about 40 times faster than
filling protobuf objects, and always in the same order. The bytes equal those
of protobuf's deterministic serialisation.

Wire format: Example{1: Features{1: map entry{1: key, 2: Feature}*}} where
Feature is {2: FloatList{1: packed floats}} or {3: Int64List{1: packed varints}}.
"""

from collections.abc import Mapping
import functools

import numpy as np

from albert_tf.records import features as feature_names
from albert_tf.records.features import PretrainingSpec

_FIELD_1 = b"\x0a"  # Field 1, length-delimited.
_FIELD_2 = b"\x12"
_FLOAT_LIST = b"\x12"  # Feature.float_list is field 2,
_INT64_LIST = b"\x1a"  # Feature.int64_list is field 3.


@functools.lru_cache(maxsize=65536)
def _varint(value: int) -> bytes:
  out = bytearray()
  while value > 0x7F:
    out.append(value & 0x7F | 0x80)
    value >>= 7
  out.append(value)
  return bytes(out)


@functools.lru_cache(maxsize=65536)
def _entry_prefix(name: str, payload_size: int) -> bytes:
  """All bytes of a map entry that come before its packed values."""
  packed = _FIELD_1 + _varint(payload_size) if payload_size else b""
  kind = _FLOAT_LIST if name in feature_names.FLOAT_FEATURES else _INT64_LIST
  feature = kind + _varint(len(packed) + payload_size) + packed
  key = name.encode("ascii")
  entry = _FIELD_1 + _varint(len(key)) + key + _FIELD_2 + _varint(len(feature) + payload_size) + feature
  return _FIELD_1 + _varint(len(entry) + payload_size) + entry


def pack_varints(values: np.ndarray) -> bytes:
  """Packed varints of non-negative integers, seven bits a byte, lowest first.

  Args:
    values: [N] integers, 0 <= value < 2**31.

  Raises:
    ValueError: a negative value.
  """
  largest = int(values.max(initial=0))
  if largest < 0x80:
    if values.min(initial=0) < 0:
      raise ValueError(f"Values must not be negative. Received: {values.min()}.")
    return values.astype(np.uint8).tobytes()
  if values.min() < 0:
    raise ValueError(f"Values must not be negative. Received: {values.min()}.")
  width = (largest.bit_length() + 6) // 7
  groups = np.empty((len(values), width), np.uint8)  # [N, bytes]
  keep = np.ones((len(values), width), bool)
  rest = values.astype(np.uint32 if largest < 2**32 else np.uint64)
  for column in range(width):
    groups[:, column] = rest & 0x7F
    rest >>= 7
    if column + 1 < width:
      more = np.not_equal(rest, 0, out=keep[:, column + 1])
      groups[:, column] |= more.view(np.uint8) << 7
  return groups[keep].tobytes()


def encode_packed(payloads: Mapping[str, bytes]) -> bytes:
  """A serialized Example from the packed bytes of each feature.

  Args:
    payloads: for each of `ALL_FEATURES` its packed values. The fast path of
      writers that already hold bytes, such as masks of zeros and ones.
  """
  parts = []
  for name in feature_names.ALL_FEATURES:
    payload = payloads[name]
    parts.append(_entry_prefix(name, len(payload)))
    parts.append(payload)
  body = b"".join(parts)
  return _FIELD_1 + _varint(len(body)) + body


def encode_example(features: Mapping[str, np.ndarray], spec: PretrainingSpec) -> bytes:
  """A serialized `tf.train.Example` of one pretraining instance.

  Args:
    features: the eight features of `ALL_FEATURES`; integer arrays, and floats
      for `masked_lm_weights`, of the lengths that `spec` gives.
    spec: S and P.

  Returns:
    Bytes that `tf.io.parse_example` and `tf.train.Example.FromString` read.

  Raises:
    ValueError: a feature that is missing, unknown or of another length.
  """
  if set(features) != set(feature_names.ALL_FEATURES):
    raise ValueError(
      f"A record has exactly the features {list(feature_names.ALL_FEATURES)}. Received: {sorted(features)}."
    )
  payloads = {}
  for name, values in features.items():
    values = np.asarray(values)
    if values.shape != (spec.length(name),):
      raise ValueError(f"{name} must have shape [{spec.length(name)}]. Received: {list(values.shape)}.")
    if name in feature_names.FLOAT_FEATURES:
      payloads[name] = values.astype("<f4").tobytes()
    else:
      payloads[name] = pack_varints(values)
  return encode_packed(payloads)
