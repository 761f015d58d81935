"""Time and disk that records will take, measured on the beginning of the input before the work."""

import dataclasses
import datetime
import os
import shutil
import time
from typing import NamedTuple

from albert_tf import files
from albert_tf.errors import UserError
from tfrecords_tools.pretraining.job import Job
from tfrecords_tools.pretraining.settings import PASSES_OF_READING
from tfrecords_tools.pretraining.stages import BlockMaker, BlockResult, read_blocks

_WORTH_AN_ESTIMATE = 64 << 20  # Bytes of text times passes; fewer take seconds.
_SAMPLE_BYTES = 1 << 20
# Of the estimated bytes: the beginning of a corpus may be a little larger than the rest.
_CERTAIN_SHARE = 0.8


class Estimate(NamedTuple):
  """What the work on all of the text takes."""

  record_bytes: int  # Of the final files together.
  seconds: float  # Of one process, to make the instances.

  def __str__(self) -> str:
    duration = datetime.timedelta(minutes=round(self.seconds / 60))  # As 2 days, 3:15:00.
    return (
      f"estimate: about {self.record_bytes / 1e9:,.1f} GB of records, twice that on disk while "
      f"they are sorted; about {duration} of processor time, which the workers share"
    )


def estimate(job: Job) -> Estimate | None:
  """Makes records of the first megabyte of the largest file and multiplies.

  Returns None for little work.
  """
  text_bytes = sum(job.text_sizes)
  num_passes = job.settings.dupe_factor
  if text_bytes * num_passes < _WORTH_AN_ESTIMATE:
    return None

  # The sample: one block, in one pass.
  settings = dataclasses.replace(job.settings, dupe_factor=1)
  sample = dataclasses.replace(job, settings=settings, block_bytes=_SAMPLE_BYTES)
  make_instances = BlockMaker(sample)
  largest_file = job.sizes.index(max(job.sizes))
  start = time.monotonic()
  block = next(read_blocks(sample, largest_file))
  record_bytes = 0
  for _, instances in make_instances(block, BlockResult(sample)):
    record_bytes += sum(map(len, instances.records))
  seconds = time.monotonic() - start

  # All of the text, in all passes; reading is done once.
  text_ratio = text_bytes / max(1, block.num_bytes)
  work_ratio = (num_passes + PASSES_OF_READING) / (1 + PASSES_OF_READING)
  return Estimate(
    record_bytes=round(record_bytes * text_ratio * num_passes),
    seconds=seconds * text_ratio * work_ratio,
  )


def check_room(job: Job, record_bytes: int, *, sorts_on_disk: bool) -> None:
  """Raises `UserError` if the records certainly do not fit on the disks of the job.

  Args:
    job: its directories need not exist yet; buckets have no end.
    record_bytes: of the final files together.
    sorts_on_disk: whether all records are in `job.work_dir` too, until they are sorted.
  """
  directories = [job.stage_dir]
  if sorts_on_disk:
    directories.append(job.work_dir)
  directories_of_disk: dict[int, list[str]] = {}
  for directory in directories:
    if not files.is_remote(directory):
      disk = os.stat(_existing_folder(directory)).st_dev
      directories_of_disk.setdefault(disk, []).append(directory)

  for directories in directories_of_disk.values():
    needed = record_bytes * len(directories)  # One copy in each.
    free = shutil.disk_usage(_existing_folder(directories[0])).free
    # What an earlier run of the command has left is part of what is needed.
    finished = 0
    for directory in set(directories):
      for name in files.listdir(directory):
        finished += files.size(os.path.join(directory, name))
    if free + finished < _CERTAIN_SHARE * needed:
      raise UserError(
        "The disk must have room for the records, and for a second copy while they are sorted. "
        f"Received: about {needed / 1e9:,.1f} GB for {directories[0]}, whose disk has "
        f"{free / 1e9:,.1f} GB free, from --dupe_factor={job.settings.dupe_factor}. Give fewer "
        "passes, such as --dupe_factor=1 (and --masking=fresh to run_pretrain.py), or another "
        "disk as --work_dir or --output_dir."
      )


def _existing_folder(directory: str) -> str:
  """The directory, or the nearest one above it that exists."""
  path = os.path.abspath(directory)
  while not os.path.exists(path):
    path = os.path.dirname(path)
  return path
