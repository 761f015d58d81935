"""Makes records on this machine: blocks become sorted runs on disk, ranges of their keys become final files."""

from collections.abc import Callable, Iterator, Sequence
import concurrent.futures
import contextlib
import dataclasses
import functools
import itertools
import json
import multiprocessing
import os
import signal
import threading
from typing import Any, ClassVar

from albert_tf import files, progress
from albert_tf.errors import UserError
from albert_tf.records import RecordFile
from tfrecords_tools.pretraining.blocks import Block, BlockMaker, BlockResult, read_blocks
from tfrecords_tools.pretraining.job import Job, read_description, write_shard
from tfrecords_tools.pretraining.settings import PASSES_OF_READING, SPLITS
from tfrecords_tools.pretraining.sorted_runs import KEY_SPACE, Run, RunWriter, read_sorted

_WORTH_PROCESSES = 32 << 20  # Bytes of text times passes; for fewer, their start takes longer than they save.
_LARGEST_TASK = 1.2  # Times a worker's equal share; a larger file is split.
_POLL_SECONDS = 0.5
_IN_FLIGHT = 2  # Tasks a worker that are read ahead: bounds memory.


def is_worth_processes(job: Job) -> bool:
  """Whether several processes end sooner than this one alone."""
  work = sum(job.text_sizes) * (PASSES_OF_READING + job.settings.dupe_factor)
  tasks = sum(max(1, size // job.block_bytes) for size in job.text_sizes)  # The most that can run together.
  return work >= _WORTH_PROCESSES and tasks > 1


@dataclasses.dataclass(frozen=True)
class LocalRunner:
  """A `Runner` of processes on this machine; a single one does everything in this process.

  A task is one block, or all blocks of a small file, so that workers read too. A file that would keep one worker longer
  than the others is read in this process, and its blocks go to the workers.
  """

  num_workers: int = 1
  sorts_on_disk: ClassVar[bool] = True

  def __call__(self, job: Job) -> tuple[BlockResult, list[RecordFile]]:
    with contextlib.closing(_Workers(job, self.num_workers)) as workers:
      result = _make(job, workers)
      return result, _write(job, workers, result)


def _make(job: Job, workers: "_Workers") -> BlockResult:
  """Makes all instances, as sorted runs in `job.work_dir`."""
  largest = _LARGEST_TASK * sum(job.sizes) / workers.count
  result = BlockResult(job)

  def tasks() -> Iterator[tuple[Any, ...]]:
    # The largest file first, so that the last to end is a small one.
    for index in sorted(range(len(job.paths)), key=lambda index: -job.sizes[index]):
      finished = _finished_file(job, index)
      if finished is not None:
        result.add(finished)
        _count(workers.bytes_read, job.text_sizes[index])
      elif workers.count > 1 and job.sizes[index] <= largest:
        yield "make_file", index
      else:
        for block in read_blocks(job, index, functools.partial(_count, workers.bytes_read)):
          yield "make_block", block

  with progress.bar(sum(job.text_sizes), desc="making instances", unit="B") as shown:
    for made in workers.run(tasks(), lambda: shown.update(workers.bytes_read.value - shown.n)):
      result.add(made)
  return result


def _write(job: Job, workers: "_Workers", result: BlockResult) -> list[RecordFile]:
  """Writes the final files from the sorted runs."""
  runs = sorted(result.runs, key=lambda run: run.path)  # In the order of the blocks.
  tasks = [
    ("write_shard", [run for run in runs if run.split == split], split, shard)
    for split in SPLITS
    for shard in range(job.settings.num_shards_of(split))
  ]
  written = progress.track(workers.run(iter(tasks)), len(tasks), desc="writing files", unit="files")
  return sorted(written, key=lambda file: (file.split != "train", file.name))


class Worker:
  """One process's work on a job; keeps the parts that are slow to build."""

  def __init__(self, job: Job, bytes_read: Any):
    self._job = job
    self._bytes_read = bytes_read
    # Those who only write final files need none.
    self._block_maker = functools.cache(functools.partial(BlockMaker, job))

  def make_file(self, file_index: int) -> dict[str, Any]:
    """Makes all blocks of a file; returns the sum of their results."""
    result = BlockResult(self._job)
    for block in read_blocks(self._job, file_index, functools.partial(_count, self._bytes_read)):
      result.add(self.make_block(block))
    return result.to_json()

  def make_block(self, block: Block) -> dict[str, Any]:
    """Writes the sorted runs of a block, or takes those of an earlier run of the command; returns its result."""
    finished = _finished_block(self._job, block.file_index, block.index)
    if finished is not None:
      return finished
    result = BlockResult(self._job)
    prefix = _prefix(self._job, block.file_index, block.index)
    writers = {split: RunWriter(prefix, split) for split in SPLITS}
    for split, instances in self._block_maker()(block, result):
      writers[split].add(instances)
    for writer in writers.values():
      result.runs += writer.finish()
    made = result.to_json()
    described = {"plan": self._job.block_sha256(block.file_index), "result": made}
    files.write_text(f"{prefix}.json", json.dumps(described))
    return made

  def write_shard(self, runs: Sequence[Run], split: str, shard: int) -> RecordFile:
    """Writes one final file into the stage, or takes the one an earlier run of the command finished."""
    job = self._job
    names = job.settings.shard_names(split)
    staged, final = (os.path.join(folder, names[shard]) for folder in (job.stage_dir, job.output_dir))
    before = read_description(staged, plan=job.plan_sha256)
    if before and any(
      files.exists(path) and files.size(path) == before.num_bytes for path in (staged, final)
    ):
      return before
    low, high = (number * KEY_SPACE // len(names) for number in (shard, shard + 1))
    return write_shard(staged, split, read_sorted(runs, low=low, high=high), plan=job.plan_sha256)


def _prefix(job: Job, file_index: int, index: int) -> str:
  """The path prefix of a block's files, in the directory of unfinished work."""
  return os.path.join(job.work_dir, f"block-{file_index:05d}-{index:06d}")


def _finished_block(job: Job, file_index: int, index: int) -> dict[str, Any] | None:
  """An earlier run's result of a block; None if it is missing or incomplete."""
  path = f"{_prefix(job, file_index, index)}.json"
  fields = files.read_json(path, result=dict) if files.exists(path) else {}
  if fields.get("plan") != job.block_sha256(file_index):
    return None
  made: dict[str, Any] = fields["result"]
  return made if all(Run(**run).is_complete() for run in made["runs"]) else None


def _finished_file(job: Job, file_index: int) -> dict[str, Any] | None:
  """An earlier run's result of a file; None if one of its blocks is missing."""
  total = BlockResult(job)
  for index in itertools.count():
    made = _finished_block(job, file_index, index)
    if made is None:
      return None
    total.add(made)
    if made["corpus"]["files"]:  # Counted with the last block.
      break
  return total.to_json()


class _Workers:
  """Processes that serve a job in all its stages; with one, this process does everything.

  They are copies of a fresh interpreter that has imported what the tasks need and nothing else: TensorFlow only
  for remote files. They start with the first task.
  """

  def __init__(self, job: Job, num_workers: int):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    self.count = num_workers if is_worth_processes(job) else 1
    self.bytes_read: Any = context.Value("q", 0)
    self._others = multiprocessing.active_children()  # Child processes that are not workers.
    self._pool: concurrent.futures.ProcessPoolExecutor | None = None
    if self.count > 1:
      self._pool = concurrent.futures.ProcessPoolExecutor(
        self.count, mp_context=context, initializer=_start_worker, initargs=(job, self.bytes_read)
      )
    else:
      self._worker = Worker(job, self.bytes_read)

  def run(self, tasks: Iterator[tuple[Any, ...]], report: Callable[[], None] = lambda: None) -> Iterator[Any]:
    """Results of tasks, each the name of a method of `Worker` and its arguments; in any order."""
    if self._pool is None:
      for method, *arguments in tasks:
        report()
        yield getattr(self._worker, method)(*arguments)
      return
    waiting: set[concurrent.futures.Future[Any]] = set()
    try:
      while True:
        room = _IN_FLIGHT * self.count - len(waiting)
        waiting |= {self._pool.submit(_work, *task) for task in itertools.islice(tasks, room)}
        report()
        if not waiting:
          return
        done, waiting = concurrent.futures.wait(waiting, _POLL_SECONDS, concurrent.futures.FIRST_COMPLETED)
        yield from (future.result() for future in done)
    except concurrent.futures.BrokenExecutor as error:
      raise UserError(
        "Every worker process must finish. Received: one that was killed, as the system does when memory is "
        "short. Give the same command again, which continues, perhaps with fewer --num_workers."
      ) from error

  def close(self) -> None:
    """Ends the workers immediately: unfinished tasks leave no results."""
    if self._pool is None:
      return
    workers = [child for child in multiprocessing.active_children() if child not in self._others]
    self._pool.shutdown(wait=False, cancel_futures=True)
    for process in workers:
      process.terminate()


def _count(bytes_read: Any, num_bytes: int) -> None:
  with bytes_read.get_lock():
    bytes_read.value += num_bytes


_worker: list[Worker] = []  # This pool process's worker.


def _start_worker(job: Job, bytes_read: Any) -> None:
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent reports an interruption, once.
  threading.Thread(target=_exit_with_parent, daemon=True).start()
  _worker.append(Worker(job, bytes_read))


def _exit_with_parent() -> None:
  """Ends a worker after its command was killed: it would wait for tasks forever."""
  parent = multiprocessing.parent_process()
  if parent is not None:
    parent.join()
    os._exit(1)


def _work(method: str, *arguments: Any) -> Any:
  return getattr(_worker[0], method)(*arguments)
