"""The whole work of `create_pretraining_data.py`: estimate, make, write and describe records."""

from collections.abc import Callable, Sequence
import contextlib
import dataclasses
import datetime
import os
import shutil
import time
from typing import NamedTuple

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.lock import DirectoryLock
from albert_tf.records import Manifest, RecordFile
from tfrecords_tools.corpus import describe_format
from tfrecords_tools.pretraining.job import Job, input_of
from tfrecords_tools.pretraining.settings import PASSES_OF_READING
from tfrecords_tools.pretraining.stages import Result, make_instances, read_blocks, record_bytes
from tfrecords_tools.pretraining.statistics import baseline

WORTH_AN_ESTIMATE = 64 << 20  # Bytes of text times passes; fewer take seconds.
_SAMPLE_BYTES = 1 << 20
# Of the estimated bytes: the beginning of a corpus may be a little larger than the rest.
_CERTAIN_SHARE = 0.8


# Makes all instances and writes the final files into `job.stage_dir`, in their order.
Runner = Callable[[Job], tuple[Result, list[RecordFile]]]


def create_records(
  job: Job,
  runner: Runner,
  *,
  sorts_on_disk: bool = True,
  notice: Callable[[str], None] = lambda text: None,
) -> Manifest:
  """Makes the records of a corpus, or continues an earlier run of the same plan.

  Args:
    job: input, settings and directories: what decides the bytes.
    runner: what does the work; the bytes do not depend on it.
    sorts_on_disk: the runner has all records in `job.work_dir` too, until they are sorted.
    notice: receives how the first file is read and what the work will take, or that there is
      nothing to do.

  Returns:
    The manifest, saved in `job.output_dir` as the last step.

  Raises:
    UserError: nothing to make records of, no room for them, a directory made with other settings
      or held by another process, input that changes while it is read.
  """
  manifest = job.finished_before()
  if manifest is not None:
    job.remove_work()  # A run may have been cut short while it removed it.
    notice(f"nothing to do: {job.output_dir} is finished")
    return manifest

  # What the user should know before hours of work.
  if job.options.input_format == "auto":
    notice(describe_format(job.paths[0], job.options))
  work = estimate(job)
  if work is not None:
    notice(str(work))
    check_room(job, work.record_bytes, sorts_on_disk=sorts_on_disk)

  job.prepare_work()
  with contextlib.ExitStack() as stack:
    locks = [DirectoryLock(directory) for directory in job.work_dirs]
    for lock in locks:
      stack.callback(lock.release)
      lock.acquire()
    # Another process may have finished before it gave the lock back.
    manifest = job.finished_before()
    if manifest is None:
      result, record_files = runner(job)
      try:
        _check_result(result, job)
      except UserError:
        # Other settings or another input must make all of it again.
        job.remove_work()
        raise
      for lock in locks:
        lock.check()
      # The manifest last: it says that the directory is complete.
      manifest = _make_manifest(job, result, record_files)
      job.tokenizer.save_pretrained(job.output_dir)
      job.move_into_place(record_files)
      manifest.save(job.output_dir)
    job.remove_work()
  return manifest


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
  if text_bytes * num_passes < WORTH_AN_ESTIMATE:
    return None

  # The sample: one block, in one pass.
  settings = dataclasses.replace(job.settings, dupe_factor=1)
  sample = dataclasses.replace(job, settings=settings, block_bytes=_SAMPLE_BYTES)
  largest_file = job.text_sizes.index(max(job.text_sizes))
  start = time.monotonic()
  block = next(read_blocks(sample, largest_file))
  sample_bytes = 0
  for _, instances_of_split in make_instances(sample, block, Result.of_nothing(sample)):
    sample_bytes += sum(map(record_bytes, instances_of_split))
  seconds = time.monotonic() - start

  # All of the text, in all passes; reading is done once.
  text_ratio = text_bytes / max(1, block.num_bytes)
  work_ratio = (num_passes + PASSES_OF_READING) / (1 + PASSES_OF_READING)
  return Estimate(
    record_bytes=round(sample_bytes * text_ratio * num_passes),
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


def _check_result(result: Result, job: Job) -> None:
  """Raises `UserError` where a split has no instances, or most of training have no masked token."""
  num_train = result.statistics["train"].num_instances
  num_eval = result.statistics["eval"].num_instances
  needs_eval = job.settings.eval_fraction > 0
  if num_train and (num_eval or not needs_eval):
    # A word of more tokens than a row may have predictions is never masked.
    num_unmasked = result.statistics["train"].num_unmasked
    if job.settings.masked_lm_prob > 0 and num_unmasked > num_train / 2:
      raise UserError(
        f"Instances must have masked tokens. Received: {len(job.paths)} file(s), the first "
        f"{job.paths[0]}, of which {num_unmasked:,} of {num_train:,} instances have none, as their "
        "words have too many tokens. Give --whole_word=none, which takes each token for a word, or "
        "--masked_lm_prob=0 to mask nothing."
      )
    return
  advice = "Check --input and --input_format; text without spaces needs --whole_word=none"
  if num_train or num_eval:
    advice += "; pass --eval_fraction=0 to hold nothing out"
  raise UserError(
    f"The input must hold text for train and, unless --eval_fraction=0, for eval. Received: "
    f"{len(job.paths)} file(s), the first {job.paths[0]}, with {result.corpus.documents} "
    f"document(s), of which {num_train:,} instances for train and {num_eval:,} for eval could be "
    f"made. {advice}."
  )


def _make_manifest(job: Job, result: Result, record_files: Sequence[RecordFile]) -> Manifest:
  settings = job.settings
  statistics = {split: counts.summary() for split, counts in result.statistics.items()}
  return Manifest(
    vocab_size=job.tokenizer.vocab_size,
    vocab_sha256=job.tokenizer.model_sha256,
    max_seq_length=settings.max_seq_length,
    max_predictions_per_seq=settings.max_predictions_per_seq,
    sentence_pair=settings.sentence_pair,
    random_seed=settings.random_seed,
    files=tuple(record_files),
    baseline=baseline(result.statistics["train"], result.statistics["eval"], job.tokenizer),
    settings=job.plan["settings"],
    input={"files": input_of(job.plan)},
    statistics={"corpus": result.corpus.to_dict()} | statistics,
    versions=job.plan["versions"],
  )
