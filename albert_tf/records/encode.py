"""Writes `tf.train.Example` messages without TensorFlow or protobuf.

The eight features of a pretraining record have known types and lengths, so NumPy arrays are converted to bytes
directly. This is about 40 times faster than protobuf objects, and gives the bytes of deterministic serialisation.

Wire format: Example{1: Features{1: map entry{1: key, 2: Feature}*}} where
Feature is {2: FloatList{1: packed floats}} or {3: Int64List{1: packed varints}}.
"""

from collections.abc import Mapping
import functools
import itertools

import numpy as np

from albert_tf.records import features as feature_names

_FIELD_1 = b"\x0a"  # Field 1, length-delimited.
_FIELD_2 = b"\x12"
_FLOAT_LIST = b"\x12"  # Feature.float_list is field 2,
_INT64_LIST = b"\x1a"  # Feature.int64_list is field 3.
_FEW = 64  # So few values are joined faster in Python.
_TABLE_BITS = 21  # Larger ids than any vocabulary has.


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


@functools.cache
def _varint_tables(bits: int) -> tuple[np.ndarray, np.ndarray]:
  """For each value below 2**bits its varint in four bytes, and which of the bytes are used; bits <= 21."""
  values = np.arange(1 << bits, dtype=np.uint32)
  groups = np.stack([values >> shift & 0x7F for shift in (0, 7, 14, 21)], axis=1).astype(np.uint8)
  keep = np.stack([values >= limit for limit in (0, 1 << 7, 1 << 14, 1 << 21)], axis=1)
  groups[:, :-1] |= keep[:, 1:].astype(np.uint8) << 7
  return groups.view(np.uint32)[:, 0], keep.view(np.uint32)[:, 0]


def pack_varints(values: np.ndarray) -> bytes:
  """Packed varints of integers [N], 0 <= value < 2**31: seven bits a byte, lowest first."""
  if values.size and values.min() < 0:
    raise ValueError(f"Values must not be negative. Received: {values.min()}.")
  bits = int(values.max(initial=0)).bit_length()
  if len(values) < _FEW or bits > _TABLE_BITS:
    return b"".join(map(_varint, values.tolist()))
  if bits <= 7:
    return values.astype(np.uint8).tobytes()
  words, keep = _varint_tables(bits)
  return words[values].view(np.uint8).compress(keep[values].view(bool)).tobytes()


def pack_varint_rows(values: np.ndarray) -> list[bytes]:
  """`pack_varints` of each row of [N, L]; many rows take little more time than one."""
  packed = pack_varints(values.ravel())
  sizes = np.full(len(values), values.shape[1])
  limit = 1 << 7
  while len(packed) > sizes.sum():
    sizes += np.count_nonzero(values >= limit, axis=1)
    limit <<= 7
  ends = np.cumsum(sizes).tolist()
  return [packed[begin:end] for begin, end in itertools.pairwise([0, *ends])]


def encode_packed(payloads: Mapping[str, bytes]) -> bytes:
  """A serialized Example from the packed bytes of each of `ALL_FEATURES`.

  It is faster than `encode_example` for writers that already have bytes, such as masks of zeros and ones.
  """
  entries = (
    (_entry_prefix(name, len(payloads[name])), payloads[name]) for name in feature_names.ALL_FEATURES
  )
  body = b"".join(itertools.chain.from_iterable(entries))
  return _FIELD_1 + _varint(len(body)) + body


def encode_example(features: Mapping[str, np.ndarray]) -> bytes:
  """A serialized `tf.train.Example` of the eight features of `ALL_FEATURES`, of any lengths."""
  return encode_packed(
    {
      name: values.astype("<f4").tobytes() if name in feature_names.FLOAT_FEATURES else pack_varints(values)
      for name, values in features.items()
    }
  )
