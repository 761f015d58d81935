"""What every worker needs to know of the work; it is sent to each once."""

from collections.abc import Callable, Sequence
import dataclasses
import os

from albert_tf.tokenization import Tokenizer
from tfrecords_tools.corpus import CorpusOptions, expected_text_bytes
from tfrecords_tools.pretraining.settings import RecordSettings

STAGE_DIR_NAME = "_unfinished"
# Bytes of text in a block: enough to be worth a task, few enough to divide a small corpus among workers.
SMALLEST_BLOCK, _LARGEST_BLOCK, _MOST_BLOCKS = 1 << 20, 4 << 20, 4096

Progress = Callable[[str, int, int], None]
"""Called with a stage (read|write), how much of it is done, and its total."""


@dataclasses.dataclass(frozen=True)
class Job:
  """Input, settings and directories of one creation of records.

  Args:
    paths: input files, in the order that numbers them.
    sizes: bytes of each.
    options: how they are read.
    tokenizer: the vocabulary.
    settings: what to make.
    output_dir: where the final files go.
    work_dir: directory of unfinished work.
    plan: hash of the plan; files of finished work carry it, so that none of another plan is ever taken.
  """

  paths: Sequence[str]
  sizes: Sequence[int]
  options: CorpusOptions
  tokenizer: Tokenizer
  settings: RecordSettings
  output_dir: str
  work_dir: str
  plan: str

  @property
  def stage_dir(self) -> str:
    """Where final files wait, on the file system of `output_dir`."""
    return os.path.join(self.output_dir, STAGE_DIR_NAME)

  @property
  def text_sizes(self) -> list[int]:
    """About how much text each input file gives, in bytes."""
    return [expected_text_bytes(path, size) for path, size in zip(self.paths, self.sizes, strict=True)]

  @property
  def block_bytes(self) -> int:
    """Text of a block: larger ones of a huge corpus, so that they stay few."""
    return min(max(sum(self.sizes) // _MOST_BLOCKS, SMALLEST_BLOCK), _LARGEST_BLOCK)
