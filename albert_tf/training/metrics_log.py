"""metrics.jsonl: one JSON object a report, no step twice, whole after any kill."""

from collections.abc import Mapping
import json
import math
from typing import Any

from albert_tf import files
from albert_tf.errors import UserError


class MetricsLog:
  """The reports of a run, in memory and on disk.

  Attributes:
    dropped: reports found on disk that lie beyond the resumed step.
  """

  def __init__(self, path: str, *, start_step: int = 0):
    """Opens the log and forgets what a killed run reported beyond its last checkpoint.

    Args:
      path: of metrics.jsonl; created by the first report.
      start_step: completed steps of the checkpoint the run starts from; later reports are removed.

    Raises:
      UserError: a line other than the last is not a report.
    """
    self.path = path
    found, torn = _read(path) if files.exists(path) else ([], False)
    kept = [record for record in found if record["step"] <= start_step]
    self._records = {(record["step"], record["split"]): record for record in kept}
    self.dropped = len(found) - len(self._records)
    if self.dropped or torn:
      self._rewrite()

  @property
  def records(self) -> list[dict[str, Any]]:
    """All reports, oldest first."""
    return list(self._records.values())

  def append(self, step: int, split: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Adds a report, in place of an earlier one of the same step and split; returns the record."""
    record = {"step": int(step), "split": split} | {key: _plain(value) for key, value in values.items()}
    earlier = self._records.pop((record["step"], split), None)
    self._records[record["step"], split] = record
    if earlier is not None or files.is_remote(self.path):  # Object stores cannot append.
      self._rewrite()
    else:
      with open(self.path, "a", encoding="utf-8") as stream:
        stream.write(json.dumps(record) + "\n")
    return record

  def _rewrite(self) -> None:
    with files.atomic_writer(self.path, "w") as stream:
      stream.writelines(json.dumps(record) + "\n" for record in self.records)


def read_metrics(path: str) -> list[dict[str, Any]]:
  """The reports of a metrics.jsonl, oldest first; an unfinished last line is left out.

  Raises:
    UserError: a line other than the last is not a report.
  """
  return _read(path)[0]


def _read(path: str) -> tuple[list[dict[str, Any]], bool]:
  """Reports, and whether the last line was cut off."""
  with files.open_binary(path) as stream:
    content = stream.read()
  records = []
  *lines, rest = content.split(b"\n")
  for number, line in enumerate(lines, 1):
    try:
      record = json.loads(line)
      record["step"], record["split"]
    except (ValueError, KeyError, TypeError) as error:
      raise UserError(
        f"Every line of a metrics log must be a report. Received: line {number} of {path} is not. "
        "Restore the file, or move it away to start a new log."
      ) from error
    records.append(record)
  return records, bool(rest)


def _plain(value: Any) -> Any:
  """A JSON value; what is not finite becomes null, since JSON has no word for it."""
  if isinstance(value, bool | str | int) or value is None:
    return value
  number = float(value)
  return number if math.isfinite(number) else None
