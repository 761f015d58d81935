"""What a user runs on an export: does it load and answer wherever TensorFlow runs?

The export is loaded in a process that cannot import this project, as servers load it.
"""

from collections.abc import Mapping, Sequence
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf import files
from albert_tf.serving import bare_loader
from albert_tf.serving.bare_loader import Answer, Call
from albert_tf.serving.golden import make_calls, read_golden, string_array
from albert_tf.serving.saved_model import Signature, find_version, read_signatures

TOLERANCE = 1e-5  # Of |a − b| / max(1, |b|).
# Of TensorFlow Text, what TensorFlow Serving 2.12–2.19 links and this project needs.
TEXT_OPS = {"SentencepieceOp", "SentencepieceTokenizeOp", "WordpieceTokenizeWithOffsets"}
# Core ops that call back into the Python process that made them.
PYTHON_OPS = {"PyFunc", "PyFuncStateless", "EagerPyFunc", "PyCall"}
ODD_TEXTS = (
  b"",
  b" ",
  b"\x00",
  b"a\x00b",
  b"\xff\xfe\xf0\x9f",
  b"\xed\xa0\x80",
  "😀👩‍👩‍👧‍👦 e\u0301\u202e \ufeff".encode(),
  b"[CLS] [SEP] [MASK] <pad>",
)
LONG_TEXTS = (b"word " * 2000,)  # In a call of its own, so that no other text is padded to it.
_SECONDS = 300


class CheckFailed(Exception):  # noqa: N818  Read as a sentence.
  """The export does not hold what the check is for; the message says where."""


class Result(NamedTuple):
  """One check: whether it passed, and what was found."""

  name: str
  passed: bool
  detail: str


def check_saved_model(path: str, *, pythons: Sequence[str] = ()) -> list[Result]:
  """Checks that an export loads and answers without this project's code.

  Args:
    path: a version directory, or a folder of versions (the highest is taken).
    pythons: interpreters with other versions of TensorFlow that it must run on too.

  Returns:
    A result for each check; those that need a loaded model are left out where it does not load.
  """
  results: list[Result] = []

  def check(name: str, function: Any, *arguments: Any) -> None:
    try:
      results.append(Result(name, True, function(*arguments)))
    except CheckFailed as failure:
      results.append(Result(name, False, " ".join(str(failure).split())))

  with files.local_copy(find_version(path)) as directory:  # Loaders in other processes read it.
    signatures = read_signatures(directory)
    recorded = read_golden(directory)
    calls = recorded[0] if recorded else make_calls(signatures)
    groups = (calls, single_rows(calls), odd_calls(signatures))
    check("layout", check_layout, directory, signatures)
    try:
      answers, info = run_bare(directory, [call for group in groups for call in group])
    except CheckFailed as failure:
      return [*results, Result("loads without this project", False, str(failure))]
    rest = iter(answers)
    given, alone, odd = ([next(rest) for _ in group] for group in groups)
    check("loads without this project", check_loaded, info, calls, given)
    check("ops", check_ops, info["ops"], info["foreign_ops"])
    check("golden outputs", check_golden, calls, given, recorded and recorded[1])
    check("batch independence", check_batches, calls, given, alone)
    check("odd text", check_odd, groups[2], odd)
    for python in pythons:
      check(f"also on {python}", check_elsewhere, directory, python, calls, given)
  return results


def run_bare(
  directory: str, calls: Sequence[Call], *, python: str = sys.executable
) -> tuple[list[Answer], dict[str, Any]]:
  """Runs calls in a process without this project: the answers, and what `bare_loader` said of itself."""
  environment = {"CUDA_VISIBLE_DEVICES": "-1", **os.environ}
  with tempfile.TemporaryDirectory() as folder:
    calls_path, answers_path = pathlib.Path(folder, "calls"), pathlib.Path(folder, "answers")
    calls_path.write_bytes(bare_loader.dump_calls(calls))
    program = [os.path.abspath(python), "-I", os.path.abspath(bare_loader.__file__)]
    program += [os.path.abspath(directory), str(calls_path), str(answers_path)]
    try:
      done = subprocess.run(
        program,
        capture_output=True,
        text=True,
        errors="replace",
        cwd=folder,
        env=environment,
        timeout=_SECONDS,
      )
    except (OSError, subprocess.TimeoutExpired) as error:
      raise CheckFailed(str(error)) from error
    if done.returncode:
      lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
      raise CheckFailed(f"ended with status {done.returncode}: {' | '.join(lines[-3:]) or 'no message'}")
    _, answers = bare_loader.parse_calls(answers_path.read_bytes())
    return answers, json.loads(done.stdout.splitlines()[-1])


def check_layout(directory: str, signatures: Mapping[str, Signature]) -> str:
  """A numbered directory with a default signature and free batches."""
  base = os.path.basename(files.normpath(directory))
  if not base.isdigit():
    raise CheckFailed(f"servers take directories whose name is a number, and this one is {base!r}")
  if "serving_default" not in signatures:
    raise CheckFailed(f"there is no signature serving_default, only {', '.join(signatures) or 'none'}")
  for name, signature in signatures.items():
    if any(not spec.shape.rank or spec.shape[0] is not None for spec in signature.inputs.values()):
      raise CheckFailed(f"the batch dimension is not free in {name}")
  size = sum(files.size(os.path.join(directory, name)) for name in files.tree(directory))
  return f"version {base}, {size / 1e6:.1f} MB: {', '.join(signatures)}"


def check_loaded(info: Mapping[str, Any], calls: Sequence[Call], answers: Sequence[Answer]) -> str:
  """Every call of every signature is answered, with finite numbers."""
  if info["project_modules"]:
    raise CheckFailed(f"this project's code was loaded: {info['project_modules']}")
  for call, answer in zip(calls, answers, strict=True):
    _expect_finite(call, answer)
  return f"TensorFlow {info['tensorflow']}, Python {info['python']}, {len(calls)} calls"


def _expect_finite(call: Call, answer: Answer) -> None:
  """An empty batch may get a clear error, which is as good as an empty answer."""
  if answer.error and not _is_empty_refused(call, answer):
    raise CheckFailed(f"{call.signature}: {answer.error}")
  for name, array in answer.outputs.items():
    if array.dtype.kind == "f" and not np.isfinite(array).all():
      raise CheckFailed(f"{call.signature}: {name} holds values that are not finite")


def _is_empty_refused(call: Call, answer: Answer) -> bool:
  return call.num_rows == 0 and answer.error.startswith("InvalidArgumentError")


def check_ops(ops: Sequence[str], foreign_ops: Sequence[str]) -> str:
  """Core ops, and of TensorFlow Text only those that servers link."""
  python, foreign = sorted(PYTHON_OPS & set(ops)), sorted(set(foreign_ops) - TEXT_OPS)
  if python:
    raise CheckFailed(f"ops that need the Python process that made them: {', '.join(python)}")
  if foreign:
    raise CheckFailed(f"ops that TensorFlow Serving does not link: {', '.join(foreign)}")
  return f"{len(ops)} kinds of op; of TensorFlow Text: {', '.join(sorted(foreign_ops)) or 'none'}"


def check_golden(calls: Sequence[Call], answers: Sequence[Answer], golden: Sequence[Answer] | None) -> str:
  """The outputs are what the Python model gave when it was exported."""
  if golden is None:
    raise CheckFailed("the export holds no golden outputs")
  largest = compare(calls, answers, golden)
  return f"{len(golden)} calls, largest difference {largest:.1e} (allowed {TOLERANCE:.0e})"


def check_elsewhere(directory: str, python: str, calls: Sequence[Call], expected: Sequence[Answer]) -> str:
  """Another interpreter gives the same answers."""
  answers, info = run_bare(directory, calls, python=python)
  return f"TensorFlow {info['tensorflow']}, largest difference {compare(calls, answers, expected):.1e}"


def compare(calls: Sequence[Call], answers: Sequence[Answer], expected: Sequence[Answer]) -> float:
  """The largest difference of two loaders' answers; raises `CheckFailed` where one is too large."""
  largest = 0.0
  for call, answer, wanted in zip(calls, answers, expected, strict=True):
    if _is_empty_refused(call, answer) and _is_empty_refused(call, wanted):
      continue
    if answer.error or wanted.error:
      raise CheckFailed(f"{call.signature}: {answer.error or wanted.error}")
    largest = max(largest, _difference(call.signature, answer.outputs, wanted.outputs))
  return largest


def _difference(where: str, outputs: Mapping[str, Any], expected: Mapping[str, Any]) -> float:
  """max |a − b| / max(1, |b|) of the floats; raises `CheckFailed` where something differs."""
  if set(outputs) != set(expected):
    raise CheckFailed(f"{where}: outputs {sorted(outputs)} instead of {sorted(expected)}")
  largest = 0.0
  for name, array in outputs.items():
    wanted = np.asarray(expected[name])
    if (array.shape, array.dtype.kind) != (wanted.shape, wanted.dtype.kind):
      shapes = f"{array.dtype} {array.shape} instead of {wanted.dtype} {wanted.shape}"
      raise CheckFailed(f"{where}: {name} is {shapes}")
    if array.dtype.kind != "f":
      wrong = (array != wanted) & ~_ties(expected.get("scores"), array.shape)
      if wrong.any():
        raise CheckFailed(f"{where}: {name} is {array[wrong][0]!r} instead of {wanted[wrong][0]!r}")
      continue
    gaps = np.abs(array.astype(np.float64) - wanted) / np.maximum(1.0, np.abs(wanted))
    gap = float(gaps.max(initial=0.0))
    if not gap <= TOLERANCE:  # NaN too.
      raise CheckFailed(f"{where}: {name} differs by {gap:.2e}")
    largest = max(largest, gap)
  return largest


def _ties(scores: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray:
  """Where an output that is ordered by `scores` [B, N] may have another order: at equal scores."""
  if scores is None or scores.shape != shape:
    return np.zeros(shape, bool)
  near = np.abs(np.diff(scores, axis=1)) <= TOLERANCE * np.maximum(1.0, np.abs(scores[:, 1:]))
  return np.pad(near, [(0, 0), (1, 0)]) | np.pad(near, [(0, 0), (0, 1)])


def single_rows(calls: Sequence[Call]) -> list[Call]:
  """Each row of each call as a call of its own, in order."""
  return [
    Call(call.signature, {name: array[i : i + 1] for name, array in call.inputs.items()})
    for call in calls
    for i in range(call.num_rows)
  ]


def check_batches(calls: Sequence[Call], answers: Sequence[Answer], alone: Sequence[Answer]) -> str:
  """A row's answer does not depend on the rows beside it; an empty batch has an empty answer.

  A batch is padded to its longest row: what lies within the row's own size is compared.
  """
  singles, largest = iter(alone), 0.0
  for call, answer in zip(calls, answers, strict=True):
    for name, array in answer.outputs.items():
      if array.shape[:1] != (call.num_rows,):
        raise CheckFailed(f"{call.signature}: {name} has shape {array.shape} for {call.num_rows} rows")
    for i in range(call.num_rows):
      single = next(singles)
      if single.error or answer.error:
        raise CheckFailed(f"{call.signature}, row {i}: {single.error or answer.error}")
      sizes = {name: tuple(map(slice, array.shape)) for name, array in single.outputs.items()}
      row = {name: array[i : i + 1][sizes[name]] for name, array in answer.outputs.items()}
      where = f"{call.signature}, row {i} in a batch and alone"
      largest = max(largest, _difference(where, row, single.outputs))
  return f"{len(alone)} rows alone and in a batch, largest difference {largest:.1e}"


def odd_calls(signatures: Mapping[str, Signature]) -> list[Call]:
  """Every signature of strings with `ODD_TEXTS` in every input, and with a long text."""
  calls = []
  for name, signature in signatures.items():
    specs = signature.inputs
    if all(spec.dtype == tf.string for spec in specs.values()):
      for rows in map(string_array, (ODD_TEXTS, LONG_TEXTS)):
        pairs = np.stack([rows, rows], axis=-1)  # [B, 2], where a row has several strings.
        inputs = {key: rows if spec.shape.rank == 1 else pairs for key, spec in specs.items()}
        calls.append(Call(name, inputs))
  return calls


def check_odd(calls: Sequence[Call], answers: Sequence[Answer]) -> str:
  """Odd text gets finite answers."""
  for call, answer in zip(calls, answers, strict=True):
    _expect_finite(call, answer)
  count = sum(call.num_rows for call in calls)
  return f"{count} odd texts answered: empty, NUL, invalid UTF-8, emoji, 10,000 characters"
