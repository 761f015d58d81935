"""Checks that an export loads and answers without this project.

`check_saved_model` imports this folder as a package of its own in another process, where
`albert_tf` cannot be imported. So the top of the file imports only NumPy, TensorFlow and
`loaded_model` beside it.
"""

from collections.abc import Sequence
import json
import os
import subprocess
import sys
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.framework import op_def_registry

from .loaded_model import Arrays, LoadedModel, find_version

# Prefix of a TensorFlow bundle with outputs of the Python model; its keys are
# "CALL/SIGNATURE/inputs/NAME" and "CALL/SIGNATURE/outputs/NAME".
GOLDEN = os.path.join("assets.extra", "golden")
# In which numbers it computes, and how near it is to float32.
PRECISION = os.path.join("assets.extra", "precision.json")
# Of |a − b| / max(1, |b|). With 8 or 16 bits, a difference in the last bit of float32 may round the other way.
TOLERANCES = {"float32": 1e-5, "bfloat16": 0.05, "int8": 0.05}
# Ops of TensorFlow Text that TensorFlow Serving 2.12–2.19 links and this project needs.
TEXT_OPS = {"SentencepieceOp", "SentencepieceTokenizeOp", "WordpieceTokenizeWithOffsets"}
# Core ops that call Python code of the exporting process.
PYTHON_OPS = {"PyFunc", "PyFuncStateless", "EagerPyFunc", "PyCall"}
ODD_TEXTS = (
  b"",
  b" ",
  b"\x00",
  b"a\x00b",
  b"\xff\xfe\xf0\x9f",
  b"\xed\xa0\x80",
  b"[CLS] [SEP] [MASK] <pad>",
  "😀👩‍👩‍👧‍👦 e\u0301\u202e \ufeff".encode(),
)
LONG_TEXTS = (b"word " * 2000,)  # In a call of its own, so that no other text is padded to it.

# What the other process runs; its arguments are the folder above this one, and a SavedModel.
_PROGRAM = """
import sys
sys.modules["albert_tf"] = None  # Its import fails, installed or not.
sys.path.append(sys.argv[1])
from serving import check
check.print_results(sys.argv[2])
"""


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
  inputs: Arrays
  outputs: Arrays


def check_saved_model(path: str, *, pythons: Sequence[str] = ()) -> list[Result]:
  """Checks that an export loads and answers without this project's code.

  Args:
    path: a version directory, or a folder of versions (the highest is taken).
    pythons: further interpreters, with other versions of TensorFlow.

  Returns:
    The results of this interpreter, then of each other one; a single result where the export does
    not load.
  """
  from albert_tf import files

  results: list[Result] = []
  environment = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"} | os.environ
  package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
  with files.local_copy(find_version(path)) as directory:
    for python in (sys.executable, *pythons):
      # -I: neither the working directory nor the user's settings of Python count.
      done = subprocess.run(
        [python, "-I", "-c", _PROGRAM, package, os.path.abspath(directory)],
        capture_output=True,
        text=True,
        errors="replace",
        env=environment,
      )
      if done.returncode == 0:
        results += [Result(*fields) for fields in json.loads(done.stdout.splitlines()[-1])]
      else:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        detail = f"{python}: {' | '.join(lines[-3:])}"
        results.append(Result("loads without this project", False, detail))
  return results


# ------------------------------------------------------------------ in the other process


def print_results(directory: str) -> None:
  """Runs every check on a SavedModel, and prints the results as one line of JSON."""
  export = Export(directory)
  results = []
  for name, check in CHECKS.items():
    try:
      results.append(Result(name, True, check(export)))
    except CheckFailed as failure:
      results.append(Result(name, False, " ".join(str(failure).split())))
  print(json.dumps(results))


class Export(LoadedModel):
  """The SavedModel under check.

  Attributes:
    ops: every op of its graph and of its functions.
    foreign_ops: those that are not of core TensorFlow.
    golden: the Python model's answers.
    precision: what is in the file `PRECISION`.
    tolerance: of TOLERANCES.
  """

  def __init__(self, directory: str):
    self.ops = ops_of(directory)
    # Before TensorFlow Text is loaded, which registers its own.
    self.foreign_ops = {op for op in self.ops if op_def_registry.get(op) is None}
    super().__init__(directory)
    self.golden = read_golden(directory)
    self.precision = read_precision(directory)
    self.tolerance = TOLERANCES[self.precision["precision"]]

  def run(self, signature: str, inputs: Arrays) -> Arrays:
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
  for meta_graph in proto.meta_graphs:
    ops |= {node.op for node in meta_graph.graph_def.node}
    functions = meta_graph.graph_def.library.function
    for function in functions:
      ops |= {node.op for node in function.node_def}
    # A call has the function's name as its op.
    ops -= {function.signature.name for function in functions}
  return ops


def read_precision(directory: str) -> dict[str, Any]:
  """The content of the file `PRECISION`; without it an export computes in float32."""
  path = os.path.join(directory, PRECISION)
  if not os.path.exists(path):
    return {"precision": "float32", "agreement": None}
  with open(path, encoding="utf-8") as stream:
    return json.load(stream)


def read_golden(directory: str) -> list[Call]:
  """The recorded calls; empty without a record."""
  prefix = os.path.join(directory, GOLDEN)
  if not os.path.exists(f"{prefix}.index"):
    return []
  calls: dict[str, Call] = {}
  reader = tf.train.load_checkpoint(prefix)
  for key in sorted(reader.get_variable_to_shape_map()):
    number, signature, side, name = key.split("/")
    call = calls.setdefault(f"{number} {signature}", Call(signature, {}, {}))
    getattr(call, side)[name] = reader.get_tensor(key)
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
  refused = (export.ops & PYTHON_OPS) | (export.foreign_ops - TEXT_OPS)
  if refused:
    raise CheckFailed(f"ops that TensorFlow Serving does not have: {refused}")
  text_ops = ", ".join(sorted(export.foreign_ops)) or "none"
  return f"{len(export.ops)} kinds of op; of TensorFlow Text: {text_ops}"


def check_golden(export: Export) -> str:
  """Checks that the outputs equal the recorded outputs of the Python model."""
  if not export.golden:
    raise CheckFailed("the export holds no golden outputs")
  differences = []
  for call in export.golden:
    outputs = export.run(call.signature, call.inputs)
    differences.append(largest_difference(call.signature, outputs, call.outputs, export.tolerance))
  return (
    f"{len(differences)} calls, largest difference {max(differences):.1e}, "
    f"TensorFlow {tf.__version__}"
  )


def largest_difference(where: str, outputs: Arrays, expected: Arrays, tolerance: float) -> float:
  """max |a − b| / max(1, |b|) of the floats; raises `CheckFailed` where something differs."""
  if set(outputs) != set(expected):
    raise CheckFailed(f"{where}: outputs {sorted(outputs)} instead of {sorted(expected)}")
  largest = 0.0
  for name, a in outputs.items():
    b = expected[name]
    if (a.shape, a.dtype.kind) != (b.shape, b.dtype.kind):
      raise CheckFailed(f"{where}: {name} is {a.dtype} {a.shape}, not {b.dtype} {b.shape}")
    if a.dtype.kind == "f":
      gaps = np.abs(a.astype(np.float64) - b) / np.maximum(1.0, np.abs(b))
      largest = max(largest, float(gaps.max(initial=0.0)))
      if largest > tolerance:
        raise CheckFailed(f"{where}: {name} differs by {largest:.2e}")
    else:
      is_wrong = a != b
      scores = expected.get("scores")
      if scores is not None and scores.shape == a.shape:
        # Answers with equal scores may change places: of the scores 3 1 1 0 the second and third.
        is_tie = np.isclose(scores[:, 1:], scores[:, :-1], tolerance, tolerance)
        is_wrong &= ~np.pad(is_tie, [(0, 0), (1, 0)]) & ~np.pad(is_tie, [(0, 0), (0, 1)])
      if is_wrong.any():
        raise CheckFailed(f"{where}: {name} is {a[is_wrong][0]!r} instead of {b[is_wrong][0]!r}")
  return largest


def check_batches(export: Export) -> str:
  """Checks that a row has the same answer alone and in a batch, padding aside.

  An empty batch must give an empty answer.
  """
  differences = []
  for call in export.golden:
    outputs = export.run(call.signature, call.inputs)
    num_rows = max(map(len, call.inputs.values()))
    for name, array in outputs.items():
      if array.shape[:1] != (num_rows,):
        raise CheckFailed(f"{call.signature}: {name} has shape {array.shape} for {num_rows} rows")
    for row in range(num_rows):
      one_row = {name: array[row : row + 1] for name, array in call.inputs.items()}
      alone = export.run(call.signature, one_row)
      # In the batch the row may be padded to the length of a longer one.
      in_batch = {}
      for name, array in alone.items():
        sizes = tuple(slice(size) for size in array.shape)
        in_batch[name] = outputs[name][row : row + 1][sizes]
      where = f"{call.signature}, row {row} in a batch and alone"
      differences.append(largest_difference(where, in_batch, alone, export.tolerance))
  return (
    f"{len(differences)} rows alone and in a batch, "
    f"largest difference {max(differences, default=0.0):.1e}"
  )


def check_odd(export: Export) -> str:
  """Checks for finite answers to odd and long texts, in every signature of strings."""
  count = 0
  for signature, definition in export.signatures.items():
    # Inputs with a default, such as a threshold, may be absent.
    specs = {
      name: spec for name, spec in definition.inputs.items() if name not in definition.defaults
    }
    if any(spec.dtype != tf.string.as_datatype_enum for spec in specs.values()):
      continue
    for texts in (ODD_TEXTS, LONG_TEXTS):
      # Objects: NumPy's own strings drop NUL at their end.
      rows = np.array(texts, object)
      # A row of several strings, such as choices, has each text twice.
      rows_by_rank = {1: rows, 2: np.stack([rows, rows], axis=-1)}
      inputs = {name: rows_by_rank[len(spec.tensor_shape.dim)] for name, spec in specs.items()}
      export.run(signature, inputs)
      count += len(texts)
  return f"{count} odd texts answered: empty, NUL, invalid UTF-8, emoji, 10,000 characters"


def check_precision(export: Export) -> str:
  """Says in which numbers it computes, and how near its answers were to float32's."""
  precision = export.precision["precision"]
  if export.precision["agreement"] is None:
    return precision
  return f"{precision}; with float32: {export.precision['summary']}"


CHECKS = {
  "layout": check_layout,
  "ops": check_ops,
  "precision": check_precision,
  "golden outputs": check_golden,
  "batch independence": check_batches,
  "odd text": check_odd,
}
