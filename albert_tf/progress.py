"""How far a long work is: a bar on a terminal, a line now and then elsewhere. A leaf.

A bar in a file is thousands of lines that overwrite each other nowhere; there a line every half minute says the same.
"""

from collections.abc import Iterable, Iterator
import datetime
import sys
import time
from typing import Any, TextIO, TypeVar

LINE_SECONDS = 30.0  # Between two lines.
_BAR_AFTER_SECONDS = 1.0  # Short works need no bar.
_Item = TypeVar("_Item")


def bar(total: int, *, desc: str, unit: str, stream: TextIO | None = None) -> Any:
  """What shows a work of `total` units on standard error; a context manager with `update(units)` and `n`.

  Args:
    total: units.
    desc: what is done.
    unit: "B" or a plural, such as "files".
    stream: instead of standard error.
  """
  stream = stream or sys.stderr
  if not stream.isatty():
    return _Lines(total, desc, unit, stream)
  import tqdm  # Not before there is work.

  return tqdm.tqdm(
    total=total,
    desc=desc,
    unit=unit if unit == "B" else f" {unit}",
    unit_scale=unit == "B",
    file=stream,
    delay=_BAR_AFTER_SECONDS,
    dynamic_ncols=True,
    leave=False,
  )


def track(items: Iterable[_Item], total: int, *, desc: str, unit: str, shown: bool = True) -> Iterator[_Item]:
  """The items, with a `bar` unless it is not `shown`."""
  if not shown:
    yield from items
    return
  with bar(total, desc=desc, unit=unit) as progress:
    for item in items:
      yield item
      progress.update(1)


class _Lines:
  def __init__(self, total: int, desc: str, unit: str, stream: TextIO):
    self.n = 0
    self._total, self._desc, self._stream = total, desc, stream
    scales: tuple[tuple[float, str], ...] = ((1e9, "GB"), (1e6, "MB")) if unit == "B" else ()
    self._scale, self._unit = next((s for s in scales if total >= s[0]), (1.0, unit))
    self._began = self._said = time.monotonic()

  def update(self, count: int) -> None:
    self.n += count
    now = time.monotonic()
    if now - self._said < LINE_SECONDS or not self.n:
      return
    self._said = now
    left = datetime.timedelta(seconds=round((now - self._began) * (self._total - self.n) / self.n))
    share = f" ({self.n / self._total:.0%}), about {left} left" if self.n <= self._total else ""
    done, total = (f"{value / self._scale:,.{int(self._scale > 1)}f}" for value in (self.n, self._total))
    print(f"{self._desc}: {done} of {total} {self._unit}{share}", file=self._stream, flush=True)

  def close(self) -> None:
    """As a bar has it; nothing is left to say."""

  def __enter__(self) -> "_Lines":
    return self

  def __exit__(self, *error: object) -> None:
    self.close()
