"""Makes records on this machine: streams the input, hands out blocks, keeps what an earlier run finished."""

from collections.abc import Iterator, Sequence
import os

from albert_tf import files
from albert_tf.records import RecordFile
from tfrecords_tools.corpus import CorpusOptions
from tfrecords_tools.pretraining.blocks import SPLITS, Block, block_bytes_for, read_blocks
from tfrecords_tools.pretraining.file_task import FileJob, can_share_files
from tfrecords_tools.pretraining.outcome import Outcome, Progress, num_shards
from tfrecords_tools.pretraining.pool import TaskPool
from tfrecords_tools.pretraining.spill import Run
from tfrecords_tools.pretraining.tasks import Job, load_block_result

# Size of the text over size of the file, for the time left; the end of a file corrects it.
_EXPANSION = {".gz": 3, ".bz2": 4, ".xz": 4, ".zst": 3}


class LocalRunner:
  """A `Runner` of processes on this machine.

  Args:
    num_workers: processes; the records do not depend on their number.
    block_bytes: text of a task, chosen by the size of the input; records depend on it only where B comes from
      another document.
  """

  def __init__(self, *, num_workers: int = 1, block_bytes: int | None = None):
    self._num_workers = num_workers
    self._block_bytes = block_bytes
    self._runs: list[Run] = []
    self._pool: TaskPool | None = None

  def _pool_of(self, job: Job, num_files: int = 0) -> TaskPool:
    """The workers of `job`, which serve both stages."""
    if self._pool is None or self._pool.job is not job:
      self.close()
      self._pool = TaskPool(job, num_workers=self._num_workers, num_files=num_files)
    return self._pool

  def close(self) -> None:
    if self._pool is not None:
      self._pool.close()
    self._pool = None

  def make(self, job: Job, paths: Sequence[str], options: CorpusOptions, progress: Progress) -> Outcome:
    outcome = Outcome.empty(job.settings, job.tokenizer.vocab_size)
    self._runs = []
    sizes = [files.size(path) for path in paths]
    reading = _Reading(paths, sizes, progress)
    block_bytes = self._block_bytes or block_bytes_for(sum(sizes))
    file_jobs = [FileJob(index, path, options, block_bytes) for index, path in enumerate(paths)]
    if self._num_workers == 1 or can_share_files(sizes, self._num_workers):
      file_jobs.sort(
        key=lambda each: -sizes[each.file_index]
      )  # The largest first, so that the last is small.
      for file_result in self._pool_of(job, len(paths)).whole_files(file_jobs, reading.report):
        self._runs += file_result.runs
        outcome.add(file_result.outcome)
        reading.end(file_result.file_index)
    else:
      for result in self._pool_of(job).blocks(self._unfinished(job, file_jobs, outcome, reading)):
        self._runs += result.runs
        outcome.add_block(result)
    return outcome

  def _unfinished(
    self, job: Job, file_jobs: Sequence[FileJob], outcome: Outcome, reading: "_Reading"
  ) -> Iterator[Block]:
    """Blocks of all files, at most one in memory; what an earlier run finished is added to `outcome`."""
    for index, path, options, block_bytes in file_jobs:
      begin = outcome.corpus.bytes_read
      for block in read_blocks(path, index, options, stats=outcome.corpus, block_bytes=block_bytes):
        reading.report(index, outcome.corpus.bytes_read - begin)
        result = load_block_result(job, block)
        if result is None:
          yield block
        else:
          self._runs += result.runs
          outcome.add_block(result)
      reading.end(index)

  def write(self, job: Job, progress: Progress) -> list[RecordFile]:
    ordered = sorted(self._runs, key=lambda run: run.path)  # The order of the blocks.
    runs = {split: [run for run in ordered if run.split == split] for split in SPLITS}
    arguments = [
      (runs[split], split, shard, num_shards(job.settings, split))
      for split in SPLITS
      for shard in range(num_shards(job.settings, split))
    ]
    done: list[RecordFile] = []
    for record_file in self._pool_of(job).shards(arguments):
      done.append(record_file)
      progress("write", len(done), len(arguments))
    return sorted(done, key=lambda file: (SPLITS.index(file.split), file.name))


class _Reading:
  """How much of all files has been read, by the size they will probably have as text."""

  def __init__(self, paths: Sequence[str], sizes: Sequence[int], progress: Progress):
    self._shares = [
      size * _EXPANSION.get(os.path.splitext(path)[1], 1) for path, size in zip(paths, sizes, strict=True)
    ]
    self._done = [0] * len(paths)
    self._progress = progress

  def report(self, file_index: int, bytes_read: int) -> None:
    self._done[file_index] = max(self._done[file_index], min(self._shares[file_index], bytes_read))
    self._progress("read", sum(self._done), sum(self._shares))

  def end(self, file_index: int) -> None:
    self.report(file_index, self._shares[file_index])
