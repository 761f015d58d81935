"""Where every record lies, in blocks: what makes the input seekable."""

import array
from collections.abc import Callable, Sequence
import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import os
import struct
from typing import Literal, NamedTuple

import numpy as np

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.records.shard_index import (
  BLOCK_RECORDS,
  DIGEST_BYTES,
  ShardIndex,
  load_shard_index,
  scan_shard,
)
from albert_tf.records.tfrecord import masked_crc32c, walk_records

OnBadRecord = Literal["error", "skip"]
Notice = Callable[[str], None]

_PARALLEL_FILES = 32  # A bucket answers each request only after a while.


@dataclasses.dataclass(frozen=True)
class RecordIndex:
  """Byte positions of blocks of at most `BLOCK_RECORDS` successive records.

  The records of all files form one list. A stretch is a part of one file with no record left out: a file
  without damage is one stretch. Blocks begin anew with every stretch; its marks are the first bytes of
  its blocks and the byte behind the last.

  Attributes:
    paths: file of each stretch.
    first_record: int64 `[stretches + 1]`, number of its first record in the list; at the end that of all records.
    first_mark: int64 `[stretches]`, place of its first mark.
    marks: int64 `[blocks + stretches]`, bytes.
    num_skipped: damaged records left out.
    fingerprint: hash of names, sizes and counts.
    content: hash of all records' checksums; equal records in equal order, equal content.
  """

  paths: tuple[str, ...]
  first_record: np.ndarray
  first_mark: np.ndarray
  marks: np.ndarray
  num_skipped: int
  fingerprint: str
  content: str

  @property
  def num_records(self) -> int:
    return int(self.first_record[-1])

  @property
  def num_bytes(self) -> int:
    """Of all records with their frames."""
    last = np.append(self.first_mark[1:], len(self.marks)) - 1
    return int((self.marks[last] - self.marks[self.first_mark]).sum())


class DataIdentity(NamedTuple):
  """What decides which example is in which step, besides seed and batch: a run keeps it."""

  fingerprint: str
  content: str
  order_version: int


class _Stretch(NamedTuple):
  """Successive whole records of one file.

  Attributes:
    offsets: int64 `[blocks]`, byte where every 64th starts, the first included.
    end: byte behind the last.
    num_records: how many.
  """

  offsets: np.ndarray
  end: int
  num_records: int


class _WholeRecords(NamedTuple):
  """The records of one file whose checksums fit.

  Attributes:
    num_bytes: size of the file.
    stretches: one for a file without damage.
    num_damaged: records left out; a damaged length hides all that follows and counts as one.
    digest: as a `ShardIndex` has it, of the whole records.
  """

  num_bytes: int
  stretches: list[_Stretch]
  num_damaged: int
  digest: bytes


def _find_whole_records(path: str) -> _WholeRecords:
  """Reads all of `path`; behind a damaged length nothing can be found again, so the file ends there."""
  digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
  stretches: list[_Stretch] = []
  offsets, end, count, num_damaged = array.array("q"), 0, 0, 0

  def close() -> None:
    if count:
      stretches.append(_Stretch(np.array(offsets, np.int64), end, count))

  for record in walk_records(path):
    if record.fault:
      close()
      offsets, count, num_damaged = array.array("q"), 0, num_damaged + 1
      continue
    if count % BLOCK_RECORDS == 0:
      offsets.append(record.start)
    digest.update(struct.pack("<I", masked_crc32c(record.data)))
    end, count = record.end, count + 1
  close()
  return _WholeRecords(files.size(path), stretches, num_damaged, digest.digest())


def _undamaged(index: ShardIndex) -> _WholeRecords:
  whole = _Stretch(index.offsets, index.num_bytes, index.num_records)
  return _WholeRecords(index.num_bytes, [whole] if index.num_records else [], 0, index.digest)


def _walk(path: str, *, write: bool) -> ShardIndex:
  index = scan_shard(path)
  if write:
    with contextlib.suppress(OSError, UserError):  # Records that may only be read are walked at every start.
      index.save(path)
  return index


def _look_at(
  paths: Sequence[str], on_bad_record: OnBadRecord, write: bool, notice: Notice
) -> list[_WholeRecords]:
  with concurrent.futures.ThreadPoolExecutor(_PARALLEL_FILES) as pool:
    if on_bad_record == "skip":
      return list(pool.map(_find_whole_records, paths))
    found = dict(zip(paths, pool.map(load_shard_index, paths), strict=True))
    missing = [path for path, index in found.items() if index is None]
    if missing:
      notice(f"{len(missing):,} of {len(paths):,} record files have no index beside them: reading them once")
    found |= zip(missing, pool.map(functools.partial(_walk, write=write), missing), strict=True)
    return [_undamaged(index) for path in paths if (index := found[path]) is not None]


def build_record_index(
  paths: Sequence[str],
  *,
  on_bad_record: OnBadRecord = "error",
  write: bool = True,
  notice: Notice = lambda text: None,
) -> RecordIndex:
  """Reads the indexes beside the files; walks only the files that have none (with "skip", all of all files).

  Args:
    paths: TFRecord files; their order is part of the data order.
    on_bad_record: "error" raises where a file that is walked has a damaged length or is truncated; "skip"
      verifies every checksum and leaves damaged records out.
    write: leave an index beside the files that had none, where that can be written. One process of a run does.
    notice: told before files are walked, which takes a while.

  Raises:
    UserError: no record at all, or damage, with the file and the record.
  """
  shards = _look_at(paths, on_bad_record, write, notice)
  stretches = [
    (path, stretch) for path, shard in zip(paths, shards, strict=True) for stretch in shard.stretches
  ]
  if not stretches:
    raise UserError(
      f"The record files must hold at least one record. Received: {len(paths)} files with none, the first "
      f"{paths[0]}. Check that create_pretraining_data.py finished."
    )
  counts = np.array([stretch.num_records for _, stretch in stretches], np.int64)
  marks = [np.append(stretch.offsets, stretch.end) for _, stretch in stretches]
  described = [(os.path.basename(path), shard.num_bytes) for path, shard in zip(paths, shards, strict=True)]
  content = hashlib.sha256(b"".join(shard.digest for shard in shards))
  return RecordIndex(
    paths=tuple(path for path, _ in stretches),
    first_record=np.append(0, np.cumsum(counts)),
    first_mark=np.cumsum([0, *map(len, marks[:-1])], dtype=np.int64),
    marks=np.concatenate(marks),
    num_skipped=sum(shard.num_damaged for shard in shards),
    fingerprint=hashlib.sha256(repr((described, counts.tolist())).encode()).hexdigest()[:16],
    content=content.hexdigest()[:16],
  )
