"""All checks of one export, in order."""

from collections.abc import Callable, Sequence
import functools
import importlib.util
import os
import platform
import sys

import tensorflow as tf

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.serving.conformance import graph_checks, probes
from albert_tf.serving.conformance.golden import read_golden
from albert_tf.serving.conformance.results import Recorder, Result
from albert_tf.serving.conformance.samples import make_calls
from albert_tf.serving.conformance.signatures import Signature, read_signatures
from albert_tf.serving.conformance.tensor_file import Answer, Call
from albert_tf.serving.local_server.servable import ServableFolder, find_newest_version


def check_saved_model(
  path: str, *, pythons: Sequence[str] = (), say: Callable[[str], None] = print
) -> list[Result]:
  """Checks that an export loads and answers without this project's code.

  Args:
    path: a version directory, or a folder of versions (the highest is taken).
    pythons: interpreters with other versions of TensorFlow that it must run on too.
    say: called with a line for each check.

  Returns:
    What each check found; `results.passed` says whether all is well.

  Raises:
    UserError: there is no SavedModel at `path`.
  """
  with files.local_copy(find_newest_version(path)) as directory:  # Loaders in other processes read it.
    return _check(directory, pythons, Recorder(say))


def _check(directory: str, pythons: Sequence[str], recorder: Recorder) -> list[Result]:
  signatures = read_signatures(directory)
  golden: tuple[Sequence[Call], Sequence[Answer]] | None = None
  try:
    golden = read_golden(directory)
  except (OSError, ValueError, KeyError) as error:
    raise UserError(f"Golden outputs must be whole. Received: {directory}, where {error}.") from error
  calls = list(golden[0]) if golden else make_calls(signatures)
  odd, alone = graph_checks.odd_calls(signatures), graph_checks.single_rows(calls)

  recorder.check("layout", lambda: graph_checks.check_layout(directory, signatures))
  runs: list[probes.ProbeRun] = []

  def load() -> str:
    run = probes.run_session_probe(directory, [*calls, *alone, *odd])
    runs.append(run)
    return graph_checks.check_session(run._replace(answers=run.answers[: len(calls)]), calls)

  recorder.check("Session loader, bare process", load)
  if not runs:  # Nothing below can be asked of a model that does not load.
    return recorder.results
  answers = runs[0].answers
  first, single, rest = _split(answers, len(calls), len(alone))
  recorder.check("op allow-list", lambda: graph_checks.check_ops(directory, runs[0].info["foreign_ops"]))
  recorder.check("golden outputs", lambda: graph_checks.check_golden(calls, first, golden and golden[1]))
  recorder.check("batch independence", lambda: graph_checks.check_batches(calls, first, single))
  recorder.check("odd text", lambda: graph_checks.check_odd(odd, rest))
  recorder.check("C API, no Python", lambda: _c_probe(directory, calls, first))
  for python in pythons:
    body = functools.partial(_other_runtime, directory, calls, first, python)
    recorder.check(f"other runtime {python}", body)
  _wire(recorder, directory, signatures, calls, first)
  return recorder.results


def _split(answers: Sequence[Answer], *lengths: int) -> list[Sequence[Answer]]:
  parts, start = [], 0
  for length in lengths:
    parts.append(answers[start : start + length])
    start += length
  return [*parts, answers[start:]]


def _c_probe(directory: str, calls: Sequence[Call], expected: Sequence[Answer]) -> str:
  run = probes.run_c_probe(directory, calls)
  return graph_checks.check_same(run, calls, expected, where=f"libtensorflow {run.info['tensorflow']}")


def _other_runtime(directory: str, calls: Sequence[Call], expected: Sequence[Answer], python: str) -> str:
  run = probes.run_session_probe(directory, calls, python=python)
  where = f"TensorFlow {run.info['tensorflow']}, Python {run.info['python']}"
  return graph_checks.check_same(run, calls, expected, where=where)


def _wire(
  recorder: Recorder,
  directory: str,
  signatures: dict[str, Signature],
  calls: Sequence[Call],
  answers: Sequence[Answer],
) -> None:
  if importlib.util.find_spec("tensorflow_serving") is None or importlib.util.find_spec("grpc") is None:
    recorder.check("gRPC and REST", _no_serving_api)
    return
  from albert_tf.serving.conformance.wire_checks import WireChecks
  from albert_tf.serving.local_server import LocalServer, load_servables

  with LocalServer(load_servables([ServableFolder("albert", directory)])) as server:
    checks = WireChecks(
      url=server.url,
      address=server.grpc_address or "",
      model="albert",
      directory=directory,
      signatures=signatures,
      calls=calls,
      answers=answers,
    )
    for name, body in checks.all().items():
      recorder.check(name, body)
    checks.close()


def _no_serving_api() -> str:
  raise probes.CannotProbe('tensorflow-serving-api is not installed: pip install "albert-tf[serving]"')


def versions() -> dict[str, str]:
  """Of what the checks ran with."""
  return {
    "python": platform.python_version(),
    "tensorflow": tf.__version__,
    "platform": platform.platform(),
    "executable": os.path.basename(sys.executable),
  }
