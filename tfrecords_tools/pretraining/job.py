"""The whole job: make the instances, write the final files, describe them."""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import dataclasses
import errno
import os
from typing import Any, Protocol

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.records import Manifest, RecordFile
from albert_tf.records.shard_index import INDEX_FOLDER, index_path
from albert_tf.tokenization import Tokenizer
from tfrecords_tools.corpus import CorpusOptions, CorpusStats
from tfrecords_tools.pretraining.blocks import Block, BlockMaker, Outcome, Place, block_bytes_for, read_blocks
from tfrecords_tools.pretraining.plan import finished_before, make_plan, package_versions, prepare_work
from tfrecords_tools.pretraining.settings import SPLITS, PretrainingSettings
from tfrecords_tools.pretraining.statistics import baseline

_STAGE_DIR_NAME = "_unfinished"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)

Progress = Callable[[str, int, int], None]
"""Called with a stage (read|write), how much of it is done, and its total."""


@dataclasses.dataclass(frozen=True)
class Job:
  """What every worker needs to know; it is sent to each once.

  Args:
    paths: input files, in the order that numbers them.
    sizes: bytes of each.
    options: how they are read.
    tokenizer: the vocabulary.
    settings: what to make.
    output_dir: where the final files go.
    work_dir: directory of unfinished work.
    block_bytes: text of a block.
  """

  paths: Sequence[str]
  sizes: Sequence[int]
  options: CorpusOptions
  tokenizer: Tokenizer
  settings: PretrainingSettings
  output_dir: str
  work_dir: str
  block_bytes: int

  @property
  def stage_dir(self) -> str:
    """Where final files wait, on the file system of `output_dir`."""
    return os.path.join(self.output_dir, _STAGE_DIR_NAME)

  def read_blocks(self, file_index: int, stats: CorpusStats) -> Iterator[Block]:
    path = self.paths[file_index]
    return read_blocks(path, file_index, self.options, stats=stats, block_bytes=self.block_bytes)

  def block_maker(self) -> BlockMaker:
    return BlockMaker(self.tokenizer, self.settings)

  def empty_outcome(self) -> Outcome:
    return Outcome.empty(self.settings, self.tokenizer.vocab_size)


class Runner(Protocol):
  """Does the work of a job somewhere."""

  def make(self, job: Job, held_out: Place | None, progress: Progress) -> Outcome:
    """Makes all instances and keeps them sorted in `job.work_dir`."""

  def write(self, job: Job, outcome: Outcome, progress: Progress) -> list[RecordFile]:
    """Writes the final files of the instances made last into `job.stage_dir`, in their order."""

  def close(self) -> None:
    """Gives back what the runner holds."""


def create_records(
  paths: Sequence[str],
  output_dir: str,
  *,
  tokenizer: Tokenizer,
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
  work_dir = work_dir or os.path.join(output_dir, _STAGE_DIR_NAME)
  sizes = [file["num_bytes"] for file in plan["input"]["files"]]
  block_bytes = block_bytes_for(sum(sizes))
  job = Job(paths, sizes, options, tokenizer, settings, output_dir, work_dir, block_bytes)
  with _disk_errors(output_dir), contextlib.closing(runner):
    prepare_work(output_dir, (job.stage_dir, job.work_dir), plan)
    outcome = runner.make(job, None, progress)
    if settings.eval_fraction and outcome.nearest and not outcome.statistics["eval"].num_instances:
      # A small corpus may have no document drawn for eval: then the nearest one is held out.
      outcome = runner.make(job, outcome.nearest.place, progress)
    _check_outcome(outcome, paths, settings)
    record_files = runner.write(job, outcome, progress)
    manifest = _manifest(plan, tokenizer, settings, outcome, record_files)
    tokenizer.save_pretrained(output_dir)
    _publish(job, record_files)
    manifest.save(output_dir)
    for directory in {job.work_dir, job.stage_dir}:
      files.remove(directory)
  return manifest


def _publish(job: Job, record_files: Sequence[RecordFile]) -> None:
  """Gives the final files their place, all at once: before, a cut-short run shows none of them."""
  files.makedirs(os.path.join(job.output_dir, INDEX_FOLDER))
  for record_file in record_files:
    staged, final = (os.path.join(folder, record_file.name) for folder in (job.stage_dir, job.output_dir))
    # The index goes first: one without its shard is harmless, a shard without its index is walked once more.
    for source, target in ((index_path(staged), index_path(final)), (staged, final)):
      if files.exists(source):
        files.rename(source, target)


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
  tokenizer: Tokenizer,
  settings: PretrainingSettings,
  outcome: Outcome,
  record_files: Sequence[RecordFile],
) -> Manifest:
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
    versions=package_versions(),
  )
