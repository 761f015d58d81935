"""Reads serialized `tf.train.Example` messages without TensorFlow or protobuf, for tools."""

from collections.abc import Iterator

import numpy as np

from albert_tf.errors import UserError
from albert_tf.records.compact import decode_compact, word_bytes_of
from albert_tf.records.features import PretrainingSpec

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # Wire types.


def decode_record(data: bytes, spec: PretrainingSpec) -> dict[str, np.ndarray]:
  """The features of a record of either layout; a compact one has no `token_boundary`, and does not tell its lengths."""
  return dict(decode_compact(data, spec)) if word_bytes_of(data) else decode_example(data)


def decode_example(data: bytes) -> dict[str, np.ndarray]:
  """The features of a serialized `tf.train.Example`: int64 or float32 [N]; bytes as an object array.

  Raises:
    UserError: `data` is not such a message.
  """
  try:
    features: dict[str, np.ndarray] = {}
    for _, body in _fields(data):
      for _, entry in _fields(body):
        parts = dict(_fields(entry))
        features[bytes(parts[1]).decode("utf-8")] = _feature(parts.get(2, b""))
    return features
  except (IndexError, KeyError, TypeError, ValueError) as error:
    raise UserError(
      f"A record must be a tf.train.Example. Received: {len(data)} bytes that are not one ({error!r}). "
      "Is it a file of pretraining records?"
    ) from error


def _varint_at(data: bytes, at: int) -> tuple[int, int]:
  value = shift = 0
  while True:
    byte = data[at]
    at += 1
    value |= (byte & 0x7F) << shift
    if byte < 0x80:
      return value, at
    shift += 7


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
  """(field number, payload) of each field; scalars as their raw bytes."""
  at = 0
  while at < len(data):
    tag, at = _varint_at(data, at)
    wire = tag & 7
    if wire == _BYTES:
      size, at = _varint_at(data, at)
      end = at + size
    elif wire == _VARINT:
      _, end = _varint_at(data, at)
    elif wire in (_FIXED64, _FIXED32):
      end = at + (8 if wire == _FIXED64 else 4)
    else:
      raise ValueError(f"wire type {wire}")
    if end > len(data):
      raise ValueError("cut short")
    yield tag >> 3, data[at:end]
    at = end


def _feature(data: bytes) -> np.ndarray:
  for kind, body in _fields(data):
    payload = b"".join(part for _, part in _fields(body)) if kind != 1 else b""
    if kind == 1:
      return np.array([part for _, part in _fields(body)], object)
    return np.frombuffer(payload, "<f4") if kind == 2 else unpack_varints(payload)
  return np.zeros((0,), np.int64)


def unpack_varints(data: bytes) -> np.ndarray:
  """int64 [N] of packed varints; the inverse of `pack_varints`."""
  groups = np.frombuffer(data, np.uint8).astype(np.uint64)
  if not len(groups):
    return np.zeros((0,), np.int64)
  last = groups < 0x80
  if not last[-1]:
    raise ValueError("a number is cut short")
  begins = np.flatnonzero(np.concatenate([[True], last[:-1]]))
  place = np.arange(len(groups)) - np.repeat(begins, np.diff(np.append(begins, len(groups))))
  return np.add.reduceat((groups & 0x7F) << (7 * place).astype(np.uint64), begins).astype(np.int64)
