"""Worker processes of this machine that make blocks and final files; results come in any order."""

from collections.abc import Callable, Iterable, Iterator
import concurrent.futures
import multiprocessing
import os
import signal
import threading
from typing import Any

from tfrecords_tools.pretraining.blocks import Block
from tfrecords_tools.pretraining.tasks import BlockResult, BlockTask, Job, finish_shard

_IN_FLIGHT = 2  # Tasks a worker that are read ahead: bounds memory.
_worker: dict[str, Any] = {}


class TaskPool:
  """Runs the tasks of one job in `num_workers` processes; 1 stays in this process.

  Workers are copies of a fresh interpreter that has imported what the tasks
  need and nothing else: TensorFlow only for remote files.
  """

  def __init__(self, job: Job, *, num_workers: int):
    self.job = job
    self._num_workers = num_workers
    self._pool: concurrent.futures.ProcessPoolExecutor | None = None
    if num_workers > 1:
      context = multiprocessing.get_context("forkserver")
      context.set_forkserver_preload(["tfrecords_tools.pretraining.tasks"])
      self._pool = concurrent.futures.ProcessPoolExecutor(
        num_workers, mp_context=context, initializer=_start_worker, initargs=(job,)
      )

  def close(self) -> None:
    """Ends the workers; tasks that wait are dropped."""
    if self._pool is not None:
      self._pool.shutdown(cancel_futures=True)

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
          yield future.result()
    for future in concurrent.futures.as_completed(waiting):
      yield future.result()


def _start_worker(job: Job) -> None:
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent reports an interruption, once.
  threading.Thread(target=_exit_with_parent, daemon=True).start()
  _worker["job"] = job


def _exit_with_parent() -> None:
  """A killed command cannot stop its workers; they would wait for tasks forever."""
  parent = multiprocessing.parent_process()
  if parent is not None:
    parent.join()
    os._exit(1)


def _block_in_worker(block: Block) -> BlockResult:
  if "task" not in _worker:
    _worker["task"] = BlockTask(_worker["job"])
  result: BlockResult = _worker["task"](block)
  return result


def _shard_in_worker(*arguments: Any) -> Any:
  return finish_shard(_worker["job"], *arguments)
