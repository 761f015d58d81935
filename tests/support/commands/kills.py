"""When a process is killed: in turn at a random moment, and during a write."""

from collections.abc import Callable
import os
import random
import signal
import time
from typing import Any


class Killer:
  """Kills one life of a command after the other.

  Args:
    seed: of the moments.
    writes: function that gives the set of the writes so far.
    until_a_write: seconds from the start of a life; learned from the lives that reach a write.
    into_a_write: a kill during a write comes after at most so many seconds of it.
  """

  def __init__(
    self, seed: int, writes: Callable[[], set[Any]], *, until_a_write: float, into_a_write: float
  ):
    self._random = random.Random(seed)
    self._writes, self._until_a_write, self._into_a_write = writes, until_a_write, into_a_write
    self._ended = False  # By itself, the last life: the next one may not write either.
    self.made = self.in_writes = 0  # Kills; and those of lives that had begun a write.

  def kill(self, pid: int, ended: Callable[[], bool]) -> bool:
    """Kills a process that has just started; False if it ended before its moment."""
    before, started = self._writes(), time.monotonic()
    in_write = self.made % 2 == 1 and not self._ended
    moment = self._random.uniform(0.0, 1.2) * self._until_a_write
    while not (self._writes() - before if in_write else time.monotonic() - started > moment):
      if ended():
        self._ended = True
        return False
      time.sleep(0.001)
    if in_write:
      self._until_a_write = time.monotonic() - started
      time.sleep(self._random.uniform(0.0, self._into_a_write))
    os.kill(pid, signal.SIGKILL)
    self._ended = False
    self.made += 1
    self.in_writes += bool(self._writes() - before)
    return True
