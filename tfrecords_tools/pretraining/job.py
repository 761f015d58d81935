"""What every worker needs to know of the work, and how each final file is written."""

from collections.abc import Callable, Iterable, Sequence
import dataclasses
import json
import os

from albert_tf import files
from albert_tf.records import RecordFile, ShardIndexer
from albert_tf.tokenization import Tokenizer
from tfrecords_tools.corpus import Checksum, CorpusOptions, expected_text_bytes
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
    block_bytes: text of a block, see `block_bytes_for`.
    plan: hash of the plan; files of finished work carry it, so that none of another plan is ever taken.
  """

  paths: Sequence[str]
  sizes: Sequence[int]
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
  def text_sizes(self) -> list[int]:
    """About how much text each input file gives, in bytes."""
    return [expected_text_bytes(path, size) for path, size in zip(self.paths, self.sizes, strict=True)]


def block_bytes_for(total_bytes: int) -> int:
  """Text of a block, of an input of so many bytes: larger ones of a huge corpus, so that they stay few."""
  return min(max(total_bytes // _MOST_BLOCKS, SMALLEST_BLOCK), _LARGEST_BLOCK)


def write_shard(path: str, split: str, records: Iterable[bytes | memoryview], *, plan: str) -> RecordFile:
  """Writes a final file, its index, and last the description by which a later run knows that it is complete.

  Args:
    path: of the file.
    split: train or eval.
    records: framed.
    plan: what a later run must have in common with this one.
  """
  checksum = Checksum()
  indexer = ShardIndexer()
  with files.atomic_writer(path) as stream:
    for record in records:
      data = bytes(record)
      stream.write(checksum.add(data))
      indexer.add(data)
  index = indexer.finish()
  index.save(path)
  written = RecordFile(os.path.basename(path), split, index.num_records, index.num_bytes, checksum.crc32c)
  files.write_json(f"{path}.json", {"plan": plan, "file": dataclasses.asdict(written)})
  return written


def read_description(path: str, *, plan: str) -> RecordFile | None:
  """What `write_shard` wrote beside a file; None where there is nothing, or of another plan."""
  if not files.exists(f"{path}.json"):
    return None
  described = json.loads(files.read_bytes(f"{path}.json"))
  return RecordFile(**described["file"]) if described["plan"] == plan else None
