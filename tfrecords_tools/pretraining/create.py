"""The whole work of `create_pretraining_data.py`: make, write and describe records."""

from collections.abc import Callable, Sequence
import contextlib
from typing import ClassVar, Protocol

from albert_tf.errors import UserError
from albert_tf.lock import DirectoryLock
from albert_tf.records import Manifest, RecordFile
from tfrecords_tools.corpus import detect_format
from tfrecords_tools.pretraining import job as jobs
from tfrecords_tools.pretraining.estimate import check_room, estimate
from tfrecords_tools.pretraining.job import Job
from tfrecords_tools.pretraining.stages import BlockResult
from tfrecords_tools.pretraining.statistics import baseline


class Runner(Protocol):
  """Makes all instances and writes the final files into `job.stage_dir`, in their order."""

  # Whether all records are in `job.work_dir` too, until they are sorted.
  sorts_on_disk: ClassVar[bool]

  def __call__(self, job: Job) -> tuple[BlockResult, list[RecordFile]]: ...


def create_records(
  job: Job, runner: Runner, *, notice: Callable[[str], None] = lambda text: None
) -> Manifest:
  """Makes the records of a corpus, or continues an earlier run of the same plan.

  Args:
    job: input, settings and directories: what decides the bytes.
    runner: what does the work; the bytes do not depend on it.
    notice: receives how the first file is read and what the work will take, or that there is
      nothing to do.

  Returns:
    The manifest, saved in `job.output_dir` as the last step.

  Raises:
    UserError: nothing to make records of, no room for them, a directory made with other settings
      or held by another process, input that changes while it is read.
  """
  manifest = jobs.finished_before(job)
  if manifest is not None:
    jobs.remove_work(job)  # A run may have been cut short while it removed it.
    notice(f"nothing to do: {job.output_dir} is finished")
    return manifest

  # What the user should know before hours of work.
  if job.options.input_format == "auto":
    first_path = job.paths[0]
    first_format = detect_format(first_path, job.options)
    notice(f"--input_format=auto: {first_path} is read as {first_format}")
  work = estimate(job)
  if work is not None:
    notice(str(work))
    check_room(job, work.record_bytes, sorts_on_disk=runner.sorts_on_disk)

  jobs.prepare_work(job)
  with contextlib.ExitStack() as stack:
    locks = [DirectoryLock(directory) for directory in job.work_dirs]
    for lock in locks:
      stack.callback(lock.release)
      lock.acquire()
    # Another process may have finished before it gave the lock back.
    manifest = jobs.finished_before(job)
    if manifest is None:
      result, record_files = runner(job)
      _check_result(result, job)
      for lock in locks:
        lock.check()
      # The manifest last: it says that the directory is complete.
      manifest = _make_manifest(job, result, record_files)
      job.tokenizer.save_pretrained(job.output_dir)
      jobs.move_into_place(job, record_files)
      manifest.save(job.output_dir)
    jobs.remove_work(job)
  return manifest


def _check_result(result: BlockResult, job: Job) -> None:
  """Raises `UserError` where a split has no instances."""
  num_train = result.statistics["train"].num_instances
  num_eval = result.statistics["eval"].num_instances
  needs_eval = job.settings.eval_fraction > 0
  if num_train and (num_eval or not needs_eval):
    return
  raise UserError(
    f"The input must hold text for train and, unless --eval_fraction=0, for eval. Received: "
    f"{len(job.paths)} file(s), the first {job.paths[0]}, with {result.corpus.documents} "
    f"document(s), of which {num_train:,} instances for train and {num_eval:,} for eval could be "
    "made. Check --input and --input_format; pass --eval_fraction=0 to hold nothing out."
  )


def _make_manifest(job: Job, result: BlockResult, record_files: Sequence[RecordFile]) -> Manifest:
  settings = job.settings
  statistics = {split: counts.summary() for split, counts in result.statistics.items()}
  return Manifest(
    vocab_size=job.tokenizer.vocab_size,
    vocab_sha256=job.tokenizer.model_sha256,
    max_seq_length=settings.max_seq_length,
    max_predictions_per_seq=settings.max_predictions_per_seq,
    sentence_pair=settings.sentence_pair,
    random_seed=settings.random_seed,
    files=tuple(record_files),
    baseline=baseline(result.statistics["train"], result.statistics["eval"], job.tokenizer),
    settings=job.plan["settings"],
    input={"files": jobs.input_of(job.plan)},
    statistics={"corpus": result.corpus.to_dict()} | statistics,
    versions=job.plan["versions"],
  )
