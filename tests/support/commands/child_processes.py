"""Processes that end with the one that started them, however that ends: a killed test run leaves none behind."""

from collections.abc import Sequence
import ctypes
import os
import signal
import sys

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


def end_with_parent() -> None:
  """For a process that was forked."""
  if sys.platform == "linux":
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
