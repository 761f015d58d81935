"""A whole input file as one task: reading and splitting it is shared out too, where there are enough files."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tfrecords_tools.corpus import CorpusOptions
from tfrecords_tools.pretraining.blocks import read_blocks
from tfrecords_tools.pretraining.outcome import Outcome
from tfrecords_tools.pretraining.spill import Run
from tfrecords_tools.pretraining.tasks import BlockTask, load_block_result

_LARGEST_SHARE = (
  1.2  # Of what each worker would have; a larger file would keep one worker longer than the others.
)


class FileJob(NamedTuple):
  """What to read: the file's place among the inputs, its path, how, and the size of its blocks."""

  file_index: int
  path: str
  options: CorpusOptions
  block_bytes: int


class FileResult(NamedTuple):
  """The runs of a file and the counts of its blocks."""

  file_index: int
  runs: list[Run]
  outcome: Outcome


def make_file(task: BlockTask, file_job: FileJob, report: Callable[[int], None]) -> FileResult:
  """Makes the blocks of a file that no earlier run finished.

  Args:
    task: makes a block.
    file_job: the file.
    report: told how many bytes of text have been read.
  """
  outcome = Outcome.empty(task.job.settings, task.job.tokenizer.vocab_size)
  runs: list[Run] = []
  for block in read_blocks(
    file_job.path,
    file_job.file_index,
    file_job.options,
    stats=outcome.corpus,
    block_bytes=file_job.block_bytes,
  ):
    report(outcome.corpus.bytes_read)
    result = load_block_result(task.job, block) or task(block)
    runs += result.runs
    outcome.add_block(result)
  return FileResult(file_job.file_index, runs, outcome)


def can_share_files(sizes: Sequence[int], num_workers: int) -> bool:
  """Whether workers that take whole files end at about the same time."""
  return max(sizes) * num_workers <= _LARGEST_SHARE * sum(sizes)
