"""Runs calls in processes that know nothing of this project."""

from collections.abc import Sequence
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from typing import Any, NamedTuple

from albert_tf.serving.conformance import tensor_file
from albert_tf.serving.conformance.session_probe import OP_LIBRARIES
from albert_tf.serving.conformance.tensor_file import Answer, Call

_HERE = os.path.dirname(os.path.abspath(__file__))
_SECONDS = 300
COMPILERS = ("cc", "gcc", "clang")


class ProbeError(Exception):
  """A probe did not run; the message is its own."""


class CannotProbe(Exception):  # noqa: N818  A reason to skip, not an error.
  """This machine lacks what the probe needs; the message says what."""


class NotApplicable(Exception):  # noqa: N818
  """The export has nothing that the check is for."""


class ProbeRun(NamedTuple):
  """Answers in the order of the calls, and what the probe said of itself."""

  answers: list[Answer]
  info: dict[str, Any]


def run_session_probe(directory: str, calls: Sequence[Call], *, python: str = sys.executable) -> ProbeRun:
  """Runs calls in a Session in a bare process.

  Args:
    directory: the SavedModel.
    calls: what to run.
    python: an interpreter with `tensorflow` and `tensorflow_text`, of any version.

  Raises:
    ProbeError: the model does not load there.
  """
  command = [
    os.path.abspath(python),
    "-I",
    os.path.join(_HERE, "session_probe.py"),
    os.path.abspath(directory),
  ]
  return _run(command, calls, environment=dict(os.environ))


def run_c_probe(directory: str, calls: Sequence[Call]) -> ProbeRun:
  """Runs calls in a C program on TensorFlow's C API.

  Raises:
    CannotProbe: no compiler, or a TensorFlow without its C library.
    ProbeError: the program does not compile, or the model does not load there.
  """
  tensorflow = _package_dir("tensorflow")
  ops = [os.path.join(_package_dir("tensorflow_text"), "python", "ops", name) for name in OP_LIBRARIES]
  with tempfile.TemporaryDirectory() as folder:
    program = compile_c_probe(folder, tensorflow)
    environment = {**os.environ, "LD_LIBRARY_PATH": tensorflow, "TF_CPP_MIN_LOG_LEVEL": "2"}
    return _run([program, os.path.abspath(directory)], calls, environment=environment, more=ops)


def compile_c_probe(folder: str, tensorflow: str) -> str:
  """Compiles the C program against an installed TensorFlow; returns its path."""
  compiler = os.environ.get("CC") or next(filter(None, map(shutil.which, COMPILERS)), None)
  if compiler is None:
    raise CannotProbe(f"no C compiler ({', '.join(COMPILERS)}) on this machine; install one, such as gcc")
  libraries = ["libtensorflow_cc.so.2", "libtensorflow_framework.so.2"]
  for path in [*(os.path.join(tensorflow, name) for name in libraries)]:
    if not os.path.exists(path):
      raise CannotProbe(f"this TensorFlow has no {os.path.basename(path)} to link with")
  program = os.path.join(folder, "capi_probe")
  command = [
    *[compiler, "-O1", "-o", program, os.path.join(_HERE, "capi_probe.c")],
    *[f"-I{os.path.join(tensorflow, 'include')}", f"-L{tensorflow}", f"-Wl,-rpath,{tensorflow}"],
    *[f"-l:{name}" for name in libraries],
  ]
  done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
  if done.returncode:
    raise ProbeError(f"{compiler} failed: {_last_lines(done.stderr)}")
  return program


def _run(
  command: list[str], calls: Sequence[Call], *, environment: dict[str, str], more: Sequence[str] = ()
) -> ProbeRun:
  environment["CUDA_VISIBLE_DEVICES"] = environment.get("CUDA_VISIBLE_DEVICES", "-1")
  with tempfile.TemporaryDirectory() as folder:
    calls_path, answers_path = os.path.join(folder, "calls"), os.path.join(folder, "answers")
    tensor_file.write_calls(calls_path, calls)
    try:
      done = subprocess.run(
        [*command, calls_path, answers_path, *more],
        capture_output=True, text=True, errors="replace", cwd=folder, env=environment, timeout=_SECONDS,
      )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
      raise ProbeError(str(error)) from error
    if done.returncode:
      ended = f"ended by signal {-done.returncode}" if done.returncode < 0 else f"status {done.returncode}"
      raise ProbeError(f"{ended}: {_last_lines(done.stderr)}")
    return ProbeRun(tensor_file.read_answers(answers_path), json.loads(done.stdout.splitlines()[-1]))


def _package_dir(name: str) -> str:
  spec = importlib.util.find_spec(name)
  if spec is None or not spec.submodule_search_locations:
    raise CannotProbe(f"the package {name} is not installed")
  return next(iter(spec.submodule_search_locations))


def _last_lines(text: str) -> str:
  lines = [line.strip() for line in text.splitlines() if line.strip()]
  return " | ".join(lines[-3:])[-600:] or "no message"
