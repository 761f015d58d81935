"""Commands on an emulated TPU, started from a test: on one host, or as the coordinator of a slice of several."""

from collections.abc import Mapping
import json
import os
import pathlib
import subprocess
import sys
from typing import Any, NamedTuple, Self

from support.commands.child_processes import ending_with_this, free_addresses, words
from support.commands.forked_commands import ROOT
from support.tpu.programs import FAULTS


class EmulatedRun(NamedTuple):
  """What became of a command.

  Attributes:
    status: exit status, or the traceback of an error the command did not explain.
    stdout, stderr: what it printed.
    programs: what `programs.describe` says of every traced TPU program.
  """

  status: int | str
  stdout: str
  stderr: str
  programs: list[dict[str, Any]]


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
  return subprocess.Popen(
    ending_with_this([sys.executable, "-m", f"support.tpu.{module}", *arguments]),
    env={**os.environ, "PYTHONPATH": paths},
    cwd=folder,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def results(process: subprocess.Popen[str]) -> list[EmulatedRun]:
  """Waits for the process and returns one result a run."""
  return [EmulatedRun(**each) for each in _last_line(process)]


def succeeded(process: subprocess.Popen[str]) -> list[EmulatedRun]:
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
