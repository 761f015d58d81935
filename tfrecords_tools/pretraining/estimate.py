"""Time and disk that records will take, measured on the beginning of the input before the work starts."""

from collections.abc import Iterable
import dataclasses
import os
import shutil
import time
from typing import NamedTuple

from albert_tf import files
from albert_tf.errors import UserError
from tfrecords_tools.pretraining.blocks import BlockMaker, BlockResult, read_blocks
from tfrecords_tools.pretraining.job import Job
from tfrecords_tools.pretraining.settings import PASSES_OF_READING

_WORTH_AN_ESTIMATE = 64 << 20  # Bytes of text times passes; fewer take seconds.
_SAMPLE_BYTES = 1 << 20
_SAMPLE_PASSES = 4  # At most: enough to outweigh the start of a measurement.
_CERTAIN_SHARE = (
  0.8  # Of the estimated bytes: the beginning of a corpus may be a little larger than the rest.
)


class Estimate(NamedTuple):
  """What the work on all of the text takes."""

  record_bytes: int  # Of the final files together.
  seconds: float  # Of one process, to make the instances.

  def __str__(self) -> str:
    gigabytes = self.record_bytes / 1e9
    return (
      f"estimate: about {gigabytes:,.1f} GB of records, twice that on disk while they are sorted; "
      f"about {_duration(self.seconds)} of processor time, which the workers share"
    )


def _duration(seconds: float) -> str:
  hours = seconds / 3600
  if hours >= 48:
    return f"{hours / 24:,.0f} days"
  if hours >= 2:
    return f"{hours:.0f} hours"
  return f"{hours * 60:.0f} min"


def estimate(job: Job) -> Estimate | None:
  """Makes records of the first megabyte of the largest file and multiplies; None for little work."""
  text_bytes = sum(job.text_sizes)
  if text_bytes * job.settings.dupe_factor < _WORTH_AN_ESTIMATE:
    return None
  passes = min(job.settings.dupe_factor, _SAMPLE_PASSES)
  settings = dataclasses.replace(job.settings, dupe_factor=passes)
  sample = dataclasses.replace(job, settings=settings, block_bytes=_SAMPLE_BYTES)
  make_block = BlockMaker(sample)
  bytes_read: list[int] = []

  start = time.monotonic()
  block = next(read_blocks(sample, job.sizes.index(max(job.sizes)), bytes_read.append))
  record_bytes = 0
  for _, instances in make_block(block, BlockResult(sample)):
    record_bytes += sum(map(len, instances.records))
  seconds = time.monotonic() - start

  share = text_bytes / max(1, sum(bytes_read))
  passes_of_all = job.settings.dupe_factor / passes
  work_of_all = (job.settings.dupe_factor + PASSES_OF_READING) / (passes + PASSES_OF_READING)
  return Estimate(round(record_bytes * share * passes_of_all), seconds * share * work_of_all)


def check_room(job: Job, record_bytes: int, *, sorts_on_disk: bool) -> None:
  """Raises `UserError` if the records certainly do not fit on the disks of the job; buckets have no end.

  Args:
    job: its directories need not exist yet.
    record_bytes: of the final files together.
    sorts_on_disk: whether all records are in `job.work_dir` too, until they are sorted.
  """
  directories = [job.stage_dir]
  if sorts_on_disk:
    directories.append(job.work_dir)
  by_disk: dict[int, list[str]] = {}
  for directory in directories:
    if not files.is_remote(directory):
      by_disk.setdefault(os.stat(_existing(directory)).st_dev, []).append(directory)
  for on_one_disk in by_disk.values():
    needed = record_bytes * len(on_one_disk)
    free = shutil.disk_usage(_existing(on_one_disk[0])).free
    room = free + _bytes_in(set(on_one_disk))
    if room < _CERTAIN_SHARE * needed:
      raise UserError(
        "The disk must have room for the records, and for a second copy while they are sorted. Received: about "
        f"{needed / 1e9:,.1f} GB for {on_one_disk[0]}, whose disk has {free / 1e9:,.1f} GB free, from "
        f"--dupe_factor={job.settings.dupe_factor}. Give fewer passes, such as --dupe_factor=1 (and --masking=fresh to "
        "run_pretrain.py), or another disk as --work_dir or --output_dir."
      )


def _existing(directory: str) -> str:
  """The directory, or the nearest one above it that exists."""
  path = os.path.abspath(directory)
  while not os.path.exists(path):
    path = os.path.dirname(path)
  return path


def _bytes_in(directories: Iterable[str]) -> int:
  """The size of the files that an earlier run of the command has left there."""
  paths = [os.path.join(directory, name) for directory in directories for name in files.listdir(directory)]
  return sum(map(files.size, paths))
