"""The whole job: make the instances, write the final files, describe them."""

from collections.abc import Callable, Collection, Iterator, Sequence
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
from tfrecords_tools.corpus import (
  CorpusOptions,
  CorpusStats,
  describe_formats,
  expected_text_bytes,
  mean_document_bytes,
)
from tfrecords_tools.pretraining.blocks import Block, BlockMaker, Outcome, block_bytes_for, read_blocks
from tfrecords_tools.pretraining.duplicates import Duplicates
from tfrecords_tools.pretraining.input_files import describe_input, read_input
from tfrecords_tools.pretraining.plan import (
  finished_before,
  make_plan,
  plan_sha256,
  prepare_work,
  remove_work,
)
from tfrecords_tools.pretraining.randomness import Place
from tfrecords_tools.pretraining.settings import SPLITS, RecordSettings
from tfrecords_tools.pretraining.sizing import decide_num_shards
from tfrecords_tools.pretraining.sources import Source, mapping_of, splits_of
from tfrecords_tools.pretraining.statistics import baseline, summarize_sources

STAGE_DIR_NAME = "_unfinished"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)

Progress = Callable[[str, int, int], None]
"""Called with a stage (compare|read|merge|write), how much of it is done, and its total."""


@dataclasses.dataclass(frozen=True)
class Job:
  """What every worker needs to know; it is sent to each once.

  Args:
    paths: input files, in the order that numbers them.
    sizes: bytes of each.
    sources: of each.
    options: how they are read.
    tokenizer: the vocabulary.
    settings: what to make.
    output_dir: where the final files go.
    work_dir: directory of unfinished work.
    block_bytes: text of a block.
    plan: hash of the plan; notes of finished work carry it, so that none of another plan is ever taken.
  """

  paths: Sequence[str]
  sizes: Sequence[int]
  sources: Sequence[Source]
  options: CorpusOptions
  tokenizer: Tokenizer
  settings: RecordSettings
  output_dir: str
  work_dir: str
  block_bytes: int
  plan: str

  @property
  def stage_dir(self) -> str:
    """Where final files wait, on the file system of `output_dir`."""
    return os.path.join(self.output_dir, STAGE_DIR_NAME)

  @property
  def splits(self) -> tuple[str, ...]:
    """What kinds of final files there are: train, and eval or eval-NAME for each source."""
    return splits_of(self.sources)

  @property
  def duplicates(self) -> Duplicates:
    return Duplicates(self.work_dir)

  @property
  def text_sizes(self) -> list[int]:
    """About how much text each input file gives, in bytes."""
    return [expected_text_bytes(path, size) for path, size in zip(self.paths, self.sizes, strict=True)]

  def read_blocks(self, file_index: int, stats: CorpusStats) -> Iterator[Block]:
    path = self.paths[file_index]
    blocks = read_blocks(path, file_index, self.options, stats=stats, block_bytes=self.block_bytes)
    return blocks if self.settings.dedup == "none" else self.duplicates.drop_from(blocks, file_index)

  def block_maker(self) -> BlockMaker:
    return BlockMaker(self.tokenizer, self.settings, self.sources)

  def empty_outcome(self) -> Outcome:
    return Outcome.empty(self.settings, self.tokenizer.vocab_size)


class Runner(Protocol):
  """Does the work of a job somewhere."""

  def find_duplicates(self, job: Job, progress: Progress) -> None:
    """Finds the documents that are copies of earlier ones, and keeps them in `job.duplicates`."""

  def make(self, job: Job, held_out: Collection[Place], progress: Progress) -> Outcome:
    """Makes all instances and keeps them sorted in `job.work_dir`; holds those documents out whatever was drawn."""

  def write(self, job: Job, outcome: Outcome, progress: Progress) -> list[RecordFile]:
    """Writes the final files of the instances made last into `job.stage_dir`, in their order."""

  def close(self) -> None:
    """Gives back what the runner holds."""


def create_records(
  paths: Sequence[str],
  output_dir: str,
  *,
  tokenizer: Tokenizer,
  settings: RecordSettings,
  options: CorpusOptions,
  runner: Runner,
  sources: Sequence[Source] | None = None,
  work_dir: str | None = None,
  verify_input: bool = False,
  progress: Progress = lambda stage, done, total: None,
  notice: Callable[[str], None] = lambda text: None,
) -> Manifest:
  """Makes the records of a corpus, or continues an earlier run of the same plan.

  Args:
    paths: input files, in the order that numbers them.
    output_dir: for train-*, eval-*, manifest.json and the tokenizer.
    tokenizer, settings, options: what decides the bytes.
    runner: what does the work; the bytes do not depend on it.
    sources: of each file; default one without a name for all.
    work_dir: where a folder for unfinished work is made, and removed at the end; default `output_dir`.
    verify_input: read all input first, and compare its content with what was there before.
    progress: told how far each stage is.
    notice: told what a person should know before it begins.

  Returns:
    The manifest, saved in `output_dir` as the last step.

  Raises:
    UserError: nothing to make records of, a directory made with other settings, a full disk.
    WaitForOthersError: the runner does a share of the job, and has done it.
  """
  sources = [Source()] * len(paths) if sources is None else sources
  described = describe_input(paths, verify=verify_input)
  sizes = [file["num_bytes"] for file in described]
  if not (settings.num_shards and settings.num_eval_shards):
    text_sizes, document_bytes = map(expected_text_bytes, paths, sizes), mean_document_bytes(paths, options)
    settings = decide_num_shards(settings, list(text_sizes), sources, document_bytes=document_bytes)
  plan = make_plan(described, tokenizer, settings, options)
  if mapping := mapping_of(sources):
    plan["input"]["sources"] = mapping
  stage_dir, work_dir = (
    os.path.join(folder, STAGE_DIR_NAME) for folder in (output_dir, work_dir or output_dir)
  )
  finished = finished_before(output_dir, plan)
  if finished is not None:
    remove_work((stage_dir, work_dir), plan)  # Of a run that was cut short while it did so.
    notice(f"nothing to do: {output_dir} is finished")
    return finished
  for line in describe_formats(paths, options):
    notice(line)
  block_bytes = block_bytes_for(sum(sizes))
  job = Job(
    paths,
    sizes,
    sources,
    options,
    tokenizer,
    settings,
    output_dir,
    work_dir,
    block_bytes,
    plan=plan_sha256(plan),
  )
  with _disk_errors(output_dir), contextlib.closing(runner):
    prepare_work(output_dir, (job.stage_dir, job.work_dir), plan)
    outcome = _make(job, runner, progress)
    _check_outcome(outcome, paths, settings)
    plan["input"] |= read_input(described, outcome.corpus.checksums)
    record_files = runner.write(job, outcome, progress)
    manifest = _manifest(plan, job, outcome, record_files)
    tokenizer.save_pretrained(output_dir)
    _publish(job, record_files)
    manifest.save(output_dir)
    remove_work((job.stage_dir, job.work_dir), plan)
  return manifest


def _make(job: Job, runner: Runner, progress: Progress) -> Outcome:
  """Makes all instances, copies left out where that is asked, of each source at least one document held out."""
  if job.settings.dedup == "exact" and not job.duplicates.is_known():
    runner.find_duplicates(job, progress)
  outcome = runner.make(job, (), progress)
  lacking = [each.nearest.place for each in outcome.sources.values() if each.lacks_held_out and each.nearest]
  if job.settings.eval_fraction and lacking:
    # A small corpus or source may have no document drawn for eval: then its nearest one is held out.
    outcome = runner.make(job, sorted(lacking), progress)
  return outcome


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


def _check_outcome(outcome: Outcome, paths: Sequence[str], settings: RecordSettings) -> None:
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
  plan: dict[str, Any], job: Job, outcome: Outcome, record_files: Sequence[RecordFile]
) -> Manifest:
  settings, tokenizer = job.settings, job.tokenizer
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
      "corpus": {name: value for name, value in outcome.corpus.to_dict().items() if name != "checksums"},
      **{split: outcome.statistics[split].summary() for split in SPLITS},
      "duplicates": sum(each.duplicates for each in outcome.sources.values()),
      "sources": summarize_sources(outcome.sources, job.sources),
    },
    versions=plan["versions"],
  )
