"""Worker processes of this machine that make blocks, whole files of them, and final files; in any order."""

from collections.abc import Callable, Iterable, Iterator
import concurrent.futures
import concurrent.futures.process
import functools
import multiprocessing
import os
import signal
import threading
from typing import Any

from albert_tf.errors import UserError
from tfrecords_tools.pretraining import file_task
from tfrecords_tools.pretraining.blocks import Block
from tfrecords_tools.pretraining.file_task import FileJob, FileResult, make_file
from tfrecords_tools.pretraining.tasks import BlockResult, BlockTask, Job, finish_shard

_POLL_SECONDS = 0.5
_IN_FLIGHT = 2  # Tasks a worker that are read ahead: bounds memory.
_worker: dict[str, Any] = {}


class TaskPool:
  """Runs the tasks of one job in `num_workers` processes; 1 stays in this process.

  Workers are copies of a fresh interpreter that has imported what the tasks
  need and nothing else: TensorFlow only for remote files.
  """

  def __init__(self, job: Job, *, num_workers: int, num_files: int = 0):
    self.job = job
    self._num_workers = num_workers
    self._pool: concurrent.futures.ProcessPoolExecutor | None = None
    self._bytes_read: Any = None  # Of each file, written by the workers.
    self._others = multiprocessing.active_children()
    if num_workers > 1:
      context = multiprocessing.get_context("forkserver")
      context.set_forkserver_preload([file_task.__name__])
      self._bytes_read = context.RawArray("q", num_files)
      self._pool = concurrent.futures.ProcessPoolExecutor(
        num_workers, mp_context=context, initializer=_start_worker, initargs=(job, self._bytes_read)
      )

  def close(self) -> None:
    """Ends the workers at once: unfinished tasks have left nothing that counts."""
    if self._pool is not None:
      workers = [child for child in multiprocessing.active_children() if child not in self._others]
      self._pool.shutdown(wait=False, cancel_futures=True)
      for worker in workers:
        worker.terminate()

  def whole_files(
    self, file_jobs: Iterable[FileJob], report: Callable[[int, int], None]
  ) -> Iterator[FileResult]:
    """Results of `make_file`; `report` is told the place of a file and how much of it has been read."""
    if self._pool is None:
      task = BlockTask(self.job)
      for each in file_jobs:
        yield make_file(task, each, functools.partial(report, each.file_index))
      return
    waiting = {self._pool.submit(_file_in_worker, each) for each in file_jobs}
    while waiting:
      done, waiting = concurrent.futures.wait(waiting, _POLL_SECONDS, concurrent.futures.FIRST_COMPLETED)
      for file_index, bytes_read in enumerate(self._bytes_read):
        report(file_index, bytes_read)
      for future in done:
        yield _result(future)

  def blocks(self, blocks: Iterable[Block]) -> Iterator[BlockResult]:
    """Results of `BlockTask` for each block."""
    if self._pool is None:
      return map(BlockTask(self.job), blocks)
    return self._spread(_block_in_worker, ((block,) for block in blocks))

  def shards(self, arguments: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
    """Results of `finish_shard(job, *arguments)`."""
    if self._pool is None:
      return (finish_shard(self.job, *each) for each in arguments)
    return self._spread(_shard_in_worker, arguments)

  def _spread(self, function: Callable[..., Any], arguments: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
    assert self._pool is not None
    waiting: set[concurrent.futures.Future[Any]] = set()
    for each in arguments:
      waiting.add(self._pool.submit(function, *each))
      if len(waiting) >= _IN_FLIGHT * self._num_workers:
        done, waiting = concurrent.futures.wait(waiting, return_when=concurrent.futures.FIRST_COMPLETED)
        for future in done:
          yield _result(future)
    for future in concurrent.futures.as_completed(waiting):
      yield _result(future)


def _result(future: concurrent.futures.Future[Any]) -> Any:
  try:
    return future.result()
  except concurrent.futures.process.BrokenProcessPool as error:
    raise UserError(
      "Every worker must live to the end. Received: one was killed from outside, most often for want of memory. "
      "Give the same command again, with a smaller --num_workers: it continues from the finished parts."
    ) from error


def _start_worker(job: Job, bytes_read: Any) -> None:
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent reports an interruption, once.
  threading.Thread(target=_exit_with_parent, daemon=True).start()
  _worker["job"], _worker["bytes_read"] = job, bytes_read


def _exit_with_parent() -> None:
  """A killed command cannot stop its workers; they would wait for tasks forever."""
  parent = multiprocessing.parent_process()
  if parent is not None:
    parent.join()
    os._exit(1)


def _block_task() -> BlockTask:
  if "task" not in _worker:
    _worker["task"] = BlockTask(_worker["job"])
  task: BlockTask = _worker["task"]
  return task


def _block_in_worker(block: Block) -> BlockResult:
  return _block_task()(block)


def _file_in_worker(file_job: FileJob) -> FileResult:
  def report(count: int) -> None:
    _worker["bytes_read"][file_job.file_index] = count

  return make_file(_block_task(), file_job, report)


def _shard_in_worker(*arguments: Any) -> Any:
  return finish_shard(_worker["job"], *arguments)
