"""Makes records on this machine: blocks become sorted runs on disk, ranges of keys become final files."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
import itertools
import os
from typing import TYPE_CHECKING, Any

from albert_tf.records import RecordFile
from tfrecords_tools.pretraining.blocks import Outcome
from tfrecords_tools.pretraining.job import Job, Progress
from tfrecords_tools.pretraining.local.share import LARGEST_SHARE, Share
from tfrecords_tools.pretraining.local.work_notes import WorkNotes
from tfrecords_tools.pretraining.local.worker import OneWorker, read_blocks
from tfrecords_tools.pretraining.randomness import Place
from tfrecords_tools.pretraining.sorted_runs import Run, groups_of_round, read_group

if TYPE_CHECKING:
  from tfrecords_tools.pretraining.local.worker_pool import WorkerPool

_WORTH_PROCESSES = 32 << 20  # Bytes of text times passes; for fewer, their start takes longer than they save.
_PASSES_OF_READING = 2  # So many passes cost as much as reading and tokenizing.


def is_worth_processes(job: Job) -> bool:
  """Whether several processes end sooner than this one alone."""
  work = sum(job.text_sizes) * (_PASSES_OF_READING + job.settings.dupe_factor)
  parts = sum(max(1, size // job.block_bytes) for size in job.text_sizes)  # No more can be made at once.
  return work >= _WORTH_PROCESSES and parts > 1


class LocalRunner:
  """A `Runner` of processes on this machine; a single one does everything in this process.

  A task is one block, or all blocks of a small file: their reading is shared out too. A file that would keep
  one worker longer than the others is read here, and its blocks are handed out.

  Args:
    num_workers: processes; the records do not depend on their number.
    share: what is done here of a job that several machines share. Of a part of it, `make` and `write` raise
      `WaitForOthersError` when it is done.
    notice: told once what a person should know.
  """

  def __init__(
    self,
    *,
    num_workers: int = 1,
    share: Share | None = None,
    notice: Callable[[str], None] = lambda text: None,
  ):
    self._num_workers = num_workers
    self._share = share or Share()
    self._notice = notice
    self._pool: WorkerPool | OneWorker | None = None

  def find_duplicates(self, job: Job, progress: Progress) -> None:
    duplicates, share = job.duplicates, self._share
    owners = [
      index % share.count if owner is None else owner for index, owner in enumerate(share.owners(job.sizes))
    ]
    ours = [
      index for index, owner in enumerate(owners) if owner == share.index and not duplicates.is_hashed(index)
    ]
    ours.sort(key=lambda index: -job.sizes[index])
    for done, _ in enumerate(self._workers(job).run("hash", ((index,) for index in ours)), 1):
      progress("compare", done, len(ours))
    waiting_for = [owner for index, owner in enumerate(owners) if not duplicates.is_hashed(index)]
    if waiting_for:
      raise share.done("its part of the documents is ready to be compared", waiting_for)
    duplicates.compare(len(job.paths))

  def make(self, job: Job, held_out: Collection[Place], progress: Progress) -> Outcome:
    notes = WorkNotes(job)
    made_before = notes.read_all()
    if made_before is not None:
      return made_before
    owners = self._share.owners(job.sizes)
    # For the time left; the end of a file corrects it.
    ours = {
      index: size
      for index, (size, owner) in enumerate(zip(job.text_sizes, owners, strict=True))
      if owner is None or owner == self._share.index
    }
    total = sum(ours.values())
    pool = self._workers(job)
    pool.bytes_read.value = 0
    largest = LARGEST_SHARE * sum(job.sizes[index] for index in ours) / pool.num_workers
    outcome = job.empty_outcome()

    def tasks() -> Iterator[tuple[Any, ...]]:
      # The largest file first, so that the last to end is a small one.
      for index in sorted(ours, key=lambda index: -job.sizes[index]):
        shared_out = owners[index] is None and not self._share.is_whole
        if pool.num_workers > 1 and job.sizes[index] <= largest and not shared_out:
          yield index, held_out, ours[index]
          continue
        finished, missing = notes.read_file(index, held_out)
        if missing is None:
          with pool.bytes_read.get_lock():
            pool.bytes_read.value += ours[index]
          outcome.add(finished)
          continue
        for block in read_blocks(job, index, pool.bytes_read, ours[index]):
          if not shared_out or self._share.owns(block.index):
            yield block, held_out

    for made in pool.run("make", tasks(), lambda: progress("read", pool.bytes_read.value, total)):
      outcome.add(made)
    return outcome if self._share.is_whole else self._with_others(job, held_out, owners)

  def _with_others(self, job: Job, held_out: Collection[Place], owners: Sequence[int | None]) -> Outcome:
    """What all machines have made of the text."""
    notes = WorkNotes(job)
    outcome = job.empty_outcome()
    waiting_for = []
    for index, owner in enumerate(owners):
      made, missing = notes.read_file(index, held_out)
      outcome.add(made)
      if missing is not None:
        waiting_for.append(missing % self._share.count if owner is None else owner)
    if waiting_for:
      raise self._share.done("its part of the text is made", waiting_for)
    return outcome

  def write(self, job: Job, outcome: Outcome, progress: Progress) -> list[RecordFile]:
    WorkNotes(job).write_all(outcome)
    pool = self._workers(job)
    # In the order of the blocks.
    runs = {
      split: sorted((run for run in outcome.runs if run.split == split), key=lambda run: run.path)
      for split in job.splits
    }
    few = self._merge_in_rounds(job, runs, progress)
    tasks = [
      (few[split], split, shard) for split in job.splits for shard in range(job.settings.num_shards_of(split))
    ]
    ours = [task for number, task in enumerate(tasks) if self._share.owns(number)]
    done: list[RecordFile] = []
    for record_file in pool.run("finish_shard", iter(ours)):
      done.append(record_file)
      progress("write", len(done), len(ours))
    if not self._share.is_whole:
      raise self._share.done("its files are written", ())
    return sorted(done, key=lambda file: (file.split != "train", file.name))

  def _merge_in_rounds(
    self, job: Job, runs: Mapping[str, Sequence[Run]], progress: Progress
  ) -> Mapping[str, Sequence[Run]]:
    """By split, runs of the same records, few enough for one merge."""
    for level in itertools.count():
      groups = {split: groups_of_round(each) for split, each in runs.items()}
      tasks = [
        (group, os.path.join(job.work_dir, f"merged-{split}-{level}-{number:05d}.run"))
        for split, of_split in groups.items()
        for number, group in enumerate(of_split)
      ]
      if not tasks:
        break
      ours = [task for number, task in enumerate(tasks) if self._share.owns(number)]
      for done, _ in enumerate(self._workers(job).run("merge", iter(ours)), 1):
        progress("merge", done, len(ours))
      merged = [read_group(path) for _, path in tasks]
      waiting_for = [number % self._share.count for number, run in enumerate(merged) if run is None]
      if waiting_for:
        raise self._share.done("its part of the records is merged", waiting_for)
      found = iter([run for run in merged if run is not None])
      runs = {
        split: list(itertools.islice(found, len(groups[split]))) or each for split, each in runs.items()
      }
    return runs

  def _workers(self, job: Job) -> "WorkerPool | OneWorker":
    """The same for all stages."""
    if self._pool is None:
      if self._num_workers == 1 or not is_worth_processes(job):
        self._pool = OneWorker(job)
      else:
        from tfrecords_tools.pretraining.local.worker_pool import WorkerPool  # Slow to import.

        self._pool = WorkerPool(job, self._num_workers)
        self._tell_large_files(job)
    return self._pool

  def _tell_large_files(self, job: Job) -> None:
    """A plain file is cut into blocks as fast as it is read; of a compressed one that is slower."""
    largest = LARGEST_SHARE * sum(job.sizes) / self._num_workers
    large = [
      path
      for path, size, text_size in zip(job.paths, job.sizes, job.text_sizes, strict=True)
      if size > largest and text_size > size
    ]
    if large:
      more = f" and {len(large) - 1} more" if len(large) > 1 else ""
      self._notice(
        f"{large[0]}{more}: a compressed file cannot be split, so one process reads it and all make its instances. "
        "If they wait for it, give the text in several files, or uncompressed."
      )

  def close(self) -> None:
    """Ends the workers at once: unfinished tasks have left nothing that counts."""
    if self._pool is not None:
      self._pool.close()
    self._pool = None
