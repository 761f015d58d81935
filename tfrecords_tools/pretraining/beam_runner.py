"""Makes records on Apache Beam: the same blocks, the same sorted keys, so the same bytes.

  files → blocks → records by (split, file, part of its keys) → sorted parts → files

Each part of a final file is sorted in memory, so memory is bounded by a part.
A failed pipeline is run again from the start; Beam repeats failed bundles.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
import json
import os
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.records import RecordFile
from tfrecords_tools.pretraining.beam_duplicates import search
from tfrecords_tools.pretraining.blocks import Block, Outcome
from tfrecords_tools.pretraining.job import Job, Progress
from tfrecords_tools.pretraining.randomness import Place
from tfrecords_tools.pretraining.shards import KEY_SPACE, part_bytes_for, read_note, write_shard

_LOCAL_RUNNER = "apache_beam.runners.portability.fn_api_runner.fn_runner.FnApiRunner"
_BYTES_PER_BYTE_OF_TEXT = 2  # Records of one pass, about.
_OUTCOME_NAME = "beam-outcome.json"

_Slot = tuple[str, int, int]  # Split, final file, part.


class BeamRunner:
  """A `Runner` on Apache Beam.

  Args:
    arguments: Beam's own pipeline options; without --runner the pipeline runs in this process.
  """

  def __init__(self, arguments: Sequence[str] = ()):
    arguments = list(arguments)
    if not any(argument.split("=")[0] == "--runner" for argument in arguments):
      # Beam's own default would first look for a faster runner to download.
      arguments.append(f"--runner={_LOCAL_RUNNER}")
    self._arguments = arguments

  def find_duplicates(self, job: Job, progress: Progress) -> None:
    with beam.Pipeline(options=PipelineOptions(self._arguments, save_main_session=False)) as pipeline:
      search(pipeline, job)
    job.duplicates.note()

  def make(self, job: Job, held_out: Collection[Place], progress: Progress) -> Outcome:
    """Runs the whole pipeline, final files included; `write` returns what it wrote."""
    for note in filter(files.exists, (f"{path}.json" for path in _staged(job))):
      files.remove(note)  # Of a pipeline that failed, or held out something else.
    total = sum(job.sizes)
    progress("read", 0, total)
    with beam.Pipeline(options=PipelineOptions(self._arguments, save_main_session=False)) as pipeline:
      blocks = (
        pipeline
        | "files" >> beam.Create(range(len(job.paths)))
        | "share files" >> beam.Reshuffle()
        | "blocks" >> beam.ParDo(_ReadBlocks(job)).with_outputs("outcome", main="blocks")
      )
      made = (
        blocks.blocks
        | "share blocks" >> beam.Reshuffle()
        | "instances"
        >> beam.ParDo(_MakeInstances(job, held_out, _count_parts(job, total))).with_outputs(
          "outcome", main="records"
        )
      )
      _ = (
        made.records
        | "by part" >> beam.GroupByKey()
        | "sort" >> beam.ParDo(_WritePart(job))
        | "by file" >> beam.GroupByKey()
        | "join" >> beam.Map(_join_parts, job)
      )
      _ = (
        (blocks.outcome, made.outcome)
        | "together" >> beam.Flatten()
        | "add up" >> beam.CombineGlobally(_AddUp(job))
        | "note" >> beam.Map(_write_outcome, job)
      )
    progress("read", total, total)
    return _read_outcome(job)

  def write(self, job: Job, outcome: Outcome, progress: Progress) -> list[RecordFile]:
    # A file that no record fell into has no note yet.
    record_files = [
      read_note(path, plan=job.plan) or write_shard(path, split, (), plan=job.plan)
      for path, split in _staged(job).items()
    ]
    progress("write", len(record_files), len(record_files))
    return record_files

  def close(self) -> None:
    """A pipeline holds nothing once it has ended."""


def _staged(job: Job) -> dict[str, str]:
  """Where the final files are written, and the split of each."""
  return {
    os.path.join(job.stage_dir, name): split
    for split in job.splits
    for name in job.settings.shard_names(split)
  }


def _count_parts(job: Job, total: int) -> dict[str, int]:
  """Parts of each final file, by split."""
  size = total * job.settings.dupe_factor * _BYTES_PER_BYTE_OF_TEXT
  return {
    split: 1 + size // (part_bytes_for(size) * max(1, job.settings.num_shards_of(split)))
    for split in job.splits
  }


class _ReadBlocks(beam.DoFn):
  def __init__(self, job: Job):
    self._job = job

  def process(self, file_index: int) -> Iterator[Any]:
    outcome = self._job.empty_outcome()
    yield from self._job.read_blocks(file_index, outcome.corpus)
    yield beam.pvalue.TaggedOutput("outcome", outcome.to_json())


class _MakeInstances(beam.DoFn):
  """A block to (slot, (key, number of the block, record)), and its outcome."""

  def __init__(self, job: Job, held_out: Collection[Place], parts: dict[str, int]):
    self._job = job
    self._held_out = held_out
    self._parts = parts

  def setup(self) -> None:
    self._make = self._job.block_maker()

  def process(self, block: Block) -> Iterator[Any]:
    outcome = self._job.empty_outcome()
    for split, instances in self._make(block, outcome, held_out=self._held_out):
      parts = self._parts[split]
      slots = self._job.settings.num_shards_of(split) * parts
      for instance in instances:
        slot = instance.key * slots // KEY_SPACE
        yield (split, *divmod(slot, parts)), (instance.key, block.name, instance.record)
    yield beam.pvalue.TaggedOutput("outcome", outcome.to_json())


class _WritePart(beam.DoFn):
  """All records of a slot to one sorted file, named for the next step."""

  def __init__(self, job: Job):
    self._job = job

  def process(
    self, element: tuple[_Slot, Iterable[tuple[int, str, bytes]]]
  ) -> Iterator[tuple[tuple[str, int], tuple[int, str]]]:
    (split, shard, part), grouped = element
    records = sorted(grouped, key=lambda record: record[:2])
    path = os.path.join(self._job.work_dir, f"part-{split}-{shard:05d}-{part:06d}")
    with files.atomic_writer(path) as stream:
      stream.write(b"".join([record for _, _, record in records]))
    yield (split, shard), (part, path)


def _join_parts(element: tuple[tuple[str, int], Iterable[tuple[int, str]]], job: Job) -> None:
  (split, shard), grouped = element

  def chunks() -> Iterator[bytes]:
    for _, path in sorted(grouped):
      with files.open_binary(path) as source:
        while chunk := source.read(1 << 20):
          yield chunk

  path = os.path.join(job.stage_dir, job.settings.shard_names(split)[shard])
  write_shard(path, split, chunks(), plan=job.plan)


class _AddUp(beam.CombineFn):
  """Adds the outcomes of all steps."""

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


def _outcome_path(job: Job) -> str:
  return os.path.join(job.work_dir, _OUTCOME_NAME)


def _write_outcome(fields: dict[str, Any], job: Job) -> None:
  with files.atomic_writer(_outcome_path(job), "w") as stream:
    json.dump(fields, stream)


def _read_outcome(job: Job) -> Outcome:
  path = _outcome_path(job)
  if not files.exists(path):
    raise UserError(
      f"Beam's workers and this command must share --work_dir. Received: {job.work_dir}, in which the "
      "pipeline left nothing. Use a directory that both can reach, such as one on Cloud Storage."
    )
  outcome = job.empty_outcome()
  outcome.add_json(json.loads(files.read_bytes(path)))
  return outcome
