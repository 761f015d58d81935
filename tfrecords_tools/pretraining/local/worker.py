"""What one process of a local runner does: blocks to sorted runs, runs to larger ones, runs to final files."""

from collections.abc import Callable, Collection, Iterator, Sequence
import contextlib
import dataclasses
import functools
import os
from typing import Any

from albert_tf import files
from albert_tf.records import RecordFile
from tfrecords_tools.corpus import CorpusStats
from tfrecords_tools.pretraining.blocks import Block, Outcome
from tfrecords_tools.pretraining.job import Job
from tfrecords_tools.pretraining.local.work_notes import WorkNotes
from tfrecords_tools.pretraining.randomness import Place
from tfrecords_tools.pretraining.shards import KEY_SPACE, read_note, write_shard
from tfrecords_tools.pretraining.sorted_runs import Run, RunWriter, merge, merge_group


class Worker:
  """What one process does for a job; holds what is slow to build."""

  def __init__(self, job: Job, bytes_read: Any):
    self._job = job
    self._bytes_read = bytes_read
    self._notes = WorkNotes(job)
    self._block_maker = functools.cache(job.block_maker)  # Those who only write final files need none.

  def make(self, source: Block | int, held_out: Collection[Place], expected: int = 0) -> Outcome:
    """Makes a block, or all blocks of the file with that number, but not what an earlier run finished."""
    if isinstance(source, Block):
      return self._finished_or_made(source, held_out)
    outcome, missing = self._notes.read_file(source, held_out)
    if missing is None:
      with self._bytes_read.get_lock():
        self._bytes_read.value += expected
      return outcome
    outcome = self._job.empty_outcome()
    for block in read_blocks(self._job, source, self._bytes_read, expected):
      outcome.add(self._finished_or_made(block, held_out))
    return outcome

  def _finished_or_made(self, block: Block, held_out: Collection[Place]) -> Outcome:
    finished = self._notes.read(block, held_out)
    if finished is not None:
      return finished
    outcome = self._job.empty_outcome()
    prefix = self._notes.prefix(block, held_out)
    writers = {split: RunWriter(prefix, split) for split in self._job.splits}
    for split, instances in self._block_maker()(block, outcome, held_out=held_out):
      writers[split].add(instances)
    for writer in writers.values():
      outcome.runs += writer.finish()
    if block.corpus is not None:
      outcome.corpus.update(block.corpus)
    self._notes.write(block, held_out, outcome)
    return outcome

  def hash(self, file_index: int) -> None:
    """Hashes the documents of a file, for the search for copies."""
    job = self._job
    job.duplicates.hash(file_index, job.paths[file_index], job.options)

  def merge(self, runs: Sequence[Run], path: str) -> Run:
    return merge_group(runs, path)

  def finish_shard(self, runs: Sequence[Run], split: str, shard: int) -> RecordFile:
    """Writes one final file into the stage, or takes the one an earlier run finished."""
    job = self._job
    names = job.settings.shard_names(split)
    staged = os.path.join(job.stage_dir, names[shard])
    note = read_note(staged, plan=job.plan)
    for path in (staged, os.path.join(job.output_dir, names[shard])):
      if note is not None and files.exists(path) and files.size(path) == note.num_bytes:
        return note
    low, high = (number * KEY_SPACE // len(names) for number in (shard, shard + 1))
    chunks = (part.data for part in merge(runs, low=low, high=high))
    return write_shard(staged, split, chunks, plan=job.plan)


def read_blocks(job: Job, file_index: int, bytes_read: Any, expected: int) -> Iterator[Block]:
  """Blocks of a file; meanwhile `bytes_read` grows by `expected`."""
  stats = CorpusStats()
  counted = 0

  def count(reached: int) -> None:
    nonlocal counted
    with bytes_read.get_lock():
      bytes_read.value += reached - counted
    counted = reached

  for block in job.read_blocks(file_index, stats):
    count(min(expected, stats.bytes_read))
    yield block
  count(expected)


@dataclasses.dataclass
class Unshared:
  """Stands for a number that processes share, where there is only one."""

  value: int = 0

  def get_lock(self) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


class OneWorker:
  """This process in the place of a `WorkerPool`."""

  num_workers = 1

  def __init__(self, job: Job):
    self.bytes_read = Unshared()
    self._worker = Worker(job, self.bytes_read)

  def run(
    self, method: str, tasks: Iterator[tuple[Any, ...]], report: Callable[[], None] = lambda: None
  ) -> Iterator[Any]:
    """Results of that method of `Worker` for the arguments in `tasks`, in their order."""
    for arguments in tasks:
      report()
      yield getattr(self._worker, method)(*arguments)
    report()

  def close(self) -> None:
    """Nothing is held."""
