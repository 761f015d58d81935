"""What all fuzzers share: damage to a valid file, the property, profiles, and children that may die.

The property: a call has a valid result or raises a `UserError` that names the file, in bounded time and memory.
"""

import collections
from collections.abc import Callable, Iterator
import contextlib
import datetime
import functools
import importlib
import json
import os
import pathlib
import selectors
import subprocess
import sys
import traceback
from typing import IO, Any

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from support.commands.child_processes import ending_with_this

try:
  import resource
except ImportError:  # Windows.
  resource = None  # type: ignore[assignment]

SEED = os.environ.get("FUZZ_SEED", "")  # Given: the profile "long" with it, as `make fuzz` runs it.
CASES: collections.Counter[str] = collections.Counter()  # How many each fuzzer ran.
_SHORT, _LONG = 40, 400  # Cases of a fuzzer of cost 1.
_SECONDS = 20  # A case may take; usually milliseconds, but the machine may be busy.
_MEMORY = 2 << 30  # Bytes a case may take.
_CHECKS = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture)


def fuzz(*, cost: int = 1, **strategies: st.SearchStrategy[Any]) -> Callable[..., Any]:
  """Makes a test a fuzzer: hypothesis' `given`, with fewer cases for a higher cost."""

  def decorate(test: Callable[..., Any]) -> Any:
    @functools.wraps(test)
    def counted(*args: Any, **kwargs: Any) -> None:
      CASES[f"{pathlib.Path(test.__code__.co_filename).stem.removeprefix('test_')}.{test.__name__}"] += 1
      test(*args, **kwargs)

    phases = [
      phase for phase in Phase if phase is not Phase.explain and (cost < 20 or phase is not Phase.shrink)
    ]
    chosen = hypothesis.settings(
      max_examples=max(1, (_LONG if SEED else _SHORT) // cost),
      derandomize=not SEED,
      database=None,
      deadline=datetime.timedelta(seconds=_SECONDS * cost),
      suppress_health_check=_CHECKS,
      phases=phases,
    )
    given = chosen(hypothesis.given(**strategies)(counted))
    return hypothesis.seed(int(SEED))(given) if SEED else given

  return decorate


# ------------------------------------------------------------------ the property


def outcome(call: Callable[..., Any], *arguments: Any) -> tuple[str, Any]:
  """("result", it) or ("refusal", message) of a call; any other exception goes on."""
  from albert_tf.errors import UserError

  try:
    with bounded_memory():
      return "result", call(*arguments)
  except UserError as error:
    return "refusal", str(error)


def result_or_refusal(path: str | os.PathLike[str], call: Callable[..., Any], *arguments: Any) -> Any:
  """The result of a call; None for a refusal that names the file."""
  kind, value = outcome(call, *arguments)
  if kind == "result":
    return value
  assert os.path.basename(path) in value, f"no file is named: {value}"
  return None


@contextlib.contextmanager
def bounded_memory() -> Iterator[None]:
  """Inside, this process may take so much more memory; what takes more is a MemoryError, and so a finding."""
  if sys.platform != "linux":
    yield
    return
  used = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
  before = resource.getrlimit(resource.RLIMIT_AS)
  resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY, before[1]))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_AS, before)


class Child:
  """A process, kept alive, that calls functions on files that may end the process: its death is a found case.

  Args:
    errors: a file for what it prints.
  """

  def __init__(self, errors: IO[bytes]) -> None:
    self._process: subprocess.Popen[bytes] | None = None
    self._errors = errors

  def __call__(self, function: str, path: str | os.PathLike[str]) -> Any:
    """As `result_or_refusal`, of `module:function`, which takes a path and returns what JSON holds."""
    if self._process is None:
      folders = os.pathsep.join(
        map(str, [pathlib.Path(__file__).parents[2], pathlib.Path(__file__).parents[1]])
      )
      self._process = subprocess.Popen(
        ending_with_this([sys.executable, "-m", "support.fuzzing"]),
        env={**os.environ, "PYTHONPATH": folders, "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=self._errors,
      )
    process = self._process
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps([function, str(path)]).encode() + b"\n")
    process.stdin.flush()
    with selectors.DefaultSelector() as selector:
      selector.register(process.stdout, selectors.EVENT_READ)
      line = process.stdout.readline() if selector.select(_SECONDS * 4) else b""
    if not line:
      self.end()
      self._errors.seek(0)
      last = self._errors.read()[-2000:].decode(errors="replace")
      raise AssertionError(
        f"{function} ended the process (status {process.returncode}), or took too long: {last}"
      )
    kind, value = json.loads(line)
    assert kind in ("result", "refusal"), value
    if kind == "refusal":
      assert os.path.basename(path) in value, f"no file is named: {value}"
    return value if kind == "result" else None

  def end(self) -> None:
    """Ends the process; the next call starts another."""
    if self._process is not None:
      self._process.kill()
      self._process.communicate()
      self._process = None


def _serve() -> None:
  answers = os.fdopen(os.dup(1), "w")
  os.dup2(2, 1)  # What a library prints is no answer.
  for line in sys.stdin:
    name, path = json.loads(line)
    module, _, function = name.partition(":")
    try:
      call = getattr(importlib.import_module(module), function)
      answer = outcome(call, path)
    except BaseException:
      answer = ("error", traceback.format_exc())
    print(json.dumps(answer), file=answers, flush=True)


# ------------------------------------------------------------------ damage

_BYTES = st.binary(min_size=1, max_size=12) | st.sampled_from(
  [
    b"\0",
    b"\xff" * 8,
    b"\x7f" + b"\xff" * 7,
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    b'"',
    b"\n",
    b"\x80" * 10,
    b"{[" * 9,
  ]
)


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
  """A file with one to three damages."""
  data = bytearray(content)
  for kind in draw(
    st.lists(st.sampled_from(["flip", "write", "cut", "take", "copy", "insert"]), min_size=1, max_size=3)
  ):
    begin = draw(st.integers(0, len(data)))
    end = min(len(data), begin + draw(st.integers(0, 1 << draw(st.integers(0, 16)))))
    match kind:
      case "flip" if begin < len(data):
        data[begin] ^= 1 << draw(st.integers(0, 7))
      case "write":
        new = draw(_BYTES)
        data[begin : begin + len(new)] = new
      case "cut":
        del data[begin:]
      case "take":
        del data[begin:end]
      case "copy":
        at = draw(st.integers(0, len(data)))
        data[at:at] = data[begin:end]
      case "insert":
        data[begin:begin] = draw(_BYTES)
  return bytes(data)


_DEEP = "@deep"
_VALUES: list[Any] = [
  None, True, False, 0, 1, -1, 2, 1e308, 0.5, -0.0, float("nan"), float("inf"), 2**31, 2**63, -(2**63), 10**9, 10**400,
  "", "x", "true", "1", "\ud800", "\0", "../x", "x" * 5000, [], {}, [[]], [None], ["x", 1], {"x": 1}, [{}] * 3, _DEEP,
]  # fmt: skip


@st.composite
def damaged_json(draw: st.DrawFn, content: str) -> bytes:
  """A JSON file with other types, names, depth, or bytes."""
  value = json.loads(content)
  for _ in range(draw(st.integers(1, 3))):
    value = _changed(draw, value)
  # Integers of any length; infinities and NaN as Python writes them.
  deep = "[" * 100_000 + "]" * 100_000
  data = json.dumps(value, ensure_ascii=draw(st.booleans())).replace(f'"{_DEEP}"', deep)
  encoded = data.encode("utf-8", "surrogatepass")
  return draw(damaged(encoded)) if draw(st.integers(0, 3)) == 0 else encoded


def _changed(draw: st.DrawFn, value: Any) -> Any:
  if not isinstance(value, (dict, list)) or not value or draw(st.integers(0, 7)) == 0:
    return draw(st.sampled_from(_VALUES))
  items = dict(value) if isinstance(value, dict) else dict(enumerate(value))
  name = draw(st.sampled_from(list(items)))
  match draw(st.sampled_from(["change", "change", "change", "remove", "rename", "add"])):
    case "change":
      items[name] = _changed(draw, items[name])
    case "remove":
      del items[name]
    case "rename":
      items[f"{name}s"] = items.pop(name)
    case "add":
      items["more"] = draw(st.sampled_from(_VALUES))
  return items if isinstance(value, dict) else list(items.values())


if __name__ == "__main__":
  _serve()
