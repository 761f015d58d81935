"""Makes records in processes of this machine: the runner of `create_pretraining_data.py`.

Blocks become sorted runs on disk; ranges of their keys become final files (`stages.py`). A run that
continues finds the files of text again whose blocks are all made, and the final files.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
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

import numpy as np

from albert_tf import files, json_files, progress
from albert_tf.errors import UserError
from albert_tf.records import RecordFile
from tfrecords_tools.pretraining.job import Job
from tfrecords_tools.pretraining.settings import PASSES_OF_READING, SPLITS
from tfrecords_tools.pretraining.stages import (
  KEY_SPACE,
  Block,
  Result,
  Run,
  make_instances,
  read_blocks,
  read_description,
  read_sorted,
  write_runs,
  write_shard,
)

# Bytes of text times passes; for fewer, the start of processes takes longer than they save.
_WORTH_PROCESSES = 32 << 20
_LARGEST_TASK = 1.2  # Times a worker's equal share; a larger file is split.
_IN_FLIGHT = 2  # Tasks a worker that are read ahead: bounds memory.
_SHOWN_EVERY = 0.5  # Seconds.
_PROGRESS_NAME = "bytes_read"
# As `map`: the results of a function for each item, here in any order.
Map = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


def make_locally(job: Job, num_workers: int = 1) -> tuple[Result, list[RecordFile]]:
  """The `Runner` of processes on this machine; a single one does everything in this process."""
  work = sum(job.text_sizes) * (PASSES_OF_READING + job.settings.dupe_factor)
  if work < _WORTH_PROCESSES:
    num_workers = 1
  with contextlib.ExitStack() as stack:
    each: Map = map
    if num_workers > 1:
      each = stack.enter_context(worker_processes(num_workers))
    with _progress(job):
      result = _make_files(job, each, num_workers)
    return result, _write_shards(job, each, result.runs)


def _make_files(job: Job, each: Map, num_workers: int) -> Result:
  """Makes the sorted runs of all files of text.

  A worker takes a small file whole, so that workers read too. A file that would keep one worker
  longer than the others is read in this process, and its blocks go to the workers.
  """
  text_sizes = job.text_sizes
  largest_task = _LARGEST_TASK * sum(text_sizes) / num_workers
  # The largest first, so that the last to end is a small one.
  by_size = sorted(range(len(text_sizes)), key=lambda index: -text_sizes[index])
  large = [index for index in by_size if text_sizes[index] > largest_task]
  small = by_size[len(large) :]

  result = Result.of_nothing(job)
  for file_index in large:
    result += make_file(job, file_index, each)
  for file_result in each(functools.partial(make_file, job), small):
    result += file_result
  return result


def make_file(job: Job, file_index: int, each: Map = map) -> Result:
  """Makes all blocks of a file of text, unless an earlier run did; `each` may divide them."""
  finished = _finished_file(job, file_index)
  if finished is not None:
    _count(job, file_index, job.text_sizes[file_index])  # About, as it is not read.
    return finished
  result = Result.of_nothing(job)
  for block_result in each(functools.partial(make_block, job), _read(job, file_index)):
    result += block_result

  # Last the result, by which a later run knows that the file is finished.
  description = {"plan": job.file_sha256(file_index), "result": result.to_json()}
  files.write_text(_result_path(job, file_index), json.dumps(description))
  return result


def make_block(job: Job, block: Block) -> Result:
  """Writes the sorted runs of a block."""
  result = Result.of_nothing(job)
  prefix = os.path.join(job.work_dir, f"block-{block.file_index:05d}-{block.index:06d}")
  # A final file has records of one split, so each split has runs of its own.
  for split, instances in make_instances(job, block, result):
    result.runs += write_runs(prefix, split, instances)
  return result


def _finished_file(job: Job, file_index: int) -> Result | None:
  """An earlier run's result of a file; None if it is missing or incomplete."""
  description = json_files.find(_result_path(job, file_index), result=dict)
  if description.get("plan") != job.file_sha256(file_index):
    return None
  result = Result.from_json(description["result"], job)
  # After a loss of power the description may be there without the runs.
  if not all(run.is_complete() for run in result.runs):
    return None
  return result


def _result_path(job: Job, file_index: int) -> str:
  return os.path.join(job.work_dir, f"file-{file_index:05d}.json")


def _write_shards(job: Job, each: Map, runs: Sequence[Run]) -> list[RecordFile]:
  """Writes the final files from the sorted runs; train's first, each in their order."""
  shards = []
  for split in SPLITS:
    shards += [(split, shard) for shard in range(job.settings.num_shards_of(split))]
  in_order = sorted(runs, key=lambda run: run.path)  # The order of the blocks.
  written = each(functools.partial(_write_shard, job, in_order), shards)
  record_files = progress.track(written, len(shards), desc="writing files", unit="files")
  return sorted(record_files, key=lambda file: (file.split != "train", file.name))


def _write_shard(job: Job, runs: Sequence[Run], place: tuple[str, int]) -> RecordFile:
  """Writes one final file into the stage, unless an earlier run of the command finished it.

  Example:
    Of 4 files the one with number 1 has the keys from 1/4 to 2/4 of the key space.
  """
  split, shard = place
  names = job.settings.shard_names(split)
  name = names[shard]
  finished = read_description(job, name)
  if finished is not None:
    # It may have been moved into place already.
    for directory in (job.stage_dir, job.output_dir):
      path = os.path.join(directory, name)
      if files.exists(path) and files.size(path) == finished.num_bytes:
        return finished
  runs_of_split = [run for run in runs if run.split == split]
  low = shard * KEY_SPACE // len(names)
  high = (shard + 1) * KEY_SPACE // len(names)
  return write_shard(job, name, split, read_sorted(runs_of_split, low=low, high=high))


# Progress. Each process writes how much text of its files it has read, and this one shows the sum.


@contextlib.contextmanager
def _progress(job: Job) -> Iterator[None]:
  """Shows a bar of the text that all processes have read."""
  path = _progress_path(job)
  # The whole file first: a map of a file without room on the disk would end the process.
  files.write_bytes(path, bytes(8 * len(job.paths)))
  bytes_read = np.memmap(path, np.int64, "r")
  is_done = threading.Event()

  def show() -> None:
    with progress.bar(sum(job.text_sizes), desc="making instances", unit="B") as bar:
      while not is_done.wait(_SHOWN_EVERY):
        bar.update(int(bytes_read.sum()) - bar.n)

  shower = threading.Thread(target=show)
  shower.start()
  try:
    yield
  finally:
    is_done.set()
    shower.join()


def _read(job: Job, file_index: int) -> Iterator[Block]:
  """The blocks of a file, which are counted."""
  for block in read_blocks(job, file_index):
    _count(job, file_index, block.num_bytes)
    yield block


def _count(job: Job, file_index: int, num_bytes: int) -> None:
  np.memmap(_progress_path(job), np.int64, "r+")[file_index] += num_bytes


def _progress_path(job: Job) -> str:
  return os.path.join(job.work_dir, _PROGRESS_NAME)


# Processes. They are copies of a fresh interpreter that has imported what the tasks need and nothing
# else: TensorFlow only for remote files. They start with the first task.


@contextlib.contextmanager
def worker_processes(num_workers: int) -> Iterator[Map]:
  """Processes that do tasks, as a `map` in any order.

  Raises:
    UserError: a worker was killed.
  """
  # Not forks of this process: a lock that one of its threads holds would never be released.
  context = multiprocessing.get_context("forkserver")
  context.set_forkserver_preload([__name__])
  other_children = multiprocessing.active_children()
  pool = concurrent.futures.ProcessPoolExecutor(
    num_workers, mp_context=context, initializer=_start_worker
  )
  try:
    yield functools.partial(_map_in, pool, _IN_FLIGHT * num_workers)
  except concurrent.futures.BrokenExecutor as error:
    raise UserError(
      "Every worker process must finish. Received: one that was killed, as the system does when "
      "memory is short. Give the same command again, which continues, perhaps with fewer "
      "--num_workers."
    ) from error
  finally:
    # At once: unfinished tasks leave no results. A pool that shuts down forgets its processes, so
    # they are listed before.
    children = multiprocessing.active_children()
    pool.shutdown(wait=False, cancel_futures=True)
    for process in children:
      if process not in other_children:
        process.terminate()


def _map_in(
  pool: concurrent.futures.Executor,
  num_in_flight: int,
  function: Callable[[Any], Any],
  items: Iterable[Any],
) -> Iterator[Any]:
  """Yields the function's results; the next items are read while the workers are busy."""
  remaining = iter(items)
  waiting: set[concurrent.futures.Future[Any]] = set()
  while True:
    for item in itertools.islice(remaining, num_in_flight - len(waiting)):
      waiting.add(pool.submit(function, item))
    if not waiting:
      return
    done, waiting = concurrent.futures.wait(waiting, return_when=concurrent.futures.FIRST_COMPLETED)
    for future in done:
      yield future.result()


def _start_worker() -> None:
  """Begins a worker's process."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent reports an interruption, once.
  threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
  """Ends a worker after its command was killed: it would wait for tasks forever."""
  parent = multiprocessing.parent_process()
  if parent is not None:
    parent.join()
    os._exit(1)
