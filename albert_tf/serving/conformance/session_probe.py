"""Loads a SavedModel as TensorFlow Serving does, in a process of its own, without this project.

  python -I session_probe.py SAVED_MODEL CALLS ANSWERS

Only the two op libraries of TensorFlow Text that servers link are loaded, by
their path: the Python package `tensorflow_text`, which brings more, is not
imported. Prints one JSON line: versions, and the ops that core TensorFlow has not.
"""

import importlib.util
import json
import os
import sys
from typing import Any

OP_LIBRARIES = ("_sentencepiece_tokenizer.so", "_normalize_ops.so")


def load_beside(name: str) -> Any:
  """The module in the file beside this one; `python -I` does not look there."""
  path = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.py")
  spec = importlib.util.spec_from_file_location(name, path)
  assert spec is not None
  assert spec.loader is not None
  module = importlib.util.module_from_spec(spec)
  sys.modules[name] = module
  spec.loader.exec_module(module)
  return module


def op_library_paths() -> list[str]:
  """The libraries' paths, found without importing their package."""
  spec = importlib.util.find_spec("tensorflow_text")
  if spec is None or not spec.submodule_search_locations:
    raise SystemExit("tensorflow-text must be installed beside this TensorFlow.")
  folder = os.path.join(next(iter(spec.submodule_search_locations)), "python", "ops")
  return [os.path.join(folder, name) for name in OP_LIBRARIES]


def main(saved_model: str, calls_path: str, answers_path: str) -> None:
  """Runs every call in one session."""
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
  import tensorflow as tf
  from tensorflow.python.framework import op_def_registry

  files = load_beside("tensor_file")
  ops = ops_of(saved_model)
  foreign = sorted(op for op in ops if op_def_registry.get(op) is None)
  for path in op_library_paths():
    tf.load_op_library(path)
  graph = tf.Graph()
  with tf.compat.v1.Session(graph=graph) as session:
    meta_graph = tf.compat.v1.saved_model.load(session, ["serve"], saved_model)
    answers = [answer(files, session, meta_graph, call) for call in files.read_calls(calls_path)]
  files.write_answers(answers_path, answers)
  versions = {"tensorflow": tf.__version__, "python": ".".join(map(str, sys.version_info[:3]))}
  modules = sorted(
    name for name, module in sys.modules.items() if module is not None and name.startswith("albert_tf")
  )
  print(json.dumps({**versions, "foreign_ops": foreign, "project_modules": modules}))


def ops_of(saved_model: str) -> set[str]:
  """Every op of the graph and of its functions."""
  from tensorflow.core.protobuf import saved_model_pb2

  with open(os.path.join(saved_model, "saved_model.pb"), "rb") as stream:
    proto = saved_model_pb2.SavedModel.FromString(stream.read())
  ops: set[str] = set()
  for meta_graph in proto.meta_graphs:
    ops |= {node.op for node in meta_graph.graph_def.node}
    names = {function.signature.name for function in meta_graph.graph_def.library.function}
    ops |= {node.op for function in meta_graph.graph_def.library.function for node in function.node_def}
    ops -= names
  return ops


def answer(files: Any, session: Any, meta_graph: Any, call: Any) -> Any:
  """Runs one call; an error of the graph is an answer too."""
  import numpy as np
  import tensorflow as tf

  definition = meta_graph.signature_def[call.signature]
  feeds = {definition.inputs[alias].name: array for alias, array in call.inputs.items()}
  fetches = {alias: definition.outputs[alias].name for alias in call.outputs}
  try:
    outputs = session.run(fetches, feeds)
  except tf.errors.OpError as error:
    return files.Answer({}, int(error.error_code), error.message)
  return files.Answer({alias: np.asarray(array) for alias, array in outputs.items()})


if __name__ == "__main__":
  sys.modules["albert_tf"] = None  # type: ignore[assignment]  # Its import fails, installed or not.
  main(*sys.argv[1:])
