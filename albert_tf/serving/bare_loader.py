"""Loads a SavedModel as TensorFlow Serving does, in a process of its own, without this project.

  python -I bare_loader.py SAVED_MODEL CALLS ANSWERS

This file stands alone: NumPy and TensorFlow are all it needs. Of TensorFlow Text only the op libraries that servers
link are loaded, by their path: the Python package, which brings more, is not imported. Prints one JSON line:
versions, the ops of the graph, and which of them core TensorFlow has not.
"""

from collections.abc import Mapping, Sequence
import importlib.util
import io
import json
import os
import sys
from typing import Any, NamedTuple

import numpy as np

OP_LIBRARIES = ("_sentencepiece_tokenizer.so", "_wordpiece_tokenizer.so")


class Call(NamedTuple):
  """A signature with arrays by input name; strings are object arrays of bytes."""

  signature: str
  inputs: dict[str, np.ndarray]

  @property
  def num_rows(self) -> int:
    return len(next(iter(self.inputs.values())))


class Answer(NamedTuple):
  """What a call gave: arrays by output name, or an error, "InvalidArgumentError: …"."""

  outputs: dict[str, np.ndarray]
  error: str = ""


def dump_calls(calls: Sequence[Call], answers: Sequence[Answer] = ()) -> bytes:
  """Calls, with their answers where they have any: an .npz of serialized tensors.

  Their names are "NUMBER SIGNATURE in NAME", "… out NAME" and, of an answer, "… error ".
  """
  import tensorflow as tf

  tensors: dict[str, Any] = {}
  for number, call in enumerate(calls):
    sides: dict[str, Mapping[str, Any]] = {"in": call.inputs}
    if answers:
      sides |= {"out": answers[number].outputs, "error": {"": answers[number].error}}
    for side, arrays in sides.items():
      for name, array in arrays.items():
        data = tf.io.serialize_tensor(tf.constant(array, shape=np.shape(array))).numpy()
        tensors[f"{number} {call.signature} {side} {name}"] = np.frombuffer(data, np.uint8)
  stream = io.BytesIO()
  np.savez(stream, **tensors)
  return stream.getvalue()


def parse_calls(data: bytes) -> tuple[list[Call], list[Answer]]:
  """What `dump_calls` wrote; no answers where none were given."""
  import tensorflow as tf
  from tensorflow.core.framework import tensor_pb2

  calls: dict[str, Call] = {}
  answers: dict[str, Answer] = {}
  with np.load(io.BytesIO(data)) as tensors:
    for key, content in tensors.items():
      number, signature, side, name = key.split(" ", 3)
      array = tf.make_ndarray(tensor_pb2.TensorProto.FromString(content.tobytes()))
      if side == "in":
        calls.setdefault(number, Call(signature, {})).inputs[name] = array
      elif side == "out":
        answers.setdefault(number, Answer({})).outputs[name] = array
      else:
        outputs = answers[number].outputs if number in answers else {}
        answers[number] = Answer(outputs, array.item().decode("utf-8", "replace"))
  return list(calls.values()), list(answers.values())


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
