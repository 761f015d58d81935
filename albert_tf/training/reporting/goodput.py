"""Where every second since the first start of a run went, over all its lives."""

from collections.abc import Mapping
import dataclasses
import datetime
import json
import time
from typing import Any

from albert_tf import files
from albert_tf.errors import UserError

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
_LOCAL_SECONDS, _REMOTE_SECONDS = 10.0, 60.0  # Between two writes of the record.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
  """What the run's devices could do and cost; what is not known is 0 and left out of reports.

  Attributes:
    model_flops_per_example: operations of one example in a training step.
    peak_flops: FLOP/s of all devices together.
    usd_per_hour: price of all devices together.
  """

  model_flops_per_example: float = 0.0
  peak_flops: float = 0.0
  usd_per_hour: float = 0.0


class Goodput:
  """A clock that gives every second to one of `CATEGORIES`, and a file that outlives the process.

  Args:
    path: of goodput.json; None on a process that writes none.
    began: when this life began, seconds since 1970.
    at_checkpoint: the report of the step this life starts from, with `seconds_step` and `seconds_input`; empty at
      step 0; None where it is not known. What earlier lives have spent on updates beyond it was lost.

  Raises:
    UserError: goodput.json is damaged.

  Example:
    >>> goodput = Goodput("run/goodput.json", began=time.time(), at_checkpoint={})
    >>> goodput.mark("restart")  # All since `began`.
    >>> seconds = goodput.mark("step")
  """

  def __init__(
    self,
    path: str | None,
    *,
    began: float,
    at_checkpoint: Mapping[str, Any] | None,
    usd_per_hour: float = 0.0,
  ):
    self._path = path
    self._usd_per_hour = usd_per_hour
    self.seconds = dict.fromkeys(CATEGORIES, 0.0)
    self.lives, self._started = 1, began
    now = time.time()
    self._last = time.monotonic() - max(0.0, now - began)
    self._last_written = -float("inf")
    before = _read(path) if path is not None else None
    if before is None:
      return
    self.seconds |= before["seconds"]
    self.seconds["down"] += max(0.0, began - before["updated"])
    self.lives, self._started = before["lives"] + 1, before["started"]
    for name in ("step", "input") if at_checkpoint is not None else ():
      kept = at_checkpoint.get(PREFIX + name, self.seconds[name]) if at_checkpoint else 0.0
      lost = max(0.0, self.seconds[name] - kept)
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
  def total(self) -> float:
    """Seconds since the first start, as far as marked."""
    return sum(self.seconds.values())

  @property
  def running(self) -> float:
    """Seconds of `total` that a process ran."""
    return self.total - self.seconds["down"]

  def fields(self) -> dict[str, float]:
    """For a report: seconds of each category since the first start, `goodput`, and money where there is a price."""
    values = {PREFIX + name: round(seconds, 3) for name, seconds in self.seconds.items()}
    values["goodput"] = self.seconds["step"] / max(self.total, 1e-9)
    if self._usd_per_hour:
      values["usd"] = self._usd
    return values

  @property
  def _usd(self) -> float:
    return self.running / 3600 * self._usd_per_hour

  def write(self, *, now: bool = False) -> None:
    """Writes the record; unless `now`, only when the last writing is some seconds old."""
    if self._path is None:
      return
    interval = _REMOTE_SECONDS if files.is_remote(self._path) else _LOCAL_SECONDS
    if not now and self._last - self._last_written < interval:
      return
    self._last_written = self._last
    record = {
      "lives": self.lives,
      "started": self._started,
      "updated": time.time() - (time.monotonic() - self._last),
      "seconds": self.seconds,
    }
    with files.atomic_writer(self._path, "w") as stream:
      stream.write(json.dumps(record, indent=2) + "\n")

  def table(self, *, model_flops: float, peak_flops: float) -> str:
    """What is shown at the end: a line for each category, the largest first.

    Args:
      model_flops: operations of all updates the weights have.
      peak_flops: FLOP/s of all devices together; 0 leaves their utilization out.
    """
    lines = [
      f"{_clock(self.total)} since the first start, in {self.lives} {'life' if self.lives == 1 else 'lives'}:"
    ]
    for name, seconds in sorted(self.seconds.items(), key=lambda item: -item[1]):
      if seconds >= 0.0005 * self.total:
        lines.append(f"  {name:<10} {_clock(seconds):>17} {seconds / self.total:6.1%}  {CATEGORIES[name]}")
    if peak_flops and self.seconds["step"]:
      share = model_flops / (self.seconds["step"] * peak_flops)
      lines.append(
        f"  {share:.1%} of the chips' peak in updates, {share * self.seconds['step'] / self.total:.1%} in all"
      )
    if self._usd_per_hour:
      lines.append(f"  {self._usd:,.2f} US dollars, without the time that no process ran")
    return "\n".join(lines)


def _read(path: str) -> dict[str, Any] | None:
  if not files.exists(path):
    return None
  try:
    record = json.loads(files.read_bytes(path))
    seconds = {name: float(record["seconds"].get(name, 0.0)) for name in CATEGORIES}
    times = {name: float(record[name]) for name in ("started", "updated")}
    return {"lives": int(record["lives"]), "seconds": seconds, **times}
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise UserError(
      f"{GOODPUT_FILE} must be one that run_pretrain.py wrote. Received: {path} ({error}). Remove it to count from now."
    ) from error


def _clock(seconds: float) -> str:
  return str(datetime.timedelta(seconds=round(seconds)))
