"""metrics.jsonl: one JSON object a report, no step twice, whole after any kill; in a bucket it grows by parts."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
import json
import math
import os
import re
import time
from typing import Any

from albert_tf import files
from albert_tf.errors import UserError

_PART = re.compile(r"part-\d{8}\.jsonl(\.tmp-.*)?")  # A kill may leave one that is not whole.
_PART_SECONDS = 60.0  # Between two parts, unless `flush` is called.
_MAX_PARTS = 200  # Then they join metrics.jsonl; a month of minutes uploads some GB in all.


class MetricsLog:
  """The reports of a run, in memory and on disk.

  Locally every report is appended to metrics.jsonl. Object stores cannot append: there reports gather for a minute
  or until `flush` and become `metrics/part-00000000.jsonl` and so on, each written once. They join metrics.jsonl when
  the log is opened, closed, or has many.

  Attributes:
    dropped: reports found on disk that lie beyond the resumed step.
  """

  def __init__(self, path: str, *, start_step: int = 0):
    """Opens the log and forgets what a killed run reported beyond its last checkpoint, that of `start_step`.

    Raises:
      UserError: a line other than the last of a file is not a report.
    """
    self.path = path
    found, torn = _read_all(path)
    self._records = {key: record for key, record in found.items() if record["step"] <= start_step}
    self.dropped = len(found) - len(self._records)
    self._unwritten: list[dict[str, Any]] = []
    self._next_part, self._last_flush = 0, time.monotonic()
    if self.dropped or torn or _parts(path):
      self._rewrite()

  @property
  def records(self) -> list[dict[str, Any]]:
    """All reports, oldest first."""
    return list(self._records.values())

  def find(self, step: int, split: str) -> dict[str, Any] | None:
    """The report of a step, if there is one."""
    return self._records.get((step, split))

  def append(self, step: int, split: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Adds a report, in place of an earlier one of the same step and split; returns the record."""
    record = {"step": int(step), "split": split} | {key: _plain(value) for key, value in values.items()}
    earlier = self._records.pop(_key(record), None)
    self._records[_key(record)] = record
    if files.is_remote(self.path):
      self._unwritten.append(record)
      if time.monotonic() - self._last_flush > _PART_SECONDS:
        self.flush()
    elif earlier is not None:
      self._rewrite()
    else:
      with open(self.path, "a", encoding="utf-8") as stream:
        stream.write(json.dumps(record) + "\n")
    return record

  def flush(self) -> None:
    """Returns when every report is on the disk or in the bucket; call it before a checkpoint."""
    self._last_flush = time.monotonic()
    if not files.is_remote(self.path):
      if self._records:
        files.sync(self.path)
    elif self._unwritten:
      folder = _parts_directory(self.path)
      files.makedirs(folder)
      _write(os.path.join(folder, f"part-{self._next_part:08d}.jsonl"), self._unwritten)
      self._unwritten = []
      self._next_part += 1
      if self._next_part >= _MAX_PARTS:
        self._rewrite()

  def close(self) -> None:
    """Leaves metrics.jsonl alone, with every report in it."""
    if self._unwritten or self._next_part:
      self._rewrite()

  def _rewrite(self) -> None:
    """One file of all reports; then the parts go. Killed in between, the parts say the same again."""
    _write(self.path, self.records)
    self._unwritten, self._next_part = [], 0
    with ThreadPoolExecutor(8) as pool:  # A bucket takes its time for each.
      list(pool.map(files.remove, _parts(self.path)))


def read_metrics(path: str) -> list[dict[str, Any]]:
  """The reports of a metrics.jsonl and its parts, oldest first; an unfinished last line is left out.

  Raises:
    UserError: a line other than the last of a file is not a report.
  """
  return list(_read_all(path)[0].values())


def _key(record: Mapping[str, Any]) -> tuple[int, str]:
  return record["step"], record["split"]


def _parts_directory(path: str) -> str:
  return path.removesuffix(".jsonl")


def _parts(path: str) -> list[str]:
  folder = _parts_directory(path)
  return [os.path.join(folder, name) for name in files.listdir(folder) if _PART.fullmatch(name)]


def _read_all(path: str) -> tuple[dict[tuple[int, str], dict[str, Any]], bool]:
  """Reports of the file and its parts, the later of a step and split; and whether a last line was cut off."""
  records: dict[tuple[int, str], dict[str, Any]] = {}
  torn = False
  whole_parts = [part for part in _parts(path) if part.endswith(".jsonl")]
  for each in [path] * files.exists(path) + whole_parts:
    *lines, rest = files.read_bytes(each).split(b"\n")
    torn |= bool(rest)
    for number, line in enumerate(lines, 1):
      try:
        record = json.loads(line)
        records[_key(record)] = record
      except (ValueError, KeyError, TypeError) as error:
        raise UserError(
          f"Every line of a metrics log must be a report. Received: line {number} of {each} is not. "
          "Restore the file, or move it away to start a new log."
        ) from error
  return records, torn


def _write(path: str, records: list[dict[str, Any]]) -> None:
  with files.atomic_writer(path, "w") as stream:
    stream.write("".join(json.dumps(record) + "\n" for record in records))


def _plain(value: Any) -> Any:
  """A JSON value; what is not finite becomes null, since JSON has no word for it."""
  if isinstance(value, bool | str | int) or value is None:
    return value
  number = float(value)
  return number if math.isfinite(number) else None
