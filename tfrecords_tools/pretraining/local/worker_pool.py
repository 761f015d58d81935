"""Processes of this machine that serve a job."""

from collections.abc import Callable, Iterator
import concurrent.futures
import concurrent.futures.process
import itertools
import multiprocessing
import os
import signal
import threading
from typing import Any

from albert_tf.errors import UserError
from tfrecords_tools.pretraining.job import Job
from tfrecords_tools.pretraining.local import worker as worker_module
from tfrecords_tools.pretraining.local.worker import Worker

_POLL_SECONDS = 0.5
_IN_FLIGHT = 2  # Tasks a worker that are read ahead: bounds memory.


class WorkerPool:
  """Workers of a job for all its stages: a `OneWorker` of several processes.

  They are copies of a fresh interpreter that has imported what the tasks need and nothing else: TensorFlow only
  for remote files. They start with the first task.

  Args:
    job: what they work on.
    num_workers: processes.
  """

  def __init__(self, job: Job, num_workers: int):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([worker_module.__name__])
    self.num_workers = num_workers
    self.bytes_read: Any = context.Value("q", 0)
    self._others = multiprocessing.active_children()  # Of this process that are not the pool's.
    self._pool = concurrent.futures.ProcessPoolExecutor(
      num_workers, mp_context=context, initializer=_start_worker, initargs=(job, self.bytes_read)
    )

  def run(
    self, method: str, tasks: Iterator[tuple[Any, ...]], report: Callable[[], None] = lambda: None
  ) -> Iterator[Any]:
    """Results of that method of `Worker` for the arguments in `tasks`, in any order."""
    waiting: set[concurrent.futures.Future[Any]] = set()
    while True:
      room = _IN_FLIGHT * self.num_workers - len(waiting)
      waiting |= {self._pool.submit(_work, method, *each) for each in itertools.islice(tasks, room)}
      report()
      if not waiting:
        return
      done, waiting = concurrent.futures.wait(waiting, _POLL_SECONDS, concurrent.futures.FIRST_COMPLETED)
      yield from map(_result, done)

  def close(self) -> None:
    """Ends the workers at once: unfinished tasks have left nothing that counts."""
    workers = [child for child in multiprocessing.active_children() if child not in self._others]
    self._pool.shutdown(wait=False, cancel_futures=True)
    for process in workers:
      process.terminate()


_worker: list[Worker] = []  # Of this process of the pool.


def _start_worker(job: Job, bytes_read: Any) -> None:
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent reports an interruption, once.
  threading.Thread(target=_exit_with_parent, daemon=True).start()
  _worker.append(Worker(job, bytes_read))


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
