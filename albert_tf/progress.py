"""Progress of long work: a bar on a terminal, a line every half minute in a file. A leaf."""

from collections.abc import Iterable
import sys
from typing import Any, TextIO, TypeVar

_Item = TypeVar("_Item")


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
