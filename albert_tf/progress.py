"""What a person sees of long work: bars of progress, and no messages of native libraries. A leaf."""

from collections.abc import Iterable, Iterator
import contextlib
import os
import subprocess
import sys
from typing import Any, TextIO, TypeVar

_Item = TypeVar("_Item")
# Prints its input unless that ends with a zero byte. It outlives a process that a native library aborts.
_SHOW_UNLESS_DONE = (
  "import sys; kept = sys.stdin.buffer.read(); kept.endswith(b'\\0') or sys.stderr.buffer.write(kept)"
)


def bar(
  total: int, *, desc: str, unit: str, items: Iterable[Any] | None = None, stream: TextIO | None = None
) -> Any:
  """A `tqdm` bar on standard error, or on `stream`, around the `items`; `unit` is "B" or a plural, such as "files"."""
  import tqdm  # Not before there is work.

  stream = stream or sys.stderr
  terminal = stream.isatty()
  line = "{desc}: {n_fmt}/{total_fmt}{unit} ({percentage:.0f}%), {remaining} left\n"
  return tqdm.tqdm(
    items,
    total=total,
    desc=desc,
    unit=unit if unit == "B" else f" {unit}",
    unit_scale=unit == "B",
    file=stream,
    delay=1 if terminal else 30,  # Short works need no bar.
    mininterval=0.1 if terminal else 30,
    bar_format=None if terminal else line,
    dynamic_ncols=terminal,
    leave=False,
  )


def track(items: Iterable[_Item], total: int, *, desc: str, unit: str, shown: bool = True) -> Iterable[_Item]:
  """The items, with a `bar` unless it is not `shown`."""
  return bar(total, desc=desc, unit=unit, items=items) if shown else items


@contextlib.contextmanager
def native_stderr_kept_back() -> Iterator[None]:
  """Holds output to file descriptor 2, and shows it only if the body fails or ends the process."""
  sys.stderr.flush()
  terminal = os.dup(2)
  shower = subprocess.Popen([sys.executable, "-ISc", _SHOW_UNLESS_DONE], stdin=subprocess.PIPE)
  assert shower.stdin is not None
  os.dup2(shower.stdin.fileno(), 2)
  shower.stdin.close()
  try:
    yield
    sys.stderr.flush()
    os.write(2, b"\0")
  finally:
    sys.stderr.flush()
    os.dup2(terminal, 2)  # The end of what the other process reads.
    os.close(terminal)
    shower.wait()
