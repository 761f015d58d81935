"""metrics.jsonl: one JSON object a report, no step twice, complete after any kill."""

from collections.abc import Mapping
import json
import math
from typing import Any

from albert_tf import files
from albert_tf.errors import UserError


class MetricsLog:
  """The reports of a run, in memory and on disk.

  Locally every report is appended to metrics.jsonl. Object stores cannot append: there `flush`, which is called before
  each checkpoint, writes the small file anew. What a killed run reported beyond `start_step`, that of its last
  checkpoint, is forgotten.

  Attributes:
    dropped: how many reports that were.
  """

  def __init__(self, path: str, *, start_step: int = 0):
    self.path = path
    found, is_torn = _read(path)
    self._records = {key: record for key, record in found.items() if record["step"] <= start_step}
    self.dropped = len(found) - len(self._records)
    self._unwritten = False
    if self.dropped or is_torn:
      self._rewrite()

  @property
  def records(self) -> list[dict[str, Any]]:
    """All reports, oldest first."""
    return list(self._records.values())

  def find(self, step: int, split: str) -> dict[str, Any] | None:
    """The report of a step, if there is one."""
    return self._records.get((step, split))

  def append(self, step: int, split: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Adds a report and returns the record; of two of one step and split the later counts."""
    record = {"step": int(step), "split": split} | {key: _plain(value) for key, value in values.items()}
    self._records[_key(record)] = record
    if files.is_remote(self.path):
      self._unwritten = True
    else:
      with open(self.path, "a", encoding="utf-8") as stream:
        stream.write(json.dumps(record) + "\n")
    return record

  def flush(self) -> None:
    """Returns when every report is on the disk or in the bucket; call it before a checkpoint, and at the end."""
    if self._unwritten:
      self._rewrite()
    elif self._records and not files.is_remote(self.path):
      files.sync(self.path)

  close = flush

  def _rewrite(self) -> None:
    with files.atomic_writer(self.path, "w") as stream:
      stream.write("".join(json.dumps(record) + "\n" for record in self.records))
    self._unwritten = False


def read_metrics(path: str) -> list[dict[str, Any]]:
  """The reports of a metrics.jsonl, oldest first; an unfinished last line is left out."""
  return list(_read(path)[0].values())


def _key(record: Mapping[str, Any]) -> tuple[int, str]:
  return record["step"], record["split"]


def _read(path: str) -> tuple[dict[tuple[int, str], dict[str, Any]], bool]:
  """The reports, the later of a step and split; and whether the last line was cut off."""
  records: dict[tuple[int, str], dict[str, Any]] = {}
  *lines, rest = files.read_bytes(path).split(b"\n") if files.exists(path) else [b""]
  for number, line in enumerate(lines, 1):
    try:
      record = json.loads(line)
      records[_key(record)] = record
    except (ValueError, KeyError, TypeError) as error:
      raise UserError(
        f"Every line of a metrics log must be a report. Received: line {number} of {path} is not. "
        "Restore the file, or move it away to start a new log."
      ) from error
  return records, bool(rest)


def _plain(value: Any) -> Any:
  """A JSON value; what is not finite becomes null, since JSON has no word for it."""
  if isinstance(value, bool | str | int) or value is None:
    return value
  number = float(value)
  return number if math.isfinite(number) else None
