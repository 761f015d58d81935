"""The whole job: make the instances, write the final files, describe them."""

from collections.abc import Iterator, Sequence
import contextlib
import dataclasses
import errno
import importlib.metadata
import os
import platform
from typing import Any

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.records import Manifest, RecordFile
from albert_tf.tokenization import AlbertTokenizer
from tfrecords_tools.corpus import CorpusOptions
from tfrecords_tools.pretraining.blocks import SPLITS
from tfrecords_tools.pretraining.outcome import Outcome, Progress, Runner
from tfrecords_tools.pretraining.plan import finished_before, make_plan, prepare_work
from tfrecords_tools.pretraining.settings import PretrainingSettings
from tfrecords_tools.pretraining.statistics import baseline
from tfrecords_tools.pretraining.tasks import STAGE_DIR_NAME, Job, publish

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


def create_records(
  paths: Sequence[str],
  output_dir: str,
  *,
  tokenizer: AlbertTokenizer,
  settings: PretrainingSettings,
  options: CorpusOptions,
  runner: Runner,
  work_dir: str | None = None,
  progress: Progress = lambda stage, done, total: None,
) -> Manifest:
  """Makes the records of a corpus, or continues an earlier run of the same plan.

  Args:
    paths: input files, in the order that numbers them.
    output_dir: for train-*, eval-*, manifest.json and the tokenizer.
    tokenizer, settings, options: what decides the bytes.
    runner: what does the work; the bytes do not depend on it.
    work_dir: directory for unfinished work; default inside `output_dir`.
    progress: told how far each stage is.

  Returns:
    The manifest, saved in `output_dir` as the last step.

  Raises:
    UserError: nothing to make records of, a directory made with other settings, a full disk.
  """
  plan = make_plan(paths, tokenizer, settings, options)
  finished = finished_before(output_dir, plan)
  if finished is not None:
    return finished
  job = Job(tokenizer, settings, work_dir or os.path.join(output_dir, STAGE_DIR_NAME), output_dir)
  with _disk_errors(output_dir), contextlib.closing(runner):
    prepare_work(output_dir, job.work_dir, job.stage_dir, plan)
    outcome = runner.make(job, paths, options, progress)
    if settings.eval_fraction and outcome.nearest and not outcome.statistics["eval"].num_instances:
      # A small corpus may have no document drawn for eval: then the nearest one is held out.
      job = dataclasses.replace(job, held_out=(outcome.nearest.file_index, outcome.nearest.document))
      outcome = runner.make(job, paths, options, progress)
    _check_outcome(outcome, paths, settings)
    record_files = runner.write(job, progress)
    manifest = _manifest(plan, tokenizer, settings, outcome, record_files)
    tokenizer.save_pretrained(output_dir)
    publish(job, record_files)
    manifest.save(output_dir)
    for directory in {job.work_dir, job.stage_dir}:
      files.remove(directory)
  return manifest


@contextlib.contextmanager
def _disk_errors(output_dir: str) -> Iterator[None]:
  """A full or read-only disk is the user's to mend; finished work is kept for the next try."""
  try:
    yield
  except OSError as error:
    received = f"{error.strerror}: {error.filename or output_dir}"
    if error.errno in _FULL:
      raise UserError(
        "The disk must have room for the records, twice while they are shuffled (about 4 bytes a token and "
        f"pass each time). Received: {received}. Make room and give the same command again: it continues "
        "from the finished parts."
      ) from error
    if error.errno in _FORBIDDEN:
      raise UserError(
        f"The output directory must be writable. Received: {received}. Change its permissions or choose "
        "another."
      ) from error
    raise


def _check_outcome(outcome: Outcome, paths: Sequence[str], settings: PretrainingSettings) -> None:
  train, held_out = (outcome.statistics[split] for split in SPLITS)
  if not train.num_instances + held_out.num_instances:
    raise UserError(
      f"The input must hold text. Received: {len(paths)} file(s), the first {paths[0]}, with "
      f"{outcome.corpus.documents} document(s) and nothing to make an instance of. Check --input and "
      "--input_format."
    )
  if not train.num_instances or (settings.eval_fraction and not held_out.num_instances):
    documents = sum(outcome.statistics[split].counters["documents"] for split in SPLITS)
    raise UserError(
      f"Train and eval must each hold a document. Received: {documents} document(s) with text, "
      f"eval_fraction={settings.eval_fraction}. Separate documents with blank lines, or pass "
      "--eval_fraction=0."
    )


def _manifest(
  plan: dict[str, Any],
  tokenizer: AlbertTokenizer,
  settings: PretrainingSettings,
  outcome: Outcome,
  record_files: Sequence[RecordFile],
) -> Manifest:
  packages = ("numpy", "sentencepiece", "google-crc32c")
  return Manifest(
    vocab_size=tokenizer.vocab_size,
    vocab_sha256=tokenizer.model_sha256,
    max_seq_length=settings.max_seq_length,
    max_predictions_per_seq=settings.max_predictions_per_seq,
    sentence_pair=settings.sentence_pair,
    random_seed=settings.random_seed,
    files=tuple(record_files),
    record_layout=settings.record_layout,
    baseline=baseline(outcome.statistics["train"], outcome.statistics["eval"], tokenizer),
    settings=plan["settings"],
    input=plan["input"],
    statistics={
      "corpus": outcome.corpus.to_dict(),
      **{split: outcome.statistics[split].summary() for split in SPLITS},
    },
    versions={
      "python": platform.python_version(),
      **{package: importlib.metadata.version(package) for package in packages},
    },
  )
