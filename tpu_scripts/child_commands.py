"""What a command that runs others does with SIGTERM: it is passed on, so that the one that runs ends with it."""

from collections.abc import Mapping, Sequence
import signal
import subprocess
import sys
import time
from typing import IO

EXIT_STOPPED = 143  # What a shell reports for SIGTERM.
_STOPPED = (EXIT_STOPPED, -signal.SIGTERM)


class StoppedError(Exception):
  """SIGTERM has ended the command that ran."""


def run_child(command: Sequence[str]) -> int:
  """Runs one of this project's commands, its output shown as it comes; returns its exit status.

  Raises:
    StoppedError: SIGTERM has reached this process, or the command; the command has ended.
  """
  return run_children([command])[1]


def run_children(
  commands: Sequence[Sequence[str]],
  *,
  environment: Mapping[str, str] | None = None,
  quiet: Sequence[IO[bytes]] = (),
) -> tuple[int, int]:
  """Runs commands side by side; one that fails ends the others. Returns its place and exit status; 0, 0 where none has.

  Args:
    commands: scripts of this project, with their flags.
    environment: theirs; None: this process'.
    quiet: files for the output of all commands but the first, which is shown as it comes.

  Raises:
    StoppedError: SIGTERM has reached this process, or a command; all have ended.
  """
  stopped = False
  children = []
  for command, output in zip(commands, [None, *quiet], strict=True):
    errors = subprocess.STDOUT if output else None
    children.append(
      subprocess.Popen([sys.executable, *command], env=environment, stdout=output, stderr=errors)
    )

  def end_all() -> None:
    for child in children:
      if child.poll() is None:
        child.terminate()

  def stop(*_: object) -> None:
    nonlocal stopped
    stopped = True
    end_all()

  before = signal.signal(signal.SIGTERM, stop)
  try:
    place, status = _wait(children)
    end_all()
    for child in children:
      child.wait()
  except KeyboardInterrupt:  # Control-C reaches the children as well.
    for child in children:
      child.wait()
    raise
  finally:
    signal.signal(signal.SIGTERM, before)
  if stopped or status in _STOPPED:
    raise StoppedError
  return place, status


def _wait(children: Sequence[subprocess.Popen[bytes]]) -> tuple[int, int]:
  """Until all have ended well (0, 0), or one has not: its place and status."""
  while True:
    statuses = [child.poll() for child in children]
    failed = next(((place, status) for place, status in enumerate(statuses) if status), None)
    if failed or None not in statuses:
      return failed or (0, 0)
    time.sleep(0.1)
