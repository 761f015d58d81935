"""What a person sees: bars of progress, tables, and no messages of native libraries. A leaf."""

from collections.abc import Iterable, Iterator, Sequence
import contextlib
import os
import subprocess
import sys
from typing import Any, TypeVar

_Item = TypeVar("_Item")


def bar(total: int, *, desc: str, unit: str, items: Iterable[Any] | None = None) -> Any:
  """A `tqdm` bar on standard error, around the `items`.

  In a log file each report is a line of its own, and there are few.

  Args:
    total: the number of units in all.
    desc: words before the bar.
    unit: "B" for bytes, or a plural, such as "files".
    items: what the bar is iterated over; None: its user calls `update`.
  """
  import tqdm  # Not before there is work.

  options: dict[str, Any] = {"unit": f" {unit}"}
  if unit == "B":
    options = {"unit": unit, "unit_scale": True}
  if sys.stderr.isatty():
    # Short works need no bar.
    options |= {"delay": 1, "mininterval": 0.1, "dynamic_ncols": True}
  else:
    line = "{desc}: {n_fmt}/{total_fmt}{unit} ({percentage:.0f}%), {remaining} left\n"
    options |= {"delay": 30, "mininterval": 30, "bar_format": line}
  return tqdm.tqdm(items, total=total, desc=desc, leave=False, **options)


def track(
  items: Iterable[_Item], total: int, *, desc: str, unit: str, shown: bool = True
) -> Iterable[_Item]:
  """The items, with a `bar` unless it is not `shown`."""
  if not shown:
    return items
  return bar(total, desc=desc, unit=unit, items=items)


def markdown_table(*lines: Sequence[object]) -> str:
  """A Markdown table; the first line is its header. Integers get commas: 11,683,584."""
  rows = []
  for line in lines:
    rows.append([_format_cell(cell) for cell in line])
  rows.insert(1, ["---"] * len(lines[0]))
  return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _format_cell(cell: object) -> str:
  if isinstance(cell, int):
    return f"{cell:,}"
  return str(cell)


# Prints its input unless that ends with a zero byte.
_SHOW_UNLESS_DONE = """
import sys
output = sys.stdin.buffer.read()
if not output.endswith(b"\\0"):
  sys.stderr.buffer.write(output)
"""


@contextlib.contextmanager
def native_stderr_kept_back() -> Iterator[None]:
  """Holds output to file descriptor 2, and shows it only if the body fails or ends the process."""
  # Native libraries write to the descriptor, past `sys.stderr`. Another process receives it, since
  # it outlives this one if a library aborts.
  sys.stderr.flush()
  terminal = os.dup(2)
  receiver = subprocess.Popen([sys.executable, "-ISc", _SHOW_UNLESS_DONE], stdin=subprocess.PIPE)
  assert receiver.stdin is not None
  os.dup2(receiver.stdin.fileno(), 2)
  receiver.stdin.close()
  try:
    yield
    sys.stderr.flush()
    os.write(2, b"\0")  # All is well: what was written is dropped.
  finally:
    sys.stderr.flush()
    # This closes the last writing end of the pipe, so that the receiver's input ends.
    os.dup2(terminal, 2)
    os.close(terminal)
    receiver.wait()
