"""Use of every second since the first start of a run, over all its restarts."""

from collections.abc import Mapping
import datetime
import time
from typing import Any

PREFIX = "seconds_"  # Of the keys in metrics.jsonl.
CATEGORIES = {
  "step": "updates that are in the weights",
  "input": "devices waiting for batches",
  "compile": "compiling, and the first update after each start",
  "evaluation": "held-out evaluation",
  "checkpoint": "copying weights and waiting for the disk",
  "report": "logs, curves, agreement of workers",
  "restart": "from each start to its first update",
  "lost": "from a checkpoint to the restart that restored it",
}


class Goodput:
  """A clock that gives every second to one of `CATEGORIES`.

  Args:
    began: start of this process, seconds since 1970.
    at_checkpoint: the report of the restored step, for the sums so far; empty at step 0.
  """

  def __init__(self, *, began: float, at_checkpoint: Mapping[str, Any]):
    self.seconds = {name: at_checkpoint.get(PREFIX + name, 0.0) for name in CATEGORIES}
    # What a killed process did after its last checkpoint is done again.
    saved_at = at_checkpoint.get("time", began)
    self.seconds["lost"] += max(0.0, began - saved_at)
    # The clock starts at the start of the process, a few seconds ago.
    self._last_mark = time.monotonic() - max(0.0, time.time() - began)

  def mark(self, category: str, *, waited: float = 0.0) -> float:
    """Adds the time since the last mark to a category, and returns it.

    `waited` seconds of it are added to "input" instead.
    """
    now = time.monotonic()
    seconds = now - self._last_mark
    self._last_mark = now
    # Two clocks measured them, and a share must not be negative.
    waited = min(waited, seconds)
    self.seconds[category] += seconds - waited
    self.seconds["input"] += waited
    return seconds

  def fields(self) -> dict[str, float]:
    """For a report: seconds of each category since the first start, `goodput`, and the time.

    The time is in seconds since 1970.
    """
    values = {PREFIX + name: seconds for name, seconds in self.seconds.items()}
    values["goodput"] = self.seconds["step"] / max(sum(self.seconds.values()), 1e-9)
    values["time"] = time.time()
    return values

  def table(self) -> str:
    """The table at the end of a run: a line for each category, the largest first."""
    total = sum(self.seconds.values())
    lines = [f"{_clock(total)} since the first start:"]
    for name in sorted(self.seconds, key=self.seconds.__getitem__, reverse=True):
      seconds = self.seconds[name]
      share = seconds / max(total, 1e-9)
      if share >= 0.0005:  # It would be shown as 0.0%.
        lines.append(f"  {name:<10} {_clock(seconds):>17} {share:6.1%}  {CATEGORIES[name]}")
    return "\n".join(lines)


def _clock(seconds: float) -> str:
  """Hours, minutes and seconds, such as 1:02:03."""
  return str(datetime.timedelta(seconds=round(seconds)))
