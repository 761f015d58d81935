"""Makes records on Apache Beam: the same blocks, the same sorted keys, so the same bytes.

  files → blocks → records by (split, file, part of its keys) → sorted parts → files

Each part of a final file is sorted in memory, so memory is bounded by a part.
A failed pipeline is run again from the start; Beam repeats failed bundles.
"""

import collections
from collections.abc import Iterable, Iterator, Sequence
import dataclasses
import json
import os
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
import google_crc32c

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.records import RecordFile, ShardIndexer
from tfrecords_tools.corpus import CorpusOptions, CorpusStats
from tfrecords_tools.pretraining.blocks import (
  SPLITS,
  Block,
  BlockProcessor,
  SplitDraw,
  block_bytes_for,
  read_blocks,
)
from tfrecords_tools.pretraining.outcome import Outcome, Progress, num_shards
from tfrecords_tools.pretraining.spill import KEY_SPACE, part_bytes_for
from tfrecords_tools.pretraining.statistics import Statistics
from tfrecords_tools.pretraining.tasks import Job, shard_name

_LOCAL_RUNNER = "apache_beam.runners.portability.fn_api_runner.fn_runner.FnApiRunner"
_BYTES_PER_BYTE_OF_TEXT = 2  # Records of one pass, about.
_OUTCOME_NAME = "beam-outcome.json"

Place = tuple[str, int, int]  # Split, final file, part.


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

  def make(self, job: Job, paths: Sequence[str], options: CorpusOptions, progress: Progress) -> Outcome:
    """Runs the whole pipeline, final files included; `write` returns what it wrote."""
    total = sum(files.size(path) for path in paths)
    progress("read", 0, total)
    parts = _count_parts(job, total)
    with beam.Pipeline(options=PipelineOptions(self._arguments, save_main_session=False)) as pipeline:
      instances = (
        pipeline
        | "files" >> beam.Create(list(enumerate(paths)))
        | "share files" >> beam.Reshuffle()
        | "blocks"
        >> beam.ParDo(_ReadBlocks(options, block_bytes_for(total))).with_outputs("corpus", main="blocks")
      )
      made = (
        instances.blocks
        | "share blocks" >> beam.Reshuffle()
        | "instances" >> beam.ParDo(_MakeInstances(job, parts)).with_outputs("outcome", main="records")
      )
      written = (
        made.records
        | "by part" >> beam.GroupByKey()
        | "sort" >> beam.ParDo(_WritePart(job))
        | "by file" >> beam.GroupByKey()
        | "join" >> beam.Map(_join_parts, job)
      )
      _ = (
        (instances.corpus, made.outcome, written)
        | "together" >> beam.Flatten()
        | "add up" >> beam.CombineGlobally(_AddUp(job))
        | "note" >> beam.Map(_write_note, os.path.join(job.work_dir, _OUTCOME_NAME))
      )
    progress("read", total, total)
    return _read_outcome(job)

  def write(self, job: Job, progress: Progress) -> list[RecordFile]:
    note = _read_note(job)
    record_files = [RecordFile(**fields) for fields in note["files"]]
    wanted = {
      shard_name(split, shard, num_shards(job.settings, split))
      for split in SPLITS
      for shard in range(num_shards(job.settings, split))
    }
    for name in sorted(wanted - {file.name for file in record_files}):  # A file that no record fell into.
      staged = os.path.join(job.stage_dir, name)
      with files.atomic_writer(staged):
        pass
      ShardIndexer(staged).finish().save(staged)
      record_files.append(RecordFile(name, name.split("-")[0], 0, 0, f"{0:08x}"))
    progress("write", len(wanted), len(wanted))
    return sorted(record_files, key=lambda file: (SPLITS.index(file.split), file.name))

  def close(self) -> None:
    """A pipeline holds nothing once it has ended."""


def _count_parts(job: Job, total: int) -> dict[str, int]:
  """Parts of each final file, by split."""
  size = total * job.settings.dupe_factor * _BYTES_PER_BYTE_OF_TEXT
  return {
    split: 1 + size // (part_bytes_for(size) * max(1, num_shards(job.settings, split))) for split in SPLITS
  }


class _ReadBlocks(beam.DoFn):
  def __init__(self, options: CorpusOptions, block_bytes: int):
    self._options = options
    self._block_bytes = block_bytes

  def process(self, element: tuple[int, str]) -> Iterator[Any]:
    file_index, path = element
    stats = CorpusStats()
    yield from read_blocks(path, file_index, self._options, stats=stats, block_bytes=self._block_bytes)
    yield beam.pvalue.TaggedOutput("corpus", {"corpus": stats})


class _MakeInstances(beam.DoFn):
  """A block to (place, (key, number of the block, record)), and its statistics."""

  def __init__(self, job: Job, parts: dict[str, int]):
    self._job = job
    self._parts = parts

  def setup(self) -> None:
    job = self._job
    self._processor = BlockProcessor(job.tokenizer, job.settings, held_out=job.held_out)

  def process(self, block: Block) -> Iterator[Any]:
    job = self._job
    statistics = {split: Statistics(job.settings, job.tokenizer.vocab_size) for split in SPLITS}
    for split, instances in self._processor.process(block, statistics):
      shards = num_shards(job.settings, split)
      slots = shards * self._parts[split]
      for instance in instances:
        slot = instance.key * slots // KEY_SPACE
        yield (split, *divmod(slot, self._parts[split])), (instance.key, block.name, instance.record)
    nearest = self._processor.nearest_to_eval(block)
    outcome = {
      "statistics": {split: statistics[split].to_json() for split in SPLITS},
      "nearest": dataclasses.asdict(nearest),
    }
    yield beam.pvalue.TaggedOutput("outcome", outcome)


class _WritePart(beam.DoFn):
  """All records of a place to one sorted file, named for the next step."""

  def __init__(self, job: Job):
    self._job = job

  def process(
    self, element: tuple[Place, Iterable[tuple[int, str, bytes]]]
  ) -> Iterator[tuple[tuple[str, int], tuple[int, str, int]]]:
    (split, shard, part), grouped = element
    records = sorted(grouped, key=lambda record: record[:2])
    path = os.path.join(self._job.work_dir, f"part-{split}-{shard:05d}-{part:06d}")
    with files.atomic_writer(path) as stream:
      stream.write(b"".join([record for _, _, record in records]))
    yield (split, shard), (part, path, len(records))


def _join_parts(element: tuple[tuple[str, int], Iterable[tuple[int, str, int]]], job: Job) -> dict[str, Any]:
  (split, shard), grouped = element
  name = shard_name(split, shard, num_shards(job.settings, split))
  crc = num_bytes = num_records = 0
  staged = os.path.join(job.stage_dir, name)
  indexer = ShardIndexer(staged)
  with files.atomic_writer(staged) as target:
    for _, path, count in sorted(grouped):
      with files.open_binary(path) as source:
        while chunk := source.read(1 << 20):
          target.write(chunk)
          indexer.feed(chunk)
          crc = google_crc32c.extend(crc, chunk)
          num_bytes += len(chunk)
      num_records += count
  indexer.finish().save(staged)
  return {"file": dataclasses.asdict(RecordFile(name, split, num_records, num_bytes, f"{crc:08x}"))}


class _AddUp(beam.CombineFn):
  """Adds the notes of all steps: an `Outcome` and the final files."""

  def __init__(self, job: Job):
    self._settings = job.settings
    self._vocab_size = job.tokenizer.vocab_size

  def create_accumulator(self) -> tuple[Outcome, list[dict[str, Any]]]:
    return Outcome.empty(self._settings, self._vocab_size), []

  def add_input(self, accumulator: Any, note: dict[str, Any]) -> Any:
    outcome, record_files = accumulator
    if "corpus" in note:
      outcome.corpus.update(note["corpus"])
    if "statistics" in note:
      for split in SPLITS:
        outcome.statistics[split].add_json(note["statistics"][split])
      outcome.note(SplitDraw(**note["nearest"]))
    if "file" in note:
      record_files.append(note["file"])
    return accumulator

  def merge_accumulators(self, accumulators: Iterable[Any]) -> Any:
    merged, record_files = self.create_accumulator()
    for outcome, some in accumulators:
      merged.add(outcome)
      record_files += some
    return merged, record_files

  def extract_output(self, accumulator: Any) -> dict[str, Any]:
    outcome, record_files = accumulator
    return {
      "corpus": outcome.corpus.to_dict(),
      "statistics": {split: outcome.statistics[split].to_json() for split in SPLITS},
      "nearest": dataclasses.asdict(outcome.nearest) if outcome.nearest else None,
      "files": record_files,
    }


def _write_note(note: dict[str, Any], path: str) -> None:
  with files.atomic_writer(path, "w") as stream:
    stream.write(json.dumps(note))


def _read_note(job: Job) -> dict[str, Any]:
  path = os.path.join(job.work_dir, _OUTCOME_NAME)
  if not files.exists(path):
    raise UserError(
      f"Beam's workers and this command must share --work_dir. Received: {job.work_dir}, in which the "
      "pipeline left nothing. Use a directory that both can reach, such as one on Cloud Storage."
    )
  with files.open_binary(path) as stream:
    note: dict[str, Any] = json.loads(stream.read())
  return note


def _read_outcome(job: Job) -> Outcome:
  note = _read_note(job)
  outcome = Outcome.empty(job.settings, job.tokenizer.vocab_size)
  formats = collections.Counter(note["corpus"].pop("formats"))
  outcome.corpus.update(CorpusStats(**note["corpus"], formats=formats))
  for split in SPLITS:
    outcome.statistics[split].add_json(note["statistics"][split])
  outcome.note(SplitDraw(**note["nearest"]) if note["nearest"] else None)
  return outcome
