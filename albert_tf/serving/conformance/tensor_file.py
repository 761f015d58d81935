"""Calls of signatures and their answers in one plain binary file, which a C program reads as easily.

Stands alone: NumPy and the standard library only, so that a process without this
project can load it by its path. Little endian throughout:

  calls:    "ATF1" · u32 count · {str signature · u32 n · {str alias · str tensor_name · tensor}
            · u32 m · {str alias · str tensor_name}}
  answers:  "ATF2" · u32 count · {i32 status · str message · u32 m · {str alias · tensor}}
  tensor:   i32 dtype (TensorFlow's number) · u32 rank · i64 dims… · u64 bytes · data
  str:      u32 length · bytes; a string tensor's data is one str an element
"""

from collections.abc import Mapping, Sequence
import dataclasses
import io
import struct
from typing import IO

import numpy as np

CALLS_MAGIC = b"ATF1"
ANSWERS_MAGIC = b"ATF2"
STRING = 7
NUMPY_TYPES = {1: "<f4", 2: "<f8", 3: "<i4", 4: "u1", 9: "<i8", 10: "?"}
TENSORFLOW_TYPES = {np.dtype(name): number for number, name in NUMPY_TYPES.items()}


@dataclasses.dataclass(frozen=True)
class Call:
  """One call of a signature.

  Args:
    signature: its name.
    inputs: arrays by the signature's name for them; strings as object arrays of bytes.
    tensors: the graph's tensor for each input and output name; a loader that
      knows signatures needs none.
    outputs: names of the outputs wanted.
  """

  signature: str
  inputs: Mapping[str, np.ndarray]
  outputs: Sequence[str] = ()
  tensors: Mapping[str, str] = dataclasses.field(default_factory=dict)

  @property
  def num_rows(self) -> int:
    return len(next(iter(self.inputs.values())))


@dataclasses.dataclass(frozen=True)
class Answer:
  """What a call gave: outputs, or a status other than 0 (TensorFlow's number) with its message."""

  outputs: Mapping[str, np.ndarray]
  status: int = 0
  message: str = ""


def write_calls(path: str, calls: Sequence[Call]) -> None:
  """Writes calls for a probe."""
  with open(path, "wb") as stream:
    dump_calls(stream, calls)


def dump_calls(stream: IO[bytes], calls: Sequence[Call]) -> None:
  """Writes calls to an open file."""
  stream.write(CALLS_MAGIC + struct.pack("<I", len(calls)))
  for call in calls:
    _write_str(stream, call.signature)
    stream.write(struct.pack("<I", len(call.inputs)))
    for alias, array in call.inputs.items():
      _write_str(stream, alias)
      _write_str(stream, call.tensors.get(f"in:{alias}", ""))
      _write_tensor(stream, array)
    stream.write(struct.pack("<I", len(call.outputs)))
    for alias in call.outputs:
      _write_str(stream, alias)
      _write_str(stream, call.tensors.get(f"out:{alias}", ""))


def read_calls(path: str) -> list[Call]:
  """Reads what `write_calls` wrote."""
  with open(path, "rb") as stream:
    calls = []
    for _ in range(_count(stream, CALLS_MAGIC)):
      signature, inputs, outputs, tensors = _read_str(stream), {}, [], {}
      for _ in range(_read(stream, "<I")):
        alias = _read_str(stream)
        tensors[f"in:{alias}"] = _read_str(stream)
        inputs[alias] = _read_tensor(stream)
      for _ in range(_read(stream, "<I")):
        outputs.append(_read_str(stream))
        tensors[f"out:{outputs[-1]}"] = _read_str(stream)
      calls.append(Call(signature, inputs, outputs, tensors))
    return calls


def write_answers(path: str, answers: Sequence[Answer]) -> None:
  """Writes what a probe found."""
  with open(path, "wb") as stream:
    dump_answers(stream, answers)


def dump_answers(stream: IO[bytes], answers: Sequence[Answer]) -> None:
  """Writes answers to an open file."""
  stream.write(ANSWERS_MAGIC + struct.pack("<I", len(answers)))
  for answer in answers:
    stream.write(struct.pack("<i", answer.status))
    _write_str(stream, answer.message)
    stream.write(struct.pack("<I", len(answer.outputs)))
    for alias, array in answer.outputs.items():
      _write_str(stream, alias)
      _write_tensor(stream, array)


def read_answers(path: str) -> list[Answer]:
  """Reads a probe's answers, in the order of its calls."""
  with open(path, "rb") as stream:
    answers = []
    for _ in range(_count(stream, ANSWERS_MAGIC)):
      status, message = _read(stream, "<i"), _read_str(stream)
      names_and_arrays = [(_read_str(stream), _read_tensor(stream)) for _ in range(_read(stream, "<I"))]
      answers.append(Answer(dict(names_and_arrays), status, message))
    return answers


def _count(stream: IO[bytes], magic: bytes) -> int:
  if stream.read(4) != magic:
    raise ValueError(f"The file must begin with {magic!r}.")
  return int(_read(stream, "<I"))


def _read(stream: IO[bytes], layout: str) -> int:
  data = stream.read(struct.calcsize(layout))
  if len(data) < struct.calcsize(layout):
    raise ValueError("the file ends too early")
  return int(struct.unpack(layout, data)[0])


def _write_str(stream: IO[bytes], text: str | bytes) -> None:
  data = text.encode() if isinstance(text, str) else bytes(text)
  stream.write(struct.pack("<I", len(data)) + data)


def _read_str(stream: IO[bytes]) -> str:
  return stream.read(_read(stream, "<I")).decode("utf-8", "replace")


def _write_tensor(stream: IO[bytes], array: np.ndarray) -> None:
  array = np.asarray(array)
  if array.dtype == object:
    buffer = io.BytesIO()
    for element in array.reshape(-1):
      _write_str(buffer, element)
    dtype, data = STRING, buffer.getvalue()
  else:
    dtype, data = TENSORFLOW_TYPES[array.dtype.newbyteorder("<")], np.ascontiguousarray(array).tobytes()
  stream.write(struct.pack(f"<iI{array.ndim}qQ", dtype, array.ndim, *array.shape, len(data)) + data)


def _read_tensor(stream: IO[bytes]) -> np.ndarray:
  dtype, rank = _read(stream, "<i"), _read(stream, "<I")
  shape = [_read(stream, "<q") for _ in range(rank)]
  data = stream.read(_read(stream, "<Q"))
  if dtype != STRING:
    return np.frombuffer(data, NUMPY_TYPES[dtype]).reshape(shape)
  array, strings = np.empty(int(np.prod(shape, dtype=np.int64)), object), io.BytesIO(data)
  for i in range(array.size):
    array[i] = strings.read(_read(strings, "<I"))
  return array.reshape(shape)
