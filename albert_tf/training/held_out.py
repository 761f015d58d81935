"""The held-out records of a run, by the named source of the corpus that they are of."""

from collections.abc import Mapping, Sequence
import functools
import os
from typing import NamedTuple

from albert_tf.pipelines.record_index import RecordIndex
from albert_tf.records import Manifest


class HeldOut(NamedTuple):
  """The held-out records of one source; its name is empty where none is named.

  Attributes:
    records: where they lie.
    num_steps: global batches that an evaluation takes of them.
  """

  source: str
  records: RecordIndex
  num_steps: int


def files_by_source(paths: Sequence[str]) -> dict[str, list[str]]:
  """Held-out files by source, as the manifests beside them tell; empty files are left out where any has records."""
  describe = functools.cache(_described)
  found: dict[str, list[str]] = {}
  for path in paths:
    source, num_records = describe(os.path.dirname(path)).get(os.path.basename(path), ("", None))
    if num_records != 0:  # Unknown, or some.
      found.setdefault(source, []).append(path)
  return found or ({"": list(paths)} if paths else {})


def _described(directory: str) -> dict[str, tuple[str, int]]:
  """Name → source and number of records, of the files in a directory's manifest."""
  manifest = Manifest.find(directory)
  return {file.name: (file.source, file.num_records) for file in manifest.files} if manifest else {}


def share_steps(num_records: Mapping[str, int], *, batch_size: int, at_most: int) -> dict[str, int]:
  """Batches of each source: all of its records, or where that is too much its share of `at_most`, and one at least."""
  steps = {source: -(-count // batch_size) for source, count in num_records.items()}
  total = sum(steps.values())
  if total <= at_most:
    return steps
  return {source: max(1, count * at_most // total) for source, count in steps.items()}
