"""Check that an export loads and answers without this project.

`check_saved_model` runs this file in a process of its own: `python -I check.py SAVED_MODEL`. So the top of the file
imports only NumPy and TensorFlow.
"""

from collections.abc import Mapping, Sequence
import json
import os
import subprocess
import sys
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.framework import op_def_registry

# Prefix of a TensorFlow bundle with outputs of the Python model; keys "CALL/SIGNATURE/inputs/NAME", "…/outputs/NAME".
GOLDEN = os.path.join("assets.extra", "golden")
TOLERANCE = 1e-5  # Of |a − b| / max(1, |b|).
# Ops of TensorFlow Text that TensorFlow Serving 2.12–2.19 links and this project needs.
TEXT_OPS = {"SentencepieceOp", "SentencepieceTokenizeOp", "WordpieceTokenizeWithOffsets"}
# Core ops that call Python code of the exporting process.
PYTHON_OPS = {"PyFunc", "PyFuncStateless", "EagerPyFunc", "PyCall"}
ODD_TEXTS = (
  *(
    b"",
    b" ",
    b"\x00",
    b"a\x00b",
    b"\xff\xfe\xf0\x9f",
    b"\xed\xa0\x80",
    b"[CLS] [SEP] [MASK] <pad>",
  ),
  "😀👩‍👩‍👧‍👦 e\u0301\u202e \ufeff".encode(),
)
LONG_TEXTS = (b"word " * 2000,)  # In a call of its own, so that no other text is padded to it.

Arrays = Mapping[str, np.ndarray]


class CheckFailed(Exception):  # noqa: N818  Read as a sentence.
  """An export failed a check; the message says where."""


class Result(NamedTuple):
  """Result of one check."""

  name: str
  passed: bool
  detail: str


class Call(NamedTuple):
  """One recorded call, arrays by name; strings are object arrays of bytes."""

  signature: str
  inputs: dict[str, np.ndarray]
  outputs: dict[str, np.ndarray]


def check_saved_model(path: str, *, pythons: Sequence[str] = ()) -> list[Result]:
  """Checks that an export loads and answers without this project's code.

  Args:
    path: a version directory, or a folder of versions (the highest is taken).
    pythons: further interpreters, with other versions of TensorFlow.

  Returns:
    The results of this interpreter, then of each other one; a single result where the export does not load.
  """
  from albert_tf import files

  results: list[Result] = []
  environment = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2", **os.environ}
  with files.local_copy(find_version(path)) as directory:
    for python in (sys.executable, *pythons):
      program = [python, "-I", os.path.abspath(__file__), os.path.abspath(directory)]
      done = subprocess.run(
        program, capture_output=True, text=True, errors="replace", env=environment
      )
      if done.returncode == 0:
        results += [Result(*each) for each in json.loads(done.stdout.splitlines()[-1])]
      else:
        last = [line.strip() for line in done.stderr.splitlines() if line.strip()][-3:]
        results.append(Result("loads without this project", False, f"{python}: {' | '.join(last)}"))
  return results


def find_version(path: str) -> str:
  """The SavedModel at `path`, or the highest version in it."""
  from albert_tf import errors, files

  path = files.abspath(path)
  if files.exists(os.path.join(path, "saved_model.pb")):
    return path
  versions = [
    name for name in files.listdir(path) if name.isdigit() and files.isdir(os.path.join(path, name))
  ]
  if not versions:
    raise errors.UserError(
      f"A SavedModel or a folder of numbered versions is needed. Received: {path}, which is neither. "
      "Make one with tpu_scripts/export_saved_model.py."
    )
  return os.path.join(path, max(versions, key=int))


class LoadedModel:
  """A SavedModel in a Session, as TensorFlow Serving loads it; `signatures` are its SignatureDefs by name."""

  def __init__(self, directory: str):
    import tensorflow_text  # noqa: F401  Registers its ops, as servers link them.

    self.directory = directory
    self._session = tf.compat.v1.Session(graph=tf.Graph())
    with self._session.graph.as_default():
      graph = tf.compat.v1.saved_model.load(self._session, ["serve"], directory)
    self.signatures = {
      k: v for k, v in sorted(graph.signature_def.items()) if not k.startswith("__")
    }

  def run(self, signature: str, inputs: Arrays) -> dict[str, np.ndarray]:
    """The outputs by name."""
    definition = self.signatures[signature]
    fetches = {name: info.name for name, info in definition.outputs.items()}
    feeds = {definition.inputs[name].name: array for name, array in inputs.items()}
    return dict(self._session.run(fetches, feeds))


class Export(LoadedModel):
  """The SavedModel under check."""

  def __init__(self, directory: str):
    self.ops = ops_of(directory)
    self.foreign_ops = {
      op for op in self.ops if op_def_registry.get(op) is None
    }  # Not of core TensorFlow.
    super().__init__(directory)
    self.golden = read_golden(directory)  # The Python model's answers.

  def run(self, signature: str, inputs: Arrays) -> dict[str, np.ndarray]:
    """The outputs by name; raises `CheckFailed` for errors and non-finite outputs."""
    try:
      outputs = super().run(signature, inputs)
    except tf.errors.OpError as error:
      raise CheckFailed(f"{signature}: {error.message}") from error
    for name, array in outputs.items():
      if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise CheckFailed(f"{signature}: {name} holds values that are not finite")
    return outputs


def ops_of(directory: str) -> set[str]:
  """Every op of a SavedModel's graph and of its functions."""
  with open(os.path.join(directory, "saved_model.pb"), "rb") as stream:
    proto = saved_model_pb2.SavedModel.FromString(stream.read())
  ops: set[str] = set()
  for graph in (meta_graph.graph_def for meta_graph in proto.meta_graphs):
    ops |= {node.op for node in graph.node}
    ops |= {node.op for function in graph.library.function for node in function.node_def}
    ops -= {function.signature.name for function in graph.library.function}
  return ops


def read_golden(directory: str) -> list[Call]:
  """The recorded calls; empty without a record."""
  prefix = os.path.join(directory, GOLDEN)
  calls: dict[str, Call] = {}
  if os.path.exists(prefix + ".index"):
    reader = tf.train.load_checkpoint(prefix)
    for key in sorted(reader.get_variable_to_shape_map()):
      number, signature, side, name = key.split("/")
      call = calls.setdefault(f"{number} {signature}", Call(signature, {}, {}))
      getattr(call, side)[name] = np.asarray(reader.get_tensor(key))
  return list(calls.values())


def check_layout(export: Export) -> str:
  """Checks for a numbered directory, a default signature and a free batch dimension."""
  base = os.path.basename(export.directory)
  if not base.isdigit():
    raise CheckFailed(f"servers need a number as the name of the directory. Received: {base!r}")
  if "serving_default" not in export.signatures:
    raise CheckFailed(f"there is no signature serving_default, only {', '.join(export.signatures)}")
  for name, definition in export.signatures.items():
    if any(spec.tensor_shape.dim[0].size != -1 for spec in definition.inputs.values()):
      raise CheckFailed(f"the batch dimension is not free in {name}")
  return f"version {base}: {', '.join(export.signatures)}"


def check_ops(export: Export) -> str:
  """Checks that the ops are core ops, or ops of TensorFlow Text that servers link."""
  if PYTHON_OPS & export.ops:
    raise CheckFailed(f"ops that need the Python process that made them: {PYTHON_OPS & export.ops}")
  if export.foreign_ops - TEXT_OPS:
    raise CheckFailed(f"ops that TensorFlow Serving does not link: {export.foreign_ops - TEXT_OPS}")
  return f"{len(export.ops)} kinds of op; of TensorFlow Text: {', '.join(sorted(export.foreign_ops)) or 'none'}"


def check_golden(export: Export) -> str:
  """Checks that the outputs equal the recorded outputs of the Python model."""
  if not export.golden:
    raise CheckFailed("the export holds no golden outputs")
  differences = [
    largest_difference(call.signature, export.run(call.signature, call.inputs), call.outputs)
    for call in export.golden
  ]
  return f"{len(differences)} calls, largest difference {max(differences):.1e}, TensorFlow {tf.__version__}"


def largest_difference(where: str, outputs: Arrays, expected: Arrays) -> float:
  """max |a − b| / max(1, |b|) of the floats; raises `CheckFailed` where something differs."""
  if set(outputs) != set(expected):
    raise CheckFailed(f"{where}: outputs {sorted(outputs)} instead of {sorted(expected)}")
  largest = 0.0
  for name, array in outputs.items():
    wanted = expected[name]
    if (array.shape, array.dtype.kind) != (wanted.shape, wanted.dtype.kind):
      raise CheckFailed(
        f"{where}: {name} is {array.dtype} {array.shape}, not {wanted.dtype} {wanted.shape}"
      )
    if array.dtype.kind != "f":
      wrong = (array != wanted) & ~_ties(expected.get("scores"), array.shape)
      if wrong.any():
        raise CheckFailed(f"{where}: {name} is {array[wrong][0]!r} instead of {wanted[wrong][0]!r}")
      continue
    gaps = np.abs(array.astype(np.float64) - wanted) / np.maximum(1.0, np.abs(wanted))
    largest = max(largest, float(gaps.max(initial=0.0)))
    if largest > TOLERANCE:
      raise CheckFailed(f"{where}: {name} differs by {largest:.2e}")
  return largest


def _ties(scores: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray:
  """Where an output that is ordered by `scores` [B, N] may have another order: at equal scores."""
  if scores is None or scores.shape != shape:
    return np.zeros(shape, bool)
  near = np.abs(np.diff(scores, axis=1)) <= TOLERANCE * np.maximum(1.0, np.abs(scores[:, 1:]))
  return np.pad(near, [(0, 0), (1, 0)]) | np.pad(near, [(0, 0), (0, 1)])


def check_batches(export: Export) -> str:
  """Checks that a row has the same answer alone and in a batch, padding aside; an empty batch gives an empty answer."""
  largest, count = 0.0, 0
  for call in export.golden:
    outputs = export.run(call.signature, call.inputs)
    rows = len(next(iter(call.inputs.values())))
    for name, array in outputs.items():
      if array.shape[:1] != (rows,):
        raise CheckFailed(f"{call.signature}: {name} has shape {array.shape} for {rows} rows")
    for i in range(rows):
      alone = export.run(
        call.signature, {name: array[i : i + 1] for name, array in call.inputs.items()}
      )
      sizes = {name: tuple(map(slice, array.shape)) for name, array in alone.items()}
      row = {name: array[i : i + 1][sizes[name]] for name, array in outputs.items()}
      where = f"{call.signature}, row {i} in a batch and alone"
      largest, count = max(largest, largest_difference(where, row, alone)), count + 1
  return f"{count} rows alone and in a batch, largest difference {largest:.1e}"


def check_odd(export: Export) -> str:
  """Checks for finite answers to odd and long texts, in every signature of strings."""
  count = 0
  for signature, definition in export.signatures.items():
    specs = definition.inputs
    if all(spec.dtype == tf.string.as_datatype_enum for spec in specs.values()):
      for texts in (ODD_TEXTS, LONG_TEXTS):
        rows = np.array([*texts, None])[:-1]  # Objects: NumPy's own strings drop NUL at their end.
        pairs = np.stack([rows, rows], axis=-1)  # [B, 2], where a row has several strings.
        ranks = {name: len(spec.tensor_shape.dim) for name, spec in specs.items()}
        export.run(signature, {name: rows if rank == 1 else pairs for name, rank in ranks.items()})
        count += len(texts)
  return f"{count} odd texts answered: empty, NUL, invalid UTF-8, emoji, 10,000 characters"


CHECKS: Mapping[str, Any] = {
  "layout": check_layout,
  "ops": check_ops,
  "golden outputs": check_golden,
  "batch independence": check_batches,
  "odd text": check_odd,
}


def run_checks(export: Export) -> list[Result]:
  """Runs every check on a loaded export."""
  results = []
  for name, check in CHECKS.items():
    try:
      results.append(Result(name, True, check(export)))
    except CheckFailed as failure:
      results.append(Result(name, False, " ".join(str(failure).split())))
  return results


if __name__ == "__main__":
  sys.modules["albert_tf"] = None  # type: ignore[assignment]  # Its import fails, installed or not.
  print(json.dumps(run_checks(Export(sys.argv[1]))))
