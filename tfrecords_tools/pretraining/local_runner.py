"""Makes records on this machine: blocks become sorted runs on disk, ranges of keys become final files."""

from collections.abc import Callable, Iterable, Iterator, Sequence
import concurrent.futures
import concurrent.futures.process
import contextlib
import dataclasses
import functools
import itertools
import json
import multiprocessing
import os
import signal
import threading
from typing import Any

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.records import RecordFile
from tfrecords_tools.corpus import CorpusStats
from tfrecords_tools.pretraining.blocks import Block, Outcome, Place
from tfrecords_tools.pretraining.job import Job, Progress
from tfrecords_tools.pretraining.settings import SPLITS
from tfrecords_tools.pretraining.shards import Run, RunWriter, merge_runs, read_note, write_shard

# Of what each worker would have; a larger file would keep one worker longer than the others.
_LARGEST_SHARE = 1.2
_POLL_SECONDS = 0.5
_IN_FLIGHT = 2  # Tasks a worker that are read ahead: bounds memory.


class LocalRunner:
  """A `Runner` of processes on this machine; a single one does everything in this process.

  A task is one block, or all blocks of a small file: their reading is shared out too. A file that would keep
  one worker longer than the others is read here, and its blocks are handed out.

  Args:
    num_workers: processes; the records do not depend on their number.
  """

  def __init__(self, *, num_workers: int = 1):
    self._num_workers = num_workers
    self._worker: _Worker | None = None  # In this process.
    self._pool: concurrent.futures.ProcessPoolExecutor | None = None
    self._others: list[Any] = []  # Children of this process that are not the pool's.
    self._bytes_read: Any = _Unshared()

  def make(self, job: Job, held_out: Place | None, progress: Progress) -> Outcome:
    self._start(job)
    largest = _LARGEST_SHARE * sum(job.sizes) / self._num_workers
    expected = job.text_sizes  # For the time left; the end of a file corrects it.
    total = sum(expected)
    outcome = job.empty_outcome()

    def tasks() -> Iterator[tuple[Any, ...]]:
      # The largest file first, so that the last to end is a small one.
      for index in sorted(range(len(job.sizes)), key=lambda index: -job.sizes[index]):
        if self._pool and job.sizes[index] <= largest:
          yield index, held_out, expected[index]
          continue
        for block in _read_blocks(job, index, outcome.corpus, self._bytes_read, expected[index]):
          yield block, held_out

    for made in self._run("make", tasks(), lambda: progress("read", self._bytes_read.value, total)):
      outcome.add(made)
    return outcome

  def write(self, job: Job, outcome: Outcome, progress: Progress) -> list[RecordFile]:
    runs = sorted(outcome.runs, key=lambda run: run.path)  # The order of the blocks.
    by_split = {split: [run for run in runs if run.split == split] for split in SPLITS}
    tasks = [
      (by_split[split], split, shard)
      for split in SPLITS
      for shard in range(job.settings.num_shards_of(split))
    ]
    done: list[RecordFile] = []
    for record_file in self._run("finish_shard", iter(tasks), lambda: None):
      done.append(record_file)
      progress("write", len(done), len(tasks))
    return sorted(done, key=lambda file: (SPLITS.index(file.split), file.name))

  def _start(self, job: Job) -> None:
    """Starts the workers, which serve all stages.

    They are copies of a fresh interpreter that has imported what the tasks need and nothing else: TensorFlow
    only for remote files.
    """
    if self._num_workers == 1:
      self._worker = _Worker(job, self._bytes_read)
    elif self._pool is None:
      context = multiprocessing.get_context("forkserver")
      context.set_forkserver_preload([__name__])
      self._bytes_read = context.Value("q", 0)
      self._others = multiprocessing.active_children()
      self._pool = concurrent.futures.ProcessPoolExecutor(
        self._num_workers, mp_context=context, initializer=_start_worker, initargs=(job, self._bytes_read)
      )
    self._bytes_read.value = 0

  def _run(self, method: str, tasks: Iterator[tuple[Any, ...]], report: Callable[[], None]) -> Iterator[Any]:
    """Results of that method of `_Worker` for the arguments in `tasks`, in any order."""
    if self._pool is None:
      for arguments in tasks:
        report()
        yield getattr(self._worker, method)(*arguments)
      report()
      return
    waiting: set[concurrent.futures.Future[Any]] = set()
    while True:
      room = _IN_FLIGHT * self._num_workers - len(waiting)
      waiting |= {self._pool.submit(_work, method, *each) for each in itertools.islice(tasks, room)}
      report()
      if not waiting:
        return
      done, waiting = concurrent.futures.wait(waiting, _POLL_SECONDS, concurrent.futures.FIRST_COMPLETED)
      yield from map(_result, done)

  def close(self) -> None:
    """Ends the workers at once: unfinished tasks have left nothing that counts."""
    if self._pool is not None:
      workers = [child for child in multiprocessing.active_children() if child not in self._others]
      self._pool.shutdown(wait=False, cancel_futures=True)
      for worker in workers:
        worker.terminate()
    self._pool = None


class _Worker:
  """What one process does for a job; holds what is slow to build."""

  def __init__(self, job: Job, bytes_read: Any):
    self._job = job
    self._bytes_read = bytes_read
    self._block_maker = functools.cache(job.block_maker)  # Those who only write final files need none.

  def make(self, source: Block | int, held_out: Place | None, expected: int = 0) -> Outcome:
    """Makes a block, or all blocks of the file with that number, but not what an earlier run finished."""
    outcome = self._job.empty_outcome()
    blocks: Iterable[Block] = [source]  # type: ignore[list-item]
    if isinstance(source, int):
      blocks = _read_blocks(self._job, source, outcome.corpus, self._bytes_read, expected)
    for block in blocks:
      held_out_here = held_out if held_out in block.places else None
      outcome.add(self._finished(block, held_out_here) or self._make(block, held_out_here))
    return outcome

  def _finished(self, block: Block, held_out: Place | None) -> Outcome | None:
    """What an earlier run made of a block; None where it did not, or held out something else."""
    path = self._note_path(block)
    if not os.path.exists(path):
      return None
    note = json.loads(files.read_bytes(path))
    outcome = self._job.empty_outcome()
    outcome.add_json(note["outcome"])
    same = note["held_out"] == (list(held_out) if held_out else None)
    return outcome if same and all(run.is_whole() for run in outcome.runs) else None

  def _make(self, block: Block, held_out: Place | None) -> Outcome:
    outcome = self._job.empty_outcome()
    writers = {split: RunWriter(os.path.join(self._job.work_dir, block.name), split) for split in SPLITS}
    for split, instances in self._block_maker()(block, outcome, held_out=held_out):
      writers[split].add(instances)
    for writer in writers.values():
      outcome.runs += writer.finish()
    with files.atomic_writer(self._note_path(block), "w") as stream:
      json.dump({"held_out": held_out, "outcome": outcome.to_json()}, stream)
    return outcome

  def _note_path(self, block: Block) -> str:
    return os.path.join(self._job.work_dir, f"{block.name}.json")

  def finish_shard(self, runs: Sequence[Run], split: str, shard: int) -> RecordFile:
    """Writes one final file into the stage, or takes the one an earlier run finished."""
    job = self._job
    names = job.settings.shard_names(split)
    staged = os.path.join(job.stage_dir, names[shard])
    note = read_note(staged)
    for path in (staged, os.path.join(job.output_dir, names[shard])):
      if note is not None and files.exists(path) and files.size(path) == note.num_bytes:
        return note
    return write_shard(staged, split, merge_runs(runs, shard=shard, num_shards=len(names)))


def _read_blocks(
  job: Job, file_index: int, stats: CorpusStats, bytes_read: Any, expected: int
) -> Iterator[Block]:
  """Blocks of a file; meanwhile `bytes_read` grows by `expected`."""
  before, counted = stats.bytes_read, 0

  def count(reached: int) -> None:
    nonlocal counted
    with bytes_read.get_lock():
      bytes_read.value += reached - counted
    counted = reached

  for block in job.read_blocks(file_index, stats):
    count(min(expected, stats.bytes_read - before))
    yield block
  count(expected)


@dataclasses.dataclass
class _Unshared:
  """Stands for a number that processes share, where there is only one."""

  value: int = 0

  def get_lock(self) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


_worker: list[_Worker] = []  # Of this process of the pool.


def _start_worker(job: Job, bytes_read: Any) -> None:
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent reports an interruption, once.
  threading.Thread(target=_exit_with_parent, daemon=True).start()
  _worker.append(_Worker(job, bytes_read))


def _exit_with_parent() -> None:
  """A killed command cannot stop its workers; they would wait for tasks forever."""
  parent = multiprocessing.parent_process()
  if parent is not None:
    parent.join()
    os._exit(1)


def _work(method: str, *arguments: Any) -> Any:
  return getattr(_worker[0], method)(*arguments)


def _result(future: concurrent.futures.Future[Any]) -> Any:
  try:
    return future.result()
  except concurrent.futures.process.BrokenProcessPool as error:
    raise UserError(
      "Every worker must live to the end. Received: one was killed from outside, most often for want of memory. "
      "Give the same command again, with a smaller --num_workers: it continues from the finished parts."
    ) from error
