"""What a user runs on an export: does it load and answer wherever TensorFlow runs?

The export is loaded in a process that cannot import this project, as servers load it.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.serving import bare_loader, warmup
from albert_tf.serving.bare_loader import Answer, Call
from albert_tf.serving.golden import TOLERANCE, difference, read_golden
from albert_tf.serving.samples import make_calls, odd_calls
from albert_tf.serving.saved_model import Signature, find_version, read_signatures

# Of TensorFlow Text, what TensorFlow Serving 2.12–2.19 links and this project needs.
TEXT_OPS = {"SentencepieceOp", "SentencepieceTokenizeOp", "WordpieceTokenizeWithOffsets"}
# Core ops that call back into the Python process that made them.
PYTHON_OPS = {"PyFunc", "PyFuncStateless", "EagerPyFunc", "PyCall"}
_SECONDS = 300


class CheckFailed(Exception):  # noqa: N818  Read as a sentence.
  """The export does not hold what the check is for; the message says where."""


class CannotCheck(Exception):  # noqa: N818
  """This machine or export lacks what the check needs; the message says what."""


@dataclasses.dataclass(frozen=True)
class Result:
  """One check.

  Attributes:
    name: what was checked.
    status: PASS, FAIL, or SKIP where it cannot be checked here.
    detail: what was found, or why it was not checked.
    seconds: how long it took.
  """

  name: str
  status: str
  detail: str
  seconds: float


def check_saved_model(
  path: str, *, pythons: Sequence[str] = (), say: Callable[[str], None] = print
) -> list[Result]:
  """Checks that an export loads and answers without this project's code.

  Args:
    path: a version directory, or a folder of versions (the highest is taken).
    pythons: interpreters with other versions of TensorFlow that it must run on too.
    say: called with a line for each check.

  Raises:
    UserError: there is no SavedModel at `path`.
  """
  results: list[Result] = []

  def check(name: str, body: Callable[[], str]) -> None:
    started = time.perf_counter()
    try:
      status, detail = "PASS", body()
    except CannotCheck as reason:
      status, detail = "SKIP", str(reason)
    except CheckFailed as failure:
      status, detail = "FAIL", str(failure)
    except Exception as error:  # A check that breaks is a check that failed: the others go on.
      status, detail = "FAIL", f"{type(error).__name__}: {error}"
    results.append(Result(name, status, " ".join(detail.split()), time.perf_counter() - started))
    say(f"{status}  {name:<32}  {results[-1].detail}  [{results[-1].seconds:.1f} s]")

  with files.local_copy(find_version(path)) as directory:  # Loaders in other processes read it.
    _check(directory, pythons, check)
  return results


def _check(directory: str, pythons: Sequence[str], check: Callable[[str, Callable[[], str]], None]) -> None:
  signatures = read_signatures(directory)
  try:
    golden = read_golden(directory)
  except Exception as error:  # Whatever a broken file makes NumPy raise.
    raise UserError(f"Golden outputs must be whole. Received: {directory}, where {error}.") from error
  calls = golden[0] if golden else make_calls(signatures)
  warmed: list[Call] | Exception | None
  try:
    warmed = warmup.read_warmup(directory)
  except Exception as error:  # Whatever a broken file raises: the other checks go on.
    warmed = error
  asked = {
    "calls": calls,
    "alone": single_rows(calls),
    "odd": odd_calls(signatures),
    "warmup": warmed if isinstance(warmed, list) else [],
  }
  check("layout", lambda: check_layout(directory, signatures))
  given: dict[str, list[Answer]] = {}
  info: dict[str, Any] = {}

  def load() -> str:
    found, said = run_bare(directory, [call for group in asked.values() for call in group])
    answers = iter(found)
    given.update({name: [next(answers) for _ in group] for name, group in asked.items()})
    info.update(said)
    return check_session(info, calls, given["calls"])

  check("Session loader, bare process", load)
  if not given:  # Nothing below can be asked of a model that does not load.
    return
  check("op allow-list", lambda: check_ops(info["ops"], info["foreign_ops"]))
  check("golden outputs", lambda: check_golden(calls, given["calls"], golden and golden[1]))
  check("batch independence", lambda: check_batches(calls, given["calls"], given["alone"]))
  check("odd text", lambda: check_odd(asked["odd"], given["odd"]))
  check("warm-up replay", lambda: check_warmup(warmed, given["warmup"]))
  for python in pythons:

    def other(python: str = python) -> str:
      answers, said = run_bare(directory, calls, python=python)
      gap = compare(calls, answers, given["calls"])
      where = f"TensorFlow {said['tensorflow']}, Python {said['python']}"
      return f"{where}, {len(calls)} calls, largest difference {gap:.1e}"

    check(f"other runtime {python}", other)


def run_bare(
  directory: str, calls: Sequence[Call], *, python: str = sys.executable
) -> tuple[list[Answer], dict[str, Any]]:
  """Runs calls in a process without this project: the answers, and what `bare_loader` said of itself.

  Raises:
    CheckFailed: the model does not load there.
  """
  environment = {"CUDA_VISIBLE_DEVICES": "-1", **os.environ}
  with tempfile.TemporaryDirectory() as folder:
    calls_path, answers_path = os.path.join(folder, "calls"), os.path.join(folder, "answers")
    with open(calls_path, "wb") as stream:
      stream.write(bare_loader.dump_calls(calls))
    command = [
      os.path.abspath(python),
      "-I",
      os.path.abspath(bare_loader.__file__),
      os.path.abspath(directory),
    ]
    try:
      done = subprocess.run(
        [*command, calls_path, answers_path],
        capture_output=True, text=True, errors="replace", cwd=folder, env=environment, timeout=_SECONDS,
      )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
      raise CheckFailed(str(error)) from error
    if done.returncode:
      ended = f"signal {-done.returncode}" if done.returncode < 0 else f"status {done.returncode}"
      words = [line.strip() for line in done.stderr.splitlines() if line.strip()]
      raise CheckFailed(f"ended by {ended}: {' | '.join(words[-3:])[-600:] or 'no message'}")
    _, answers = bare_loader.parse_calls(files.read_bytes(answers_path))
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
  methods = [f"{name} ({signature.method.rsplit('/', 1)[-1]})" for name, signature in signatures.items()]
  return f"version {base}, {size / 1e6:.1f} MB: {', '.join(methods)}"


def check_session(info: Mapping[str, Any], calls: Sequence[Call], answers: Sequence[Answer]) -> str:
  """Every call of every signature is answered, with finite numbers."""
  if info["project_modules"]:
    raise CheckFailed(f"this project's code was loaded: {info['project_modules']}")
  for call, answer in zip(calls, answers, strict=True):
    if not is_empty_refused(call, answer):
      _expect_finite(call, answer)
  return f"TensorFlow {info['tensorflow']}, {len(calls)} calls, none of this project's modules"


def _expect_finite(call: Call, answer: Answer) -> None:
  if answer.error:
    raise CheckFailed(f"{call.signature}: {answer.error}")
  for name, array in answer.outputs.items():
    if array.dtype.kind == "f" and not np.isfinite(array).all():
      raise CheckFailed(f"{call.signature}: {name} holds values that are not finite")


def check_ops(ops: Sequence[str], foreign_ops: Sequence[str]) -> str:
  """Core ops, and of TensorFlow Text only those that servers link."""
  python, foreign = sorted(PYTHON_OPS & set(ops)), sorted(set(foreign_ops) - TEXT_OPS)
  if python:
    raise CheckFailed(f"ops that need the Python process that made them: {', '.join(python)}")
  if foreign:
    raise CheckFailed(f"ops that TensorFlow Serving does not link: {', '.join(foreign)}")
  return f"{len(ops)} kinds of op; of TensorFlow Text: {', '.join(sorted(foreign_ops)) or 'none'}"


def check_golden(calls: Sequence[Call], answers: Sequence[Answer], golden: Sequence[Answer] | None) -> str:
  """What the Python model gave when it was exported."""
  if golden is None:
    raise CannotCheck("the export holds no golden outputs")
  gap = compare(calls, answers, golden)
  return f"{len(golden)} calls, largest difference {gap:.1e} (allowed {TOLERANCE:.0e})"


def is_empty_refused(call: Call, answer: Answer) -> bool:
  """Whether an empty batch got a clear error, which is as good as an empty answer."""
  return call.num_rows == 0 and answer.error.startswith("InvalidArgumentError")


def compare(calls: Sequence[Call], answers: Sequence[Answer], expected: Sequence[Answer]) -> float:
  """The largest difference of two loaders' answers; raises where one is too large."""
  gaps = [0.0]
  for call, answer, wanted in zip(calls, answers, expected, strict=True):
    if is_empty_refused(call, answer) and is_empty_refused(call, wanted):
      continue
    if answer.error or wanted.error:
      raise CheckFailed(f"{call.signature}: {answer.error or wanted.error}")
    found, gap = difference(answer.outputs, wanted.outputs)
    if found:
      raise CheckFailed(f"{call.signature}, {call.num_rows} rows: {found}")
    gaps.append(gap)
  return max(gaps)


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
      if single.error:
        raise CheckFailed(f"{call.signature}, row {i} alone: {single.error}")
      row = {
        name: array[i : i + 1][tuple(slice(size) for size in single.outputs[name].shape)]
        for name, array in answer.outputs.items()
      }
      found, gap = difference(row, single.outputs)
      if found:
        raise CheckFailed(f"{call.signature}, row {i} in a batch and alone: {found}")
      largest = max(largest, gap)
  return f"{len(alone)} rows alone and in a batch, largest difference {largest:.1e}"


def check_odd(calls: Sequence[Call], answers: Sequence[Answer]) -> str:
  """Odd text gets finite answers."""
  if not calls:
    raise CannotCheck("no signature takes strings")
  for call, answer in zip(calls, answers, strict=True):
    _expect_finite(call, answer)
  count = sum(call.num_rows for call in calls)
  return f"{count} odd texts answered: empty, NUL, invalid UTF-8, emoji, 10,000 characters"


def check_warmup(calls: Sequence[Call] | Exception | None, answers: Sequence[Answer]) -> str:
  """What a server replays before it takes the model into use; `calls` is what `read_warmup` gave or raised."""
  if isinstance(calls, Exception):
    raise CheckFailed(f"{warmup.WARMUP_NAME} cannot be read: {type(calls).__name__}: {calls}")
  if calls is None:
    raise CannotCheck('tensorflow-serving-api is not installed: pip install "albert-tf[serving]"')
  if not calls:
    raise CannotCheck(f"the export holds no {warmup.WARMUP_NAME}")
  if len(calls) > warmup.MAX_RECORDS:
    raise CheckFailed(f"{len(calls)} records; servers take {warmup.MAX_RECORDS} at most")
  for call, answer in zip(calls, answers, strict=True):
    _expect_finite(call, answer)
  return f"{len(calls)} requests of {', '.join(dict.fromkeys(call.signature for call in calls))}"
