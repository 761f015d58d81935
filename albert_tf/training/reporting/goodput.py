"""Where every second since the first start of a run went, over all its lives."""

from collections.abc import Mapping
import datetime
import time
from typing import Any

from albert_tf import files

GOODPUT_FILE = "goodput.json"
PREFIX = "seconds_"  # Of the keys in metrics.jsonl.
CATEGORIES = {
  "step": "updates the weights have",
  "input": "devices waiting for batches",
  "compile": "compiling, and the first update of each life",
  "evaluation": "held-out evaluation",
  "checkpoint": "copying weights and waiting for the disk",
  "report": "logs, curves, agreement of workers",
  "restart": "start of each life until its first update",
  "lost": "updates made again after a kill",
  "down": "no process; a killed one's last seconds",
}
_WRITE_SECONDS = {False: 10.0, True: 60.0}  # Between two writes of the record; True: to a bucket.


class Goodput:
  """A clock that gives every second to one of `CATEGORIES`, and a file that outlives the process.

  Args:
    path: of goodput.json; None on a process that writes none.
    began: when this life began, seconds since 1970.
    at_checkpoint: the report of the step this life starts from; empty at step 0, None where it is not known. What
      earlier lives have spent on updates beyond it was lost.
  """

  def __init__(self, path: str | None, *, began: float, at_checkpoint: Mapping[str, Any] | None):
    self._path = path
    self.seconds = dict.fromkeys(CATEGORIES, 0.0)
    self.lives, self._started = 1, began
    self._last = time.monotonic() - max(0.0, time.time() - began)
    self._last_written = -float("inf")
    if path is None or not files.exists(path):
      return
    before = files.read_json(path)
    self.seconds |= before["seconds"]
    self.seconds["down"] += max(0.0, began - before["updated"])
    self.lives, self._started = before["lives"] + 1, before["started"]
    if at_checkpoint is None:
      return
    for name in ("step", "input"):
      lost = max(0.0, self.seconds[name] - at_checkpoint.get(PREFIX + name, 0.0))
      self.seconds[name] -= lost
      self.seconds["lost"] += lost

  def mark(self, category: str, *, waited: float = 0.0) -> float:
    """Gives the time since the last mark, which is returned, to a category; `waited` seconds of it to the input."""
    now = time.monotonic()
    seconds, self._last = now - self._last, now
    waited = min(waited, seconds)
    self.seconds[category] += seconds - waited
    self.seconds["input"] += waited
    return seconds

  @property
  def running(self) -> float:
    """Seconds since the first start that a process ran."""
    return sum(self.seconds.values()) - self.seconds["down"]

  def fields(self) -> dict[str, float]:
    """For a report: seconds of each category since the first start, and `goodput`."""
    values = {PREFIX + name: round(seconds, 3) for name, seconds in self.seconds.items()}
    return {**values, "goodput": self.seconds["step"] / max(sum(self.seconds.values()), 1e-9)}

  def write(self, *, now: bool = False) -> None:
    """Writes the record; unless `now`, only when the last writing is some seconds old."""
    if self._path is None:
      return
    if not now and self._last - self._last_written < _WRITE_SECONDS[files.is_remote(self._path)]:
      return
    self._last_written = self._last
    updated = time.time() - (time.monotonic() - self._last)
    record = {"lives": self.lives, "started": self._started, "updated": updated, "seconds": self.seconds}
    files.write_json(self._path, record)

  def table(self) -> str:
    """What is shown at the end: a line for each category, the largest first."""
    total = sum(self.seconds.values())
    lines = [
      f"{_clock(total)} since the first start, in {self.lives} {'life' if self.lives == 1 else 'lives'}:"
    ]
    for name, seconds in sorted(self.seconds.items(), key=lambda item: -item[1]):
      if seconds >= 0.0005 * total:
        lines.append(f"  {name:<10} {_clock(seconds):>17} {seconds / total:6.1%}  {CATEGORIES[name]}")
    return "\n".join(lines)


def _clock(seconds: float) -> str:
  return str(datetime.timedelta(seconds=round(seconds)))
