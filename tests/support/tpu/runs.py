"""Commands on an emulated TPU, started from a test: on one host, or as the coordinator of a slice of several."""

from collections.abc import Iterator, Mapping
import contextlib
import json
import os
import pathlib
import subprocess
import sys
from typing import Any, NamedTuple

from support.commands.child_processes import ending_with_this, free_addresses, words
from support.tpu.programs import FAULTS

_TESTS = pathlib.Path(__file__).parents[2]


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


def report(module: str, *arguments: str, seconds: float = 480) -> Any:
  """Runs a module of this folder in a process of its own; returns the JSON of the last line it prints."""
  return _last_line(_python(module, *arguments), seconds)


def _last_line(process: subprocess.Popen[str], seconds: float) -> Any:
  try:
    stdout, stderr = process.communicate(timeout=seconds)
  finally:
    process.kill()
  assert process.returncode == 0, stderr[-4000:]
  return json.loads(stdout.splitlines()[-1])


def _python(
  module: str, *arguments: str, folder: pathlib.Path | None = None
) -> subprocess.Popen[str]:
  paths = [str(_TESTS.parent), str(_TESTS)]
  return subprocess.Popen(
    ending_with_this([sys.executable, "-m", f"support.tpu.{module}", *arguments]),
    env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    cwd=folder,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def results(process: subprocess.Popen[str], *, seconds: float = 480) -> list[EmulatedRun]:
  """Waits for the process and returns one result a run."""
  return [EmulatedRun(**each) for each in _last_line(process, seconds)]


def succeeded(process: subprocess.Popen[str], *, seconds: float = 480) -> list[EmulatedRun]:
  """`results`, all of them good: exit status 0, and no program that a TPU could not run."""
  found = results(process, seconds=seconds)
  for run in found:
    assert run.status == 0, f"{run.status}\n{run.stderr[-4000:]}"
    for program in run.programs:
      assert {name: program[name] for name in FAULTS} == {name: [] for name in FAULTS}
  return found


class Slice:
  """The hosts of an emulated slice: TensorFlow servers, each in a folder of its own.

  Attributes:
    addresses: where the hosts listen.
    tpu: what `--tpu` takes.
  """

  def __init__(self, folder: pathlib.Path, *, hosts: int, cores_per_host: int):
    self._folder, self._cores = folder, cores_per_host
    self.addresses = free_addresses(hosts)
    self.tpu = ",".join(f"grpc://{address}" for address in self.addresses)
    self.processes = {}
    for index in range(hosts):
      self.start(index)
    for index in range(hosts):
      self.wait(index)

  def start(self, index: int) -> None:
    """Starts a host, or one that has died, at its old address."""
    own = self._folder / f"host_{index}"  # A relative path of the coordinator names nothing here.
    own.mkdir(exist_ok=True)
    addresses = ",".join(self.addresses)
    self.processes[index] = _python(
      "command", "host", addresses, str(index), str(self._cores), folder=own
    )

  def wait(self, index: int) -> None:
    """Returns when the host listens."""
    stream = self.processes[index].stdout
    assert stream is not None
    assert stream.readline().startswith("listening")

  def kill(self, index: int) -> None:
    self.processes[index].kill()
    self.processes[index].communicate()


@contextlib.contextmanager
def slice_of(folder: pathlib.Path, *, hosts: int, cores_per_host: int) -> Iterator[Slice]:
  """An emulated slice, ended with the block."""
  made = Slice(folder, hosts=hosts, cores_per_host=cores_per_host)
  try:
    yield made
  finally:
    for index in made.processes:
      made.kill(index)
