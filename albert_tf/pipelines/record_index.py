"""Where every record lies, in blocks: what makes the input seekable."""

from collections.abc import Sequence
import dataclasses
import hashlib
import os
from typing import Literal

import numpy as np

from albert_tf import files as file_lib
from albert_tf.errors import UserError
from albert_tf.records import scan_record_offsets
from albert_tf.records.damage import find_whole_records

OnBadRecord = Literal["error", "skip"]

BLOCK_RECORDS = 64  # One contiguous read: about 200 kB at length 512, enough to hide a bucket's latency.


@dataclasses.dataclass(frozen=True)
class RecordIndex:
  """Byte positions of blocks of `BLOCK_RECORDS` successive records.

  The records of all files form one list; block b holds records
  `[b * BLOCK_RECORDS, (b + 1) * BLOCK_RECORDS)` of it, the last block what is left.
  A run is a stretch of one file with no record left out: a file without damage
  is one run. A block may span runs.

  Attributes:
    run_paths: file of each run.
    run_offsets: int64 `[runs]`, byte where each run starts.
    run_counts: int64 `[runs]`, records of each run.
    block_run: int64 `[blocks]`, run in which each block starts.
    block_offset: int64 `[blocks]`, byte of its first record in that run's file.
    block_skip: int64 `[blocks]`, records of that run before the block.
    num_records: records in all runs.
    num_skipped: damaged records left out.
    fingerprint: hash of names, sizes and counts; equal data, equal fingerprint.
  """

  run_paths: tuple[str, ...]
  run_offsets: np.ndarray
  run_counts: np.ndarray
  block_run: np.ndarray
  block_offset: np.ndarray
  block_skip: np.ndarray
  num_records: int
  num_skipped: int
  fingerprint: str

  @property
  def num_blocks(self) -> int:
    return len(self.block_run)

  @property
  def longest_block_span(self) -> int:
    """Most runs that one block touches."""
    last = np.minimum((np.arange(self.num_blocks) + 1) * BLOCK_RECORDS, self.num_records) - 1
    last_run = np.searchsorted(np.cumsum(self.run_counts), last, side="right")
    return int(np.max(last_run - self.block_run)) + 1


def build_record_index(paths: Sequence[str], *, on_bad_record: OnBadRecord = "error") -> RecordIndex:
  """Reads the record headers of all files (with "skip", the data too).

  Args:
    paths: TFRecord files; their order is part of the data order.
    on_bad_record: "error" raises at a damaged header or a truncated file; "skip"
      verifies every checksum and leaves damaged records out.

  Raises:
    UserError: no record at all, or damage, with the file and the record.
  """
  runs: list[tuple[str, np.ndarray]] = []  # (path, offsets of its records)
  num_skipped = 0
  for path in paths:
    if on_bad_record == "error":
      runs.append((path, scan_record_offsets(path)))
      continue
    whole = find_whole_records(path)
    num_skipped += whole.num_damaged
    breaks = np.flatnonzero(np.diff(whole.ordinals) != 1) + 1
    runs.extend((path, part) for part in np.split(whole.offsets, breaks))
  runs = [(path, offsets) for path, offsets in runs if len(offsets)]
  if not runs:
    raise UserError(
      f"The record files must hold at least one record. Received: {len(paths)} files with none, the first "
      f"{paths[0]}. Check that create_pretraining_data.py finished."
    )
  counts = np.array([len(offsets) for _, offsets in runs], np.int64)
  ends = np.cumsum(counts)
  first = np.arange(0, ends[-1], BLOCK_RECORDS, dtype=np.int64)
  block_run = np.searchsorted(ends, first, side="right").astype(np.int64)
  block_skip = first - (ends - counts)[block_run]
  block_offset = np.array([runs[r][1][s] for r, s in zip(block_run, block_skip, strict=True)], np.int64)
  described = [(os.path.basename(path), file_lib.size(path)) for path in paths]
  return RecordIndex(
    run_paths=tuple(path for path, _ in runs),
    run_offsets=np.array([offsets[0] for _, offsets in runs], np.int64),
    run_counts=counts,
    block_run=block_run,
    block_offset=block_offset,
    block_skip=block_skip,
    num_records=int(ends[-1]),
    num_skipped=num_skipped,
    fingerprint=hashlib.sha256(repr((described, counts.tolist())).encode()).hexdigest()[:16],
  )
