"""How far a long work is: a bar on a terminal, a line every half minute in a file. A leaf."""

from collections.abc import Iterable, Iterator
import sys
from typing import Any, TextIO, TypeVar

_Item = TypeVar("_Item")


def bar(total: int, *, desc: str, unit: str, stream: TextIO | None = None) -> Any:
  """A `tqdm` bar on standard error, or on `stream`; `unit` is "B" or a plural, such as "files"."""
  import tqdm  # Not before there is work.

  stream = stream or sys.stderr
  terminal = stream.isatty()
  return tqdm.tqdm(
    total=total,
    desc=desc,
    unit=unit if unit == "B" else f" {unit}",
    unit_scale=unit == "B",
    file=stream,
    delay=1 if terminal else 30,  # Short works need no bar.
    mininterval=0.1 if terminal else 30,
    bar_format=None
    if terminal
    else "{desc}: {n_fmt}/{total_fmt}{unit} ({percentage:.0f}%), {remaining} left\n",
    dynamic_ncols=terminal,
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
