"""Checks of an export that need no server: layout, ops, loaders, golden outputs, batches, odd text."""

from collections.abc import Mapping, Sequence
import os

import numpy as np

from albert_tf import files
from albert_tf.serving.conformance import probes
from albert_tf.serving.conformance.compare import TOLERANCE, difference, largest_float_gap, leading_part
from albert_tf.serving.conformance.results import CheckFailed
from albert_tf.serving.conformance.samples import odd_inputs
from albert_tf.serving.conformance.signatures import PREDICT, Signature, read_ops
from albert_tf.serving.conformance.tensor_file import Answer, Call

# Of TensorFlow Text, what TensorFlow Serving 2.12–2.19 links and this project needs.
TEXT_OPS = {"SentencepieceOp", "SentencepieceTokenizeOp", "NormalizeUTF8", "CaseFoldUTF8"}
# Core ops that call back into the Python process that made them.
PYTHON_OPS = {"PyFunc", "PyFuncStateless", "EagerPyFunc", "PyCall"}
INVALID_ARGUMENT = 3  # TensorFlow's number.


def check_layout(directory: str, signatures: Mapping[str, Signature]) -> str:
  """A numbered directory with a default signature, free batches, and names that servers know."""
  base = os.path.basename(files.normpath(directory))
  if not base.isdigit():
    raise CheckFailed(f"servers take directories whose name is a number, and this one is {base!r}")
  if "serving_default" not in signatures:
    raise CheckFailed(f"there is no signature serving_default, only {', '.join(signatures) or 'none'}")
  bound = [name for name, signature in signatures.items() if not signature.free_batch()]
  if bound:
    raise CheckFailed(f"the batch dimension is not free in {', '.join(bound)}")
  size = sum(files.size(os.path.join(directory, name)) for name in files.tree(directory))
  methods = [f"{name} ({signature.method.rsplit('/', 1)[-1]})" for name, signature in signatures.items()]
  return f"version {base}, {size / 1e6:.1f} MB: {', '.join(methods)}"


def check_ops(directory: str, foreign_ops: Sequence[str]) -> str:
  """Core ops, and of TensorFlow Text only those that servers link."""
  ops = read_ops(directory)
  python, foreign = sorted(ops & PYTHON_OPS), sorted(set(foreign_ops) - TEXT_OPS)
  if python:
    raise CheckFailed(f"ops that need the Python process that made them: {', '.join(python)}")
  if foreign:
    raise CheckFailed(f"ops that TensorFlow Serving does not link: {', '.join(foreign)}")
  return f"{len(ops)} kinds of op; of TensorFlow Text: {', '.join(sorted(set(foreign_ops))) or 'none'}"


def check_session(run: probes.ProbeRun, calls: Sequence[Call]) -> str:
  """Every call of every signature is answered, with finite numbers."""
  if run.info["project_modules"]:
    raise CheckFailed(f"this project's code was loaded: {run.info['project_modules']}")
  for call, answer in zip(calls, run.answers, strict=True):
    if answer.status and not is_empty_refused(call, answer):
      raise CheckFailed(f"{call.signature}: {answer.message}")
    for name, array in answer.outputs.items():
      if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise CheckFailed(f"{call.signature}: {name} holds values that are not finite")
  return f"TensorFlow {run.info['tensorflow']}, {len(calls)} calls, none of this project's modules"


def check_same(run: probes.ProbeRun, calls: Sequence[Call], expected: Sequence[Answer], *, where: str) -> str:
  """The same answers as another loader gave."""
  gap = _compare(calls, run.answers, expected)
  return f"{where}, {len(calls)} calls, largest difference {gap:.1e}"


def check_golden(calls: Sequence[Call], answers: Sequence[Answer], golden: Sequence[Answer] | None) -> str:
  """What the Python model gave when it was exported."""
  if golden is None:
    raise probes.CannotProbe("the export holds no golden outputs")
  gap = _compare(calls, answers, golden)
  return f"{len(golden)} calls, largest difference {gap:.1e} (allowed {TOLERANCE:.0e})"


def _compare(calls: Sequence[Call], answers: Sequence[Answer], expected: Sequence[Answer]) -> float:
  gaps = [0.0]
  for call, answer, wanted in zip(calls, answers, expected, strict=True):
    if is_empty_refused(call, answer) and answer.status == wanted.status:
      continue
    if answer.status or wanted.status:
      raise CheckFailed(f"{call.signature}: {answer.message or wanted.message}")
    found = difference(answer.outputs, wanted.outputs)
    if found:
      raise CheckFailed(f"{call.signature}, {call.num_rows} rows: {found}")
    gaps.append(largest_float_gap(answer.outputs, wanted.outputs))
  return max(gaps)


def is_empty_refused(call: Call, answer: Answer) -> bool:
  """Whether an empty batch got a clear error, which is as good as an empty answer."""
  return call.num_rows == 0 and answer.status == INVALID_ARGUMENT


def single_rows(calls: Sequence[Call]) -> list[Call]:
  """Each row of each call as a call of its own, in order."""
  return [
    Call(
      call.signature, {k: array[i : i + 1] for k, array in call.inputs.items()}, call.outputs, call.tensors
    )
    for call in calls
    for i in range(call.num_rows)
  ]


def check_batches(calls: Sequence[Call], answers: Sequence[Answer], alone: Sequence[Answer]) -> str:
  """A row's answer does not depend on the rows beside it; an empty batch has an empty answer.

  A batch is padded to its longest row: what lies within the row's own size is compared.
  """
  singles, compared, gap = iter(alone), 0, 0.0
  for call, answer in zip(calls, answers, strict=True):
    for name, array in answer.outputs.items():
      if array.shape[:1] != (call.num_rows,):
        raise CheckFailed(f"{call.signature}: {name} has shape {array.shape} for {call.num_rows} rows")
    for i in range(call.num_rows):
      single = next(singles)
      if single.status:
        raise CheckFailed(f"{call.signature}, row {i} alone: {single.message}")
      row = {
        k: leading_part(array[i : i + 1], single.outputs[k].shape) for k, array in answer.outputs.items()
      }
      found = difference(row, single.outputs)
      if found:
        raise CheckFailed(f"{call.signature}, row {i} in a batch and alone: {found}")
      compared, gap = compared + 1, max(gap, largest_float_gap(row, single.outputs))
  return f"{compared} rows alone and in a batch, largest difference {gap:.1e}"


def odd_calls(signatures: Mapping[str, Signature]) -> list[Call]:
  """Every signature of strings with empty, broken and long text."""
  return [
    Call(name, odd_inputs(signature), tuple(signature.outputs), signature.tensors())
    for name, signature in signatures.items()
    if signature.method == PREDICT
    and all(spec.is_string for spec in signature.inputs.values())
    and "inputs" not in signature.inputs
  ]


def check_odd(calls: Sequence[Call], answers: Sequence[Answer]) -> str:
  """Odd text gets finite answers."""
  for call, answer in zip(calls, answers, strict=True):
    if answer.status:
      raise CheckFailed(f"{call.signature}: {answer.message}")
    for name, array in answer.outputs.items():
      if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise CheckFailed(f"{call.signature}: {name} holds values that are not finite")
  if not calls:
    raise probes.NotApplicable("no signature takes strings")
  count = sum(call.num_rows for call in calls)
  return f"{count} odd texts answered: empty, NUL, invalid UTF-8, emoji, 10,000 characters"
