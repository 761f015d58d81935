"""Loads a SavedModel as TensorFlow Serving does, in a process of its own, without this project.

  python -I bare_loader.py SAVED_MODEL CALLS ANSWERS

This file stands alone: NumPy and TensorFlow are all it needs. Of TensorFlow Text only the two op libraries that
servers link are loaded, by their path: the Python package, which brings more, is not imported. Prints one JSON line:
versions, the ops of the graph, and which of them core TensorFlow has not.
"""

import base64
from collections.abc import Mapping, Sequence
import importlib.util
import io
import json
import os
import sys
from typing import Any, NamedTuple
import zipfile

import numpy as np

OP_LIBRARIES = ("_sentencepiece_tokenizer.so", "_wordpiece_tokenizer.so")


class Call(NamedTuple):
  """A signature with arrays by input name; strings are object arrays of bytes."""

  signature: str
  inputs: Mapping[str, np.ndarray]

  @property
  def num_rows(self) -> int:
    return len(next(iter(self.inputs.values())))


class Answer(NamedTuple):
  """What a call gave: arrays by output name, or an error, "InvalidArgumentError: …"."""

  outputs: Mapping[str, np.ndarray]
  error: str = ""


def dump_calls(calls: Sequence[Call], answers: Sequence[Answer] = ()) -> bytes:
  """Calls, and answers if they have any, as an .npz file. Strings in it are base64: NumPy's bytes drop NULs."""
  arrays: dict[str, np.ndarray] = {}
  for number, call in enumerate(calls):
    arrays |= {f"{number}/{call.signature}/in/{name}": array for name, array in call.inputs.items()}
    for answer in answers[number : number + 1]:
      arrays |= {f"{number}/{call.signature}/out/{name}": array for name, array in answer.outputs.items()}
      arrays[f"{number}/{call.signature}/error/"] = np.array([answer.error.encode()], object)
  buffer = io.BytesIO()
  with zipfile.ZipFile(buffer, "w") as archive:
    for name, array in arrays.items():
      # `np.savez` would write the time too; so the same calls and answers are the same bytes.
      with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as stream:
        np.lib.format.write_array(stream, _coded(array), allow_pickle=False)
  return buffer.getvalue()


def parse_calls(data: bytes) -> tuple[list[Call], list[Answer]]:
  """What `dump_calls` wrote; no answers where none were given."""
  cases: dict[int, tuple[str, dict[str, Any]]] = {}
  with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
    for key in arrays.files:
      number, signature, part, name = key.split("/", 3)
      _, parts = cases.setdefault(int(number), (signature, {"in": {}, "out": {}, "error": {}}))
      parts[part][name] = _decoded(arrays[key])
  found = [cases[number] for number in sorted(cases)]
  calls = [Call(signature, parts["in"]) for signature, parts in found]
  answers = [
    Answer(parts["out"], parts["error"][""][0].decode("utf-8", "replace"))
    for _, parts in found
    if parts["error"]
  ]
  return calls, answers


def _coded(array: np.ndarray) -> np.ndarray:
  array = np.asarray(array)
  if array.dtype != object:
    return array
  return np.array([base64.b64encode(value) for value in array.reshape(-1)], "S").reshape(array.shape)


def _decoded(array: np.ndarray) -> np.ndarray:
  if array.dtype.kind != "S":
    return array
  strings = np.empty(array.shape, object)
  strings.reshape(-1)[:] = [base64.b64decode(value) for value in array.reshape(-1)]
  return strings


def main(saved_model: str, calls_path: str, answers_path: str) -> None:
  """Runs every call in one session."""
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
  # Keras, which comes with TensorFlow, imports these where they are installed; nothing here needs them.
  sys.modules.update(dict.fromkeys(("matplotlib", "sklearn")))  # type: ignore[arg-type]
  import tensorflow as tf
  from tensorflow.python.framework import op_def_registry

  with open(calls_path, "rb") as stream:
    calls, _ = parse_calls(stream.read())
  ops = ops_of(saved_model)
  foreign = sorted(op for op in ops if op_def_registry.get(op) is None)
  for path in op_library_paths():
    tf.load_op_library(path)
  with tf.compat.v1.Session(graph=tf.Graph()) as session:
    with session.graph.as_default():
      meta_graph = tf.compat.v1.saved_model.load(session, ["serve"], saved_model)
    answers = [answer(session, meta_graph.signature_def[call.signature], call) for call in calls]
  with open(answers_path, "wb") as stream:
    stream.write(dump_calls(calls, answers))
  versions = {"tensorflow": tf.__version__, "python": ".".join(map(str, sys.version_info[:3]))}
  own = sorted(name for name, module in sys.modules.items() if module and name.startswith("albert_tf"))
  print(json.dumps({**versions, "ops": sorted(ops), "foreign_ops": foreign, "project_modules": own}))


def op_library_paths() -> list[str]:
  """The libraries' paths, found without importing their package."""
  spec = importlib.util.find_spec("tensorflow_text")
  if spec is None or not spec.submodule_search_locations:
    raise SystemExit("tensorflow-text must be installed beside this TensorFlow.")
  folder = os.path.join(next(iter(spec.submodule_search_locations)), "python", "ops")
  return [os.path.join(folder, name) for name in OP_LIBRARIES]


def ops_of(saved_model: str) -> set[str]:
  """Every op of the graph and of its functions."""
  from tensorflow.core.protobuf import saved_model_pb2

  with open(os.path.join(saved_model, "saved_model.pb"), "rb") as stream:
    proto = saved_model_pb2.SavedModel.FromString(stream.read())
  ops: set[str] = set()
  for graph in (meta_graph.graph_def for meta_graph in proto.meta_graphs):
    ops |= {node.op for node in graph.node}
    ops |= {node.op for function in graph.library.function for node in function.node_def}
    ops -= {function.signature.name for function in graph.library.function}
  return ops


def answer(session: Any, definition: Any, call: Call) -> Answer:
  """Runs one call; an error of the graph is an answer too."""
  import tensorflow as tf

  feeds = {definition.inputs[name].name: array for name, array in call.inputs.items()}
  fetches = {name: info.name for name, info in definition.outputs.items()}
  try:
    return Answer({name: np.asarray(array) for name, array in session.run(fetches, feeds).items()})
  except tf.errors.OpError as error:
    return Answer({}, f"{type(error).__name__}: {error.message}")


if __name__ == "__main__":
  sys.modules["albert_tf"] = None  # type: ignore[assignment]  # Its import fails, installed or not.
  main(*sys.argv[1:])
