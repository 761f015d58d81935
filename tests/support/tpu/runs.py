"""Commands on an emulated TPU, started from a test: on one host, or as the coordinator of a slice of several."""

from collections.abc import Mapping
import json
import os
import pathlib
import subprocess
import types
from typing import Any, Self

from support.commands.child_processes import free_addresses, start_python, words
from support.commands.forked_commands import ROOT
from support.tpu.programs import FAULTS


def start(
  script: str, *runs: tuple[int, Mapping[str, Any]], folder: pathlib.Path | None = None
) -> subprocess.Popen[str]:
  """Starts a process that runs `script` several times, each as (cores, flags), in `folder`."""
  listed = [{"cores": cores, "flags": words(flags)} for cores, flags in runs]
  return _python("command", "run", script, json.dumps(listed), folder=folder)


def report(module: str) -> Any:
  """Runs a module of this folder in a process of its own; returns the JSON of the last line it prints."""
  return _last_line(_python(module))


def _last_line(process: subprocess.Popen[str]) -> Any:
  try:
    stdout, stderr = process.communicate(timeout=480)
  finally:
    process.kill()
  assert process.returncode == 0, stderr[-4000:]
  return json.loads(stdout.splitlines()[-1])


def _python(
  module: str, *arguments: str, folder: pathlib.Path | None = None
) -> subprocess.Popen[str]:
  paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
  words = ["-m", f"support.tpu.{module}", *arguments]
  return start_python(*words, folder=folder, PYTHONPATH=paths)


def results(process: subprocess.Popen[str]) -> list[types.SimpleNamespace]:
  """Waits for the process and returns one result a run.

  A result has `status`, the exit status or the traceback of an error that the command did not explain; what it printed
  as `stdout` and `stderr`; and in `programs` what `programs.describe` says of each traced TPU program.
  """
  return [types.SimpleNamespace(**run) for run in _last_line(process)]


def succeeded(process: subprocess.Popen[str]) -> list[types.SimpleNamespace]:
  """`results`, all of them good: exit status 0, and no program that a TPU could not run."""
  found = results(process)
  for run in found:
    assert run.status == 0, f"{run.status}\n{run.stderr[-4000:]}"
    for program in run.programs:
      assert {name: program[name] for name in FAULTS} == {name: [] for name in FAULTS}
  return found


class Slice:
  """The hosts of an emulated slice: TensorFlow servers, each in a folder of its own, that end with the block.

  Attributes:
    addresses: where the hosts listen.
    tpu: what `--tpu` takes.
  """

  def __init__(self, folder: pathlib.Path, *, hosts: int, cores_per_host: int):
    self._folder, self._cores = folder, cores_per_host
    self._processes: dict[int, subprocess.Popen[str]] = {}
    self.addresses = free_addresses(hosts)
    self.tpu = ",".join(f"grpc://{address}" for address in self.addresses)

  def __enter__(self) -> Self:
    self.start(*range(len(self.addresses)))
    return self

  def __exit__(self, *_: Any) -> None:
    for index in self._processes:
      self.kill(index)

  def start(self, *indices: int) -> None:
    """Starts hosts, or such as have died, at their addresses; returns when they listen."""
    for index in indices:
      own = self._folder / f"host_{index}"  # A relative path of the coordinator names nothing here.
      own.mkdir(exist_ok=True)
      arguments = (",".join(self.addresses), str(index), str(self._cores))
      self._processes[index] = _python("command", "host", *arguments, folder=own)
    for index in indices:
      stream = self._processes[index].stdout
      assert stream is not None
      assert stream.readline().startswith("listening")

  def kill(self, index: int) -> None:
    self._processes[index].kill()
    self._processes[index].communicate()
