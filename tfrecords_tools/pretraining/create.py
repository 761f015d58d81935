"""The whole work: make the instances, write the final files, describe them."""

from collections.abc import Callable, Sequence
import contextlib
import os
from typing import ClassVar, Protocol

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.lock import DirectoryLock
from albert_tf.records import Manifest, RecordFile
from albert_tf.records.shard_index import INDEX_FOLDER, index_path
from albert_tf.tokenization import Tokenizer
from tfrecords_tools.corpus import CorpusOptions, detect_format
from tfrecords_tools.pretraining import job as jobs
from tfrecords_tools.pretraining.blocks import BlockResult
from tfrecords_tools.pretraining.estimate import check_room, estimate
from tfrecords_tools.pretraining.job import Job
from tfrecords_tools.pretraining.settings import SPLITS, RecordSettings
from tfrecords_tools.pretraining.statistics import baseline


class Runner(Protocol):
  """Makes all instances and writes the final files into `job.stage_dir`; these are named in their order."""

  sorts_on_disk: ClassVar[bool]  # Whether all records are in `job.work_dir` too, until they are sorted.

  def __call__(self, job: Job) -> tuple[BlockResult, list[RecordFile]]: ...


def create_records(
  paths: Sequence[str],
  output_dir: str,
  *,
  tokenizer: Tokenizer,
  settings: RecordSettings,
  options: CorpusOptions,
  runner: Runner,
  work_dir: str | None = None,
  notice: Callable[[str], None] = lambda text: None,
) -> Manifest:
  """Makes the records of a corpus, or continues an earlier run of the same plan.

  Args:
    paths: input files, in the order that numbers them.
    output_dir: for train-*, eval-*, manifest.json and the tokenizer.
    tokenizer, settings, options: what decides the bytes.
    runner: what does the work; the bytes do not depend on it.
    work_dir: where a folder for unfinished work is made, and removed at the end; default `output_dir`.
    notice: told how the first file is read and what the work will take, or that there is nothing to do.

  Returns:
    The manifest, saved in `output_dir` as the last step.

  Raises:
    UserError: nothing to make records of, no room for them, a directory made with other settings or held by another
      process, input that changes while it is read.
  """
  job = jobs.make_job(
    paths, output_dir, work_dir or output_dir, tokenizer=tokenizer, settings=settings, options=options
  )
  finished = jobs.finished_before(job)
  if finished is not None:
    jobs.remove_work(job)  # A run may have been cut short while it removed it.
    notice(f"nothing to do: {output_dir} is finished")
    return finished
  if options.input_format == "auto":
    notice(f"--input_format=auto: {paths[0]} is read as {detect_format(paths[0], options)}")
  work = estimate(job)
  if work is not None:
    notice(str(work))
    check_room(job, work.record_bytes, sorts_on_disk=runner.sorts_on_disk)
  jobs.prepare_work(job)
  with contextlib.ExitStack() as stack:
    locks = list(map(DirectoryLock, dict.fromkeys((job.stage_dir, job.work_dir))))
    for lock in locks:
      stack.callback(lock.release)
      lock.acquire()
    finished = jobs.finished_before(job)  # Another process may have, before it gave the lock back.
    if finished is None:
      result, record_files = runner(job)
      _check_result(result, job)
      for lock in locks:
        lock.check()
      finished = _manifest(job, result, record_files)
      tokenizer.save_pretrained(output_dir)
      _publish(job, record_files)
      finished.save(output_dir)
    jobs.remove_work(job)
  return finished


def _publish(job: Job, record_files: Sequence[RecordFile]) -> None:
  """Moves all final files into place together, so that a cut-short run shows none of them."""
  files.makedirs(os.path.join(job.output_dir, INDEX_FOLDER))
  for record_file in record_files:
    staged, final = (os.path.join(folder, record_file.name) for folder in (job.stage_dir, job.output_dir))
    # The index goes first: one without its shard is harmless, a shard without its index is walked once more.
    for source, target in ((index_path(staged), index_path(final)), (staged, final)):
      if files.exists(source):
        files.rename(source, target)


def _check_result(result: BlockResult, job: Job) -> None:
  train, held_out = (result.statistics[split].num_instances for split in SPLITS)
  if not train or (job.settings.eval_fraction and not held_out):
    raise UserError(
      f"The input must hold text{' for train and eval' if train + held_out else ''}. Received: {len(job.paths)} "
      f"file(s), the first {job.paths[0]}, with {result.corpus.documents} document(s), of which {train:,} instances "
      f"for train and {held_out:,} for eval could be made. Check --input and --input_format; pass --eval_fraction=0 "
      "to hold nothing out."
    )


def _manifest(job: Job, result: BlockResult, record_files: Sequence[RecordFile]) -> Manifest:
  settings, tokenizer = job.settings, job.tokenizer
  statistics = {split: result.statistics[split].summary() for split in SPLITS}
  return Manifest(
    vocab_size=tokenizer.vocab_size,
    vocab_sha256=tokenizer.model_sha256,
    max_seq_length=settings.max_seq_length,
    max_predictions_per_seq=settings.max_predictions_per_seq,
    sentence_pair=settings.sentence_pair,
    random_seed=settings.random_seed,
    files=tuple(record_files),
    baseline=baseline(result.statistics["train"], result.statistics["eval"], tokenizer),
    settings=job.plan["settings"],
    input={"files": jobs.input_of(job.plan)},
    statistics={"corpus": result.corpus.to_dict(), **statistics},
    versions=job.plan["versions"],
  )
