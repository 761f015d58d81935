"""A child process that reads files and may crash. It starts without what only the fuzzers need."""

from collections.abc import Callable
from concurrent import futures
import multiprocessing
import pathlib
import signal
from typing import Any

from albert_tf.errors import UserError

# What a case may take in a child; usually milliseconds, but a machine may be busy.
_SECONDS, _MEMORY = 60, 10 << 30


class Child:
  """A process that reads files. If it crashes, that is a found case, and the next call starts a new process."""

  pool: futures.ProcessPoolExecutor | None = None

  def __call__(self, read: Callable[..., None], path: pathlib.Path, *more: Any) -> None:
    """Calls `read(path, *more)`, which must return or raise `UserError` with its name. Bounds time and memory."""
    if self.pool is None:
      spawn = multiprocessing.get_context("spawn")
      self.pool = futures.ProcessPoolExecutor(1, mp_context=spawn, initializer=_bound)
    try:
      self.pool.submit(_timed, read, str(path), *more).result()
    except UserError as error:
      names = (path.name, str(path.with_suffix("")))  # Or a checkpoint's prefix.
      if not any(name in str(error) for name in names):
        raise AssertionError("no file is named") from error
    except futures.BrokenExecutor:
      self.pool = None
      raise


def _bound() -> None:
  import resource

  resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, resource.RLIM_INFINITY))
  from albert_tf.cli.commands import load_tensorflow

  load_tensorflow()  # Quicker than TensorFlow with all that it would take along.


def _timed(read: Callable[..., None], *arguments: Any) -> None:
  signal.alarm(_SECONDS)  # It ends the process.
  try:
    read(*arguments)
  finally:
    signal.alarm(0)
