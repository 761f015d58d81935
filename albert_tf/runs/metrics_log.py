"""metrics.jsonl: one JSON object for each report, no step twice, complete after any kill."""

from collections.abc import Mapping
import json
import math
from typing import Any

from albert_tf import files, json_files
from albert_tf.errors import UserError

Report = dict[str, Any]  # A line of the file.


class MetricsLog:
  """The reports of a run, in memory and in a small file that is always rewritten as a whole.

  On a disk every report rewrites it; in a bucket only `flush` does. Reports of a killed run after
  `start_step`, the step of its last checkpoint, are dropped.
  """

  def __init__(self, path: str, *, start_step: int = 0):
    self.path = path
    stored = {(record["step"], record["split"]): record for record in read_metrics(path)}
    # The continued run makes the later updates again, and reports them again.
    self._records = {key: record for key, record in stored.items() if key[0] <= start_step}
    self._unwritten = self._records != stored
    self.flush()

  @property
  def records(self) -> list[Report]:
    """All reports, oldest first."""
    return list(self._records.values())

  def find(self, step: int, split: str) -> Report | None:
    """The report of a step, if there is one."""
    return self._records.get((step, split))

  def append(self, step: int, split: str, values: Mapping[str, Any]) -> Report:
    """Adds a report and returns its record; replaces an earlier one of the step and split."""
    record = {"step": int(step), "split": split} | {
      key: _plain(value) for key, value in values.items()
    }
    self._records[record["step"], split] = record
    self._unwritten = True
    # A bucket has no append: each report would upload the whole file.
    if not files.is_remote(self.path):
      self.flush()
    return record

  def flush(self) -> None:
    """Writes all reports to the disk or bucket; call it before a checkpoint, and at the end."""
    if self._unwritten:
      files.write_text(self.path, "".join(json.dumps(record) + "\n" for record in self.records))
      self._unwritten = False


def read_metrics(path: str) -> list[Report]:
  """The reports of a metrics.jsonl, oldest first; none without the file.

  Raises:
    UserError: a line is not a report.
  """
  if not files.exists(path):
    return []
  reports = []
  for number, line in enumerate(files.read_bytes(path).splitlines(), 1):
    try:
      reports.append(json_files.parse(line, f"line {number} of {path}", step=int, split=str))
    except UserError as error:
      raise UserError(f"{error} Or remove that line: a run goes on without the report.") from error
  return reports


def _plain(value: Any) -> Any:
  """A JSON value; non-finite numbers become null."""
  if isinstance(value, bool | str | int) or value is None:
    return value
  number = float(value)
  if not math.isfinite(number):  # JSON has no word for it.
    return None
  return number
