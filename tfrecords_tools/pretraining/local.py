"""Makes records in processes of this machine: the runner of `create_pretraining_data.py`.

Blocks become sorted runs on disk; ranges of their keys become final files (`stages.py`). Finished
blocks and files are found again by a run that continues.
"""

from collections.abc import Callable, Iterator, Sequence
import concurrent.futures
import contextlib
import functools
import itertools
import json
import multiprocessing
import os
import signal
import threading
from typing import Any

from albert_tf import files, json_files, progress
from albert_tf.errors import UserError
from albert_tf.records import RecordFile
from tfrecords_tools.pretraining.job import Job
from tfrecords_tools.pretraining.settings import PASSES_OF_READING, SPLITS, Json
from tfrecords_tools.pretraining.stages import (
  KEY_SPACE,
  Block,
  BlockMaker,
  BlockResult,
  Run,
  read_blocks,
  read_description,
  read_sorted,
  write_runs,
  write_shard,
)

# Bytes of text times passes; for fewer, the start of processes takes longer than they save.
_WORTH_PROCESSES = 32 << 20
_LARGEST_TASK = 1.2  # Times a worker's equal share; a larger file is split.
_POLL_SECONDS = 0.5
_IN_FLIGHT = 2  # Tasks a worker that are read ahead: bounds memory.
_Task = tuple[Any, ...]  # A method of `Worker`, and its arguments.


def make_locally(job: Job, num_workers: int = 1) -> tuple[BlockResult, list[RecordFile]]:
  """The `Runner` of processes on this machine; a single one does everything in this process."""
  with contextlib.closing(_Workers(job, num_workers)) as workers:
    # All instances, as sorted runs. Results come in any order, but sums do not depend on it.
    result = BlockResult(job)
    with progress.bar(sum(job.text_sizes), desc="making instances", unit="B") as bar:
      tasks = _making_tasks(job, workers, result)
      for fields in workers.run(tasks, lambda: bar.update(workers.bytes_read.value - bar.n)):
        result.add(fields)
    return result, _write_shards(job, workers, result.runs)


def _making_tasks(job: Job, workers: "_Workers", result: BlockResult) -> Iterator[_Task]:
  """The tasks that make the instances of all files; adds to `result` what is finished already.

  A task is one block, or all blocks of a small file, so that workers read too. A file that would
  keep one worker longer than the others is read in this process, and its blocks go to the workers.
  """
  text_sizes = job.text_sizes
  largest_task = _LARGEST_TASK * sum(text_sizes) / workers.count
  # The largest file first, so that the last to end is a small one.
  for file_index in sorted(range(len(text_sizes)), key=lambda index: -text_sizes[index]):
    finished = _finished_file(job, file_index)
    if finished is not None:
      result.add(finished)
      _count(workers.bytes_read, text_sizes[file_index])  # About, as it is not read.
    elif workers.count > 1 and text_sizes[file_index] <= largest_task:
      yield Worker.make_file, file_index
    else:
      for block in read_blocks(job, file_index):
        _count(workers.bytes_read, block.num_bytes)
        yield Worker.make_block, block


def _count(bytes_read: Any, num_bytes: int) -> None:
  with bytes_read.get_lock():
    bytes_read.value += num_bytes


def _write_shards(job: Job, workers: "_Workers", runs: Sequence[Run]) -> list[RecordFile]:
  """Writes the final files from the sorted runs; train's first, each in their order."""
  tasks: list[_Task] = []
  runs = sorted(runs, key=lambda run: run.path)  # The order of the blocks.
  for split in SPLITS:
    runs_of_split = [run for run in runs if run.split == split]
    for shard in range(job.settings.num_shards_of(split)):
      tasks.append((Worker.write_shard, runs_of_split, split, shard))
  written = progress.track(workers.run(iter(tasks)), len(tasks), desc="writing files", unit="files")
  return sorted(written, key=lambda record_file: (record_file.split != "train", record_file.name))


class Worker:
  """One process's work on a job; keeps what is slow to build."""

  def __init__(self, job: Job, bytes_read: Any):
    self._job = job
    self._bytes_read = bytes_read
    # Built when it is needed: those who only write final files need none.
    self._block_maker = functools.cache(functools.partial(BlockMaker, job))

  def make_file(self, file_index: int) -> Json:
    """Makes all blocks of a file; returns the sum of their results."""
    result = BlockResult(self._job)
    for block in read_blocks(self._job, file_index):
      _count(self._bytes_read, block.num_bytes)
      result.add(self.make_block(block))
    return result.to_json()

  def make_block(self, block: Block) -> Json:
    """Writes the sorted runs of a block, unless an earlier run did; returns its result."""
    finished = _finished_block(self._job, block.file_index, block.index)
    if finished is not None:
      return finished
    result = BlockResult(self._job)
    prefix = _block_prefix(self._job, block.file_index, block.index)
    # A final file has records of one split, so each split has runs of its own.
    for split, instances in self._block_maker()(block, result):
      result.runs += write_runs(prefix, split, instances)

    # Last the result, by which a later run knows that the block is finished.
    fields = result.to_json()
    description = {"plan": self._job.block_sha256(block.file_index), "result": fields}
    files.write_text(f"{prefix}.json", json.dumps(description))
    return fields

  def write_shard(self, runs: Sequence[Run], split: str, shard: int) -> RecordFile:
    """Writes one final file into the stage, unless an earlier run of the command finished it.

    Example:
      Of 4 files the one with number 1 has the keys from 1/4 to 2/4 of the key space.
    """
    job = self._job
    names = job.settings.shard_names(split)
    name = names[shard]
    finished = read_description(job, name)
    if finished is not None:
      # It may have been moved into place already.
      for directory in (job.stage_dir, job.output_dir):
        path = os.path.join(directory, name)
        if files.exists(path) and files.size(path) == finished.num_bytes:
          return finished
    low = shard * KEY_SPACE // len(names)
    high = (shard + 1) * KEY_SPACE // len(names)
    return write_shard(job, name, split, read_sorted(runs, low=low, high=high))


def _block_prefix(job: Job, file_index: int, index: int) -> str:
  """The path prefix of a block's files, in the directory of unfinished work."""
  return os.path.join(job.work_dir, f"block-{file_index:05d}-{index:06d}")


def _finished_block(job: Job, file_index: int, index: int) -> Json | None:
  """An earlier run's result of a block; None if it is missing or incomplete."""
  path = f"{_block_prefix(job, file_index, index)}.json"
  description = json_files.find(path, result=dict)
  if description.get("plan") != job.block_sha256(file_index):
    return None
  result: Json = description["result"]
  # After a loss of power the description may be there without the runs.
  if not all(Run(**run).is_complete() for run in result["runs"]):
    return None
  return result


def _finished_file(job: Job, file_index: int) -> Json | None:
  """An earlier run's result of a file; None if one of its blocks is missing."""
  total = BlockResult(job)
  for index in itertools.count():
    finished = _finished_block(job, file_index, index)
    if finished is None:
      return None
    total.add(finished)
    if finished["corpus"]["files"]:  # Counted with the last block.
      break
  return total.to_json()


class _Workers:
  """Processes that serve a job in all its stages; with one, this process does everything.

  They are copies of a fresh interpreter that has imported what the tasks need and nothing else:
  TensorFlow only for remote files. They start with the first task.
  """

  def __init__(self, job: Job, num_workers: int):
    # Not forks of this process: a lock that one of its threads holds would never be released.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    self.count = 1
    work = sum(job.text_sizes) * (PASSES_OF_READING + job.settings.dupe_factor)
    if work >= _WORTH_PROCESSES:
      self.count = num_workers
    # How much text all processes have read, for the bar of progress.
    self.bytes_read: Any = context.Value("q", 0)
    self._other_children = multiprocessing.active_children()  # Processes that are not workers.
    self._pool: concurrent.futures.ProcessPoolExecutor | None = None
    if self.count > 1:
      self._pool = concurrent.futures.ProcessPoolExecutor(
        self.count,
        mp_context=context,
        initializer=_start_worker,
        initargs=(job, self.bytes_read),
      )
    else:
      self._worker = Worker(job, self.bytes_read)

  def run(self, tasks: Iterator[_Task], report: Callable[[], None] = lambda: None) -> Iterator[Any]:
    """Yields the results of tasks, in any order; calls `report` now and then.

    Raises:
      UserError: a worker was killed.
    """
    if self._pool is None:
      for method, *arguments in tasks:
        report()
        yield method(self._worker, *arguments)
      return

    # Submit tasks as results come in. The next tasks are read while the workers are busy.
    waiting: set[concurrent.futures.Future[Any]] = set()
    try:
      while True:
        num_free = _IN_FLIGHT * self.count - len(waiting)
        for task in itertools.islice(tasks, num_free):
          waiting.add(self._pool.submit(_do_task, *task))
        report()
        if not waiting:
          return
        done, waiting = concurrent.futures.wait(
          waiting, _POLL_SECONDS, concurrent.futures.FIRST_COMPLETED
        )
        for future in done:
          yield future.result()
    except concurrent.futures.BrokenExecutor as error:
      raise UserError(
        "Every worker process must finish. Received: one that was killed, as the system does when "
        "memory is short. Give the same command again, which continues, perhaps with fewer "
        "--num_workers."
      ) from error

  def close(self) -> None:
    """Ends the workers immediately: unfinished tasks leave no results."""
    if self._pool is None:
      return
    # A pool that shuts down forgets its processes, so they are listed before.
    children = multiprocessing.active_children()
    self._pool.shutdown(wait=False, cancel_futures=True)
    for process in children:
      if process not in self._other_children:
        process.terminate()


_worker: Worker  # Of this process, where the pool has started it.


def _start_worker(job: Job, bytes_read: Any) -> None:
  """Begins a worker's process."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent reports an interruption, once.
  threading.Thread(target=_exit_with_parent, daemon=True).start()
  global _worker
  _worker = Worker(job, bytes_read)


def _exit_with_parent() -> None:
  """Ends a worker after its command was killed: it would wait for tasks forever."""
  parent = multiprocessing.parent_process()
  if parent is not None:
    parent.join()
    os._exit(1)


def _do_task(method: Callable[..., Any], *arguments: Any) -> Any:
  return method(_worker, *arguments)
