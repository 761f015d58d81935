"""Runs calls of an export in a C program on TensorFlow's C API (`capi_probe.c`), as a program without Python would.

What goes in and out of it, little endian:

  calls:    "ATF1" · u32 count · {str signature · u32 n · {str name · str graph tensor · tensor}
            · u32 m · {str name · str graph tensor}}
  answers:  "ATF2" · u32 count · {i32 status · str message · u32 m · {str name · tensor}}
  tensor:   i32 dtype (TensorFlow's number) · u32 rank · i64 dims… · u64 bytes · data
  str:      u32 length · bytes; a string tensor's data is one str an element
"""

from collections.abc import Sequence
import importlib.util
import io
import os
import pathlib
import shutil
import struct
import subprocess
from typing import IO, Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from albert_tf.serving.bare_loader import OP_LIBRARIES, Answer, Call

COMPILER = os.environ.get("CC") or next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
_SOURCE = pathlib.Path(__file__).with_name("capi_probe.c")
_LIBRARIES = ("libtensorflow_cc.so.2", "libtensorflow_framework.so.2")
_SECONDS = 300


def package_dir(name: str) -> pathlib.Path:
  spec = importlib.util.find_spec(name)
  assert spec is not None
  return pathlib.Path(next(iter(spec.submodule_search_locations)))


def libraries_are_here() -> bool:
  return all((package_dir("tensorflow") / name).exists() for name in _LIBRARIES)


def run_calls(directory: str, calls: Sequence[Call], folder: pathlib.Path) -> list[Answer]:
  """Compiles the program in `folder` against the installed TensorFlow, and runs it on a SavedModel."""
  tensorflow, program = package_dir("tensorflow"), str(folder / "capi_probe")
  command = [
    *[COMPILER, "-O1", "-o", program, str(_SOURCE), f"-I{tensorflow / 'include'}", f"-L{tensorflow}"],
    *[f"-Wl,-rpath,{tensorflow}", *(f"-l:{name}" for name in _LIBRARIES)],
  ]
  subprocess.run(command, check=True, timeout=_SECONDS)
  proto = saved_model_pb2.SavedModel.FromString(pathlib.Path(directory, "saved_model.pb").read_bytes())
  with open(folder / "calls", "wb") as stream:
    write_calls(stream, calls, proto.meta_graphs[0].signature_def)
  ops = [str(package_dir("tensorflow_text") / "python/ops" / name) for name in OP_LIBRARIES]
  environment = {**os.environ, "LD_LIBRARY_PATH": str(tensorflow), "TF_CPP_MIN_LOG_LEVEL": "2"}
  words = [program, directory, str(folder / "calls"), str(folder / "answers"), *ops]
  done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=_SECONDS)
  assert done.returncode == 0, done.stderr
  with open(folder / "answers", "rb") as stream:
    return read_answers(stream)


def write_calls(stream: IO[bytes], calls: Sequence[Call], definitions: Any) -> None:
  stream.write(b"ATF1" + struct.pack("<I", len(calls)))
  for call in calls:
    definition = definitions[call.signature]
    _write_str(stream, call.signature.encode())
    stream.write(struct.pack("<I", len(call.inputs)))
    for name, array in call.inputs.items():
      _write_str(stream, name.encode())
      _write_str(stream, definition.inputs[name].name.encode())
      _write_tensor(stream, array)
    stream.write(struct.pack("<I", len(definition.outputs)))
    for name, info in definition.outputs.items():
      _write_str(stream, name.encode())
      _write_str(stream, info.name.encode())


def read_answers(stream: IO[bytes]) -> list[Answer]:
  assert stream.read(4) == b"ATF2"
  answers = []
  for _ in range(_read(stream, "<I")):
    status, text = _read(stream, "<i"), _read_str(stream).decode()
    outputs = {_read_str(stream).decode(): _read_tensor(stream) for _ in range(_read(stream, "<I"))}
    kind = {3: "InvalidArgumentError"}.get(status, str(status))
    answers.append(Answer(outputs, f"{kind}: {text}" if status else ""))
  return answers


def _read(stream: IO[bytes], layout: str) -> int:
  return struct.unpack(layout, stream.read(struct.calcsize(layout)))[0]


def _write_str(stream: IO[bytes], data: bytes) -> None:
  stream.write(struct.pack("<I", len(data)) + data)


def _read_str(stream: IO[bytes]) -> bytes:
  return stream.read(_read(stream, "<I"))


def _write_tensor(stream: IO[bytes], array: np.ndarray) -> None:
  if array.dtype == object:
    buffer = io.BytesIO()
    for element in array.reshape(-1):
      _write_str(buffer, element)
    dtype, data = tf.string, buffer.getvalue()
  else:
    dtype, data = tf.as_dtype(array.dtype), np.ascontiguousarray(array).tobytes()
  header = (dtype.as_datatype_enum, array.ndim, *array.shape, len(data))
  stream.write(struct.pack(f"<iI{array.ndim}qQ", *header) + data)


def _read_tensor(stream: IO[bytes]) -> np.ndarray:
  dtype, rank = tf.as_dtype(_read(stream, "<i")), _read(stream, "<I")
  shape = [_read(stream, "<q") for _ in range(rank)]
  data = stream.read(_read(stream, "<Q"))
  if dtype != tf.string:
    return np.frombuffer(data, dtype.as_numpy_dtype).reshape(shape)
  array, strings = np.empty(int(np.prod(shape, dtype=np.int64)), object), io.BytesIO(data)
  for i in range(array.size):
    array[i] = _read_str(strings)
  return array.reshape(shape)
