"""Processes that end with the one that started them, however that ends: a killed test run leaves none behind."""

from collections.abc import Mapping, Sequence
import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
from typing import Any

_PR_SET_PDEATHSIG = 1  # Kept over exec. Linux alone; elsewhere children live as long as they like.
_FOLLOW = (
  "import ctypes, os, sys\n"
  "if sys.platform == 'linux':\n"
  f"  ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {signal.SIGKILL:d})\n"
  "if os.getppid() == int(sys.argv[1]):\n"  # Else it has ended meanwhile.
  "  os.execv(sys.argv[2], sys.argv[2:])\n"
)


def ending_with_this(words: Sequence[str]) -> list[str]:
  """A command line, its program by full path, for a `Popen` from the main thread: the same process id runs `words`."""
  return [sys.executable, "-I", "-S", "-c", _FOLLOW, str(os.getpid()), *words]


def start_python(
  *words: str, folder: str | os.PathLike[str] | None = None, **environment: str
) -> subprocess.Popen[str]:
  """Python with these arguments, in a folder, and with these variables besides those of this process."""
  return subprocess.Popen(
    ending_with_this([sys.executable, *words]),
    env={**os.environ, **environment},
    cwd=folder,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def end_with_parent() -> None:
  """For a process that was forked."""
  if sys.platform == "linux":
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def words(flags: Mapping[str, Any]) -> list[str]:
  """The flags of a command line; `True` as a value is a flag without one."""
  return [f"--{name}" if value is True else f"--{name}={value}" for name, value in flags.items()]


def flags_of(command_line: str) -> dict[str, str | bool]:
  """The reverse of `words`, of a text as a shell has it."""
  parts = [word.removeprefix("--").partition("=") for word in command_line.split()]
  return {name: value if equals else True for name, equals, value in parts}


def free_addresses(count: int) -> list[str]:
  """Different ones of this machine, at which nothing listens yet."""
  with contextlib.ExitStack() as stack:  # All at once, so that no port is given twice.
    sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
    for each in sockets:
      each.bind(("127.0.0.1", 0))
    return [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
