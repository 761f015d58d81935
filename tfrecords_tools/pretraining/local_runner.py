"""Makes records on this machine: streams the input, hands out blocks, keeps what an earlier run finished."""

from collections.abc import Iterator, Sequence
import os

from albert_tf import files
from albert_tf.records import RecordFile
from tfrecords_tools.corpus import CorpusOptions, CorpusStats
from tfrecords_tools.pretraining.blocks import SPLITS, Block, block_bytes_for, read_blocks
from tfrecords_tools.pretraining.outcome import Outcome, Progress, num_shards
from tfrecords_tools.pretraining.pool import TaskPool
from tfrecords_tools.pretraining.spill import Run
from tfrecords_tools.pretraining.tasks import BlockResult, Job, load_block_result

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

  def _pool_of(self, job: Job) -> TaskPool:
    """The workers of `job`, which serve both stages."""
    if self._pool is None or self._pool.job is not job:
      self.close()
      self._pool = TaskPool(job, num_workers=self._num_workers)
    return self._pool

  def close(self) -> None:
    if self._pool is not None:
      self._pool.close()
    self._pool = None

  def make(self, job: Job, paths: Sequence[str], options: CorpusOptions, progress: Progress) -> Outcome:
    outcome = Outcome.empty(job.settings, job.tokenizer.vocab_size)
    self._runs = []
    finished: list[BlockResult] = []

    block_bytes = self._block_bytes or block_bytes_for(sum(map(files.size, paths)))

    def to_do() -> Iterator[Block]:
      for block in _read_all(paths, options, outcome.corpus, block_bytes, progress):
        result = load_block_result(job, block)
        if result is None:
          yield block
        else:
          finished.append(result)
          self._collect(finished, outcome)

    for result in self._pool_of(job).blocks(to_do()):
      self._collect([result], outcome)
    return outcome

  def _collect(self, results: list[BlockResult], outcome: Outcome) -> None:
    while results:
      result = results.pop()
      self._runs += result.runs
      for split in SPLITS:
        outcome.statistics[split].add_json(result.statistics[split])
      outcome.note(result.nearest)

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


def _read_all(
  paths: Sequence[str], options: CorpusOptions, corpus: CorpusStats, block_bytes: int, progress: Progress
) -> Iterator[Block]:
  """Blocks of all files in order; at most one is in memory."""
  shares = [files.size(path) * _EXPANSION.get(os.path.splitext(path)[1], 1) for path in paths]
  before = 0
  for file_index, (path, share) in enumerate(zip(paths, shares, strict=True)):
    begin = corpus.bytes_read
    for block in read_blocks(path, file_index, options, stats=corpus, block_bytes=block_bytes):
      progress("read", before + min(share, corpus.bytes_read - begin), sum(shares))
      yield block
    before += share
    progress("read", before, sum(shares))
