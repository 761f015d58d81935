"""Makes records on Apache Beam: the same blocks, the same sorted keys, so the same bytes.

  files → blocks → records by final file → each file sorted and written by one worker

A file is sorted in memory, so memory is bounded by a file.
A failed pipeline is run again from the start; Beam repeats failed bundles. Either writes the same files over.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
import contextlib
import copy
import json
import os
import re
import struct
import threading
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics, MetricsFilter

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.records import RecordFile
from tfrecords_tools.corpus import CorpusStats, mean_document_bytes
from tfrecords_tools.pretraining.beam.duplicates import search
from tfrecords_tools.pretraining.beam.options import pipeline_options
from tfrecords_tools.pretraining.blocks import Block, Outcome
from tfrecords_tools.pretraining.job import Job, Progress
from tfrecords_tools.pretraining.plan import PLAN_NAME
from tfrecords_tools.pretraining.randomness import Place
from tfrecords_tools.pretraining.shards import KEY_SPACE, read_note, write_shard
from tfrecords_tools.pretraining.sizing import expected_bytes

_LARGEST_SHARD = 1 << 30  # Bytes that a worker is trusted to sort; it holds them once.
_OUTCOME_NAME = "beam-outcome.json"
_COUNTERS, _BYTES_READ = "albert_tf", "bytes_read"
_POLL_SECONDS = 5.0
_AT_ONCE = 1024  # Records written together.

# Before each record: its key and the numbers of its file and block, so that the order of the bytes is the order
# of the records, and that of the local runner.
_ORDER = struct.Struct(">QII")
# A mistake of the user's, as a worker's traceback ends with it; and the name of the step, which Beam adds.
_USER_ERROR = re.compile(r"^albert_tf\.\w+\.(?:UserError|StoreError): (.+)$", re.MULTILINE)
_STEP = re.compile(r" \[while running '[^']*'\]")


class BeamRunner:
  """A `Runner` on Apache Beam.

  Args:
    arguments: Beam's own pipeline options; without --runner the pipeline runs in this process.
  """

  def __init__(self, arguments: Sequence[str] = ()):
    self._arguments = arguments
    self._noted = ""  # What the notes of the final files made last say.

  def find_duplicates(self, job: Job, progress: Progress) -> None:
    pipeline = beam.Pipeline(options=pipeline_options(self._arguments))
    search(_files(pipeline, job) | "work is here" >> beam.Map(_reached, job), job)
    _run(pipeline, job, progress)
    job.duplicates.note()

  def make(self, job: Job, held_out: Collection[Place], progress: Progress) -> Outcome:
    """Runs the whole pipeline, final files included; `write` returns what it wrote."""
    _check_shards(job)
    # Notes of a pipeline that failed, or held out something else.
    for note in filter(files.exists, (_outcome_path(job), *(f"{path}.json" for path in _staged(job)))):
      files.remove(note)
    pipeline = beam.Pipeline(options=pipeline_options(self._arguments))
    self._noted = f"{job.plan} on Beam, held out: {sorted(held_out)}"
    _build(pipeline, job, held_out, self._noted)
    _run(pipeline, job, progress)
    return _read_outcome(job)

  def write(self, job: Job, outcome: Outcome, progress: Progress) -> list[RecordFile]:
    # A file that no record fell into has no note yet.
    record_files = [
      read_note(path, plan=self._noted) or write_shard(path, split, (), plan=self._noted)
      for path, split in _staged(job).items()
    ]
    progress("write", len(record_files), len(record_files))
    return record_files

  def close(self) -> None:
    """A pipeline holds nothing once it has ended."""


def _run(pipeline: Any, job: Job, progress: Progress) -> None:
  with _user_errors():
    result = pipeline.run()
    with _watched(result, sum(job.text_sizes), progress), _cancelled_with_this(result):
      result.wait_until_finish()


def _files(pipeline: Any, job: Job) -> Any:
  """The numbers of the input files, shared out."""
  return pipeline | "files" >> beam.Create(range(len(job.paths))) | "share files" >> beam.Reshuffle()


def _build(pipeline: Any, job: Job, held_out: Collection[Place], noted: str) -> None:
  """`noted`: an identity of these files, since another run or runner may hold out other documents."""
  blocks = _files(pipeline, job) | "blocks" >> beam.ParDo(_ReadBlocks(job))
  made = (
    blocks
    | "share blocks" >> beam.Reshuffle()
    | "instances" >> beam.ParDo(_MakeInstances(job, held_out)).with_outputs("outcome", main="records")
  )
  _ = made.records | "by file" >> beam.GroupByKey() | "sort and write" >> beam.Map(_write_file, job, noted)
  _ = made.outcome | "add up" >> beam.CombineGlobally(_AddUp(job)) | "note" >> beam.Map(_write_outcome, job)


def _staged(job: Job) -> dict[str, str]:
  """Where the final files are written, and the split of each."""
  return {
    os.path.join(job.stage_dir, name): split
    for split in job.splits
    for name in job.settings.shard_names(split)
  }


def _check_shards(job: Job) -> None:
  """Refuses files that a worker could not sort in memory."""
  settings = job.settings
  document_bytes = mean_document_bytes(job.paths, job.options)
  expected = expected_bytes(settings, job.text_sizes, job.sources, document_bytes=document_bytes)
  for split, size in expected.items():
    flag = "num_shards" if split == "train" else "num_eval_shards"
    shards = settings.num_shards_of(split)
    needed = -int(-size // _LARGEST_SHARD)
    if shards and needed > shards:
      raise UserError(
        f"On Beam a worker sorts a whole file in memory: about {_LARGEST_SHARD >> 30} GiB at most. Received: "
        f"--{flag}={shards} for about {size / 1e9:,.0f} GB of {split} records. Give --{flag}={needed} or more."
      )


class _ReadBlocks(beam.DoFn):
  def __init__(self, job: Job):
    self._job = job
    self._bytes_read = Metrics.counter(_COUNTERS, _BYTES_READ)

  def process(self, file_index: int) -> Iterator[Block]:
    _check_work_is_here(self._job)
    stats = CorpusStats()
    counted = 0
    for block in self._job.read_blocks(file_index, stats):
      self._bytes_read.inc(stats.bytes_read - counted)
      counted = stats.bytes_read
      yield block


def _check_work_is_here(job: Job) -> None:
  """What the command noted before the pipeline began must be visible to a worker: else nothing it writes counts."""
  for directory in (job.stage_dir, job.work_dir):
    if not files.exists(os.path.join(directory, PLAN_NAME)):
      raise UserError(
        "Beam's workers and this command must share --output_dir and --work_dir. Received: "
        f"{directory}, in which a worker finds no {PLAN_NAME}. Use directories that both reach, such as some on "
        "Cloud Storage."
      )


def _reached(file_index: int, job: Job) -> int:
  _check_work_is_here(job)
  return file_index


class _MakeInstances(beam.DoFn):
  """A block to (final file, ordered record), and its outcome."""

  def __init__(self, job: Job, held_out: Collection[Place]):
    self._job = job
    self._held_out = held_out

  def setup(self) -> None:
    self._make = self._job.block_maker()

  def process(self, block: Block) -> Iterator[Any]:
    outcome = self._job.empty_outcome()
    for split, instances in self._make(block, outcome, held_out=self._held_out):
      shards = self._job.settings.num_shards_of(split)
      for instance in instances:
        order = _ORDER.pack(instance.key, block.file_index, block.index)
        yield (split, instance.key * shards // KEY_SPACE), order + instance.record
    if block.corpus is not None:
      outcome.corpus.update(block.corpus)
    yield beam.pvalue.TaggedOutput("outcome", outcome.to_json())


def _write_file(element: tuple[tuple[str, int], Iterable[bytes]], job: Job, noted: str) -> None:
  """All records of a final file, sorted, to their place; what an attempt before has left there is replaced."""
  (split, shard), grouped = element
  records = sorted(grouped)

  def chunks() -> Iterator[bytes]:
    for start in range(0, len(records), _AT_ONCE):
      yield b"".join(record[_ORDER.size :] for record in records[start : start + _AT_ONCE])

  path = os.path.join(job.stage_dir, job.settings.shard_names(split)[shard])
  write_shard(path, split, chunks(), plan=noted)


class _AddUp(beam.CombineFn):
  """Adds the outcomes of all blocks."""

  def __init__(self, job: Job):
    self._job = job

  def create_accumulator(self) -> Outcome:
    return self._job.empty_outcome()

  def add_input(self, accumulator: Outcome, fields: dict[str, Any]) -> Outcome:
    accumulator.add_json(fields)
    return accumulator

  def merge_accumulators(self, accumulators: Iterable[Outcome]) -> Outcome:
    merged = self.create_accumulator()
    for outcome in accumulators:
      merged.add(outcome)
    return merged

  def extract_output(self, accumulator: Outcome) -> dict[str, Any]:
    return accumulator.to_json()


@contextlib.contextmanager
def _watched(result: Any, total: int, progress: Progress) -> Iterator[None]:
  """Reports what the workers have read meanwhile; nothing where the runner does not tell before the end."""
  ended = threading.Event()
  told = False

  def watch() -> None:
    nonlocal told
    while not ended.wait(_POLL_SECONDS):
      with contextlib.suppress(Exception):  # A service that does not answer now must not end the job.
        done = bytes_read(result)
        if done and not told:
          progress("read", 0, total)
          told = True
        if done:
          progress("read", min(done, total), total)

  thread = threading.Thread(target=watch, daemon=True)
  thread.start()
  try:
    yield
  finally:
    ended.set()
    thread.join()
  if told:
    progress("read", total, total)


@contextlib.contextmanager
def _cancelled_with_this(result: Any) -> Iterator[None]:
  """Without this command nothing would publish what the pipeline goes on to write."""
  try:
    yield
  except (KeyboardInterrupt, SystemExit):
    with contextlib.suppress(Exception):  # Not every runner can.
      result.cancel()
    raise


def bytes_read(result: Any) -> int:
  """What Beam's counter says now; 0 where the runner does not count yet."""
  # Some results keep the first answer for ever; a copy asks again.
  found = copy.copy(result).metrics().query(MetricsFilter().with_namespace(_COUNTERS).with_name(_BYTES_READ))
  return sum(max(counter.attempted or 0, counter.committed or 0) for counter in found["counters"])


@contextlib.contextmanager
def _user_errors() -> Iterator[None]:
  """Beam hands over what a worker raised as text; a user's mistake is one message again."""
  try:
    yield
  except Exception as error:
    found = [str(error)] if isinstance(error, UserError) else _USER_ERROR.findall(str(error))
    if not found:
      raise
    raise UserError(_STEP.sub("", found[-1])) from error


def _outcome_path(job: Job) -> str:
  return os.path.join(job.work_dir, _OUTCOME_NAME)


def _write_outcome(fields: dict[str, Any], job: Job) -> None:
  with files.atomic_writer(_outcome_path(job), "w") as stream:
    json.dump(fields, stream)


def _read_outcome(job: Job) -> Outcome:
  outcome = job.empty_outcome()
  outcome.add_json(json.loads(files.read_bytes(_outcome_path(job))))
  return outcome
