"""The two kinds of task a runner hands out: make a block's runs, and put a final file together."""

from collections.abc import Sequence
import dataclasses
import json
import os
from typing import Any

from albert_tf import files
from albert_tf.records import RecordFile
from albert_tf.records.shard_index import INDEX_FOLDER, index_path
from albert_tf.tokenization import AlbertTokenizer
from tfrecords_tools.pretraining.blocks import SPLITS, Block, BlockProcessor, SplitDraw
from tfrecords_tools.pretraining.settings import PretrainingSettings
from tfrecords_tools.pretraining.spill import Run, RunWriter, write_shard
from tfrecords_tools.pretraining.statistics import Statistics

STAGE_DIR_NAME = "_unfinished"


@dataclasses.dataclass(frozen=True)
class Job:
  """What every worker needs to know; it is sent to each once.

  Args:
    tokenizer: the vocabulary.
    settings: what to make.
    work_dir: directory of unfinished work.
    output_dir: where the final files go.
    held_out: (file, document) to hold out whatever was drawn for it.
  """

  tokenizer: AlbertTokenizer
  settings: PretrainingSettings
  work_dir: str
  output_dir: str
  held_out: tuple[int, int] | None = None

  @property
  def stage_dir(self) -> str:
    """Where final files wait, on the file system of `output_dir`."""
    return os.path.join(self.output_dir, STAGE_DIR_NAME)


@dataclasses.dataclass(frozen=True)
class BlockResult:
  """A finished block.

  Attributes:
    name: the block's.
    runs: its sorted records.
    statistics: by split, as JSON.
    nearest: its document that is nearest to being held out.
    held_out: the document that was held out by name.
  """

  name: str
  runs: tuple[Run, ...]
  statistics: dict[str, Any]
  nearest: SplitDraw
  held_out: int | None

  def to_json(self) -> str:
    return json.dumps(
      {
        "name": self.name,
        "runs": [dataclasses.asdict(run) for run in self.runs],
        "statistics": self.statistics,
        "nearest": dataclasses.asdict(self.nearest),
        "held_out": self.held_out,
      }
    )

  @classmethod
  def from_json(cls, text: bytes) -> "BlockResult":
    fields = json.loads(text)
    runs = tuple(Run(**run) for run in fields["runs"])
    return cls(fields["name"], runs, fields["statistics"], SplitDraw(**fields["nearest"]), fields["held_out"])


def load_block_result(job: Job, block: Block) -> BlockResult | None:
  """What an earlier run made of a block; None where it did not, or held out something else."""
  path = os.path.join(job.work_dir, f"{block.name}.json")
  if not os.path.exists(path):
    return None
  with open(path, "rb") as stream:
    result = BlockResult.from_json(stream.read())
  whole = all(run.is_whole() for run in result.runs)
  return result if whole and result.held_out == _held_out_in(job, block) else None


def _held_out_in(job: Job, block: Block) -> int | None:
  """The document of `block` that `job` holds out by name."""
  if job.held_out is None or job.held_out[0] != block.file_index:
    return None
  document = job.held_out[1]
  return document if 0 <= document - block.first_document < len(block.documents) else None


class BlockTask:
  """Makes the runs of blocks; holds what is slow to build."""

  def __init__(self, job: Job):
    self.job = job
    self._processor = BlockProcessor(job.tokenizer, job.settings, held_out=job.held_out)

  def __call__(self, block: Block) -> BlockResult:
    job = self.job
    statistics = {split: Statistics(job.settings, job.tokenizer.vocab_size) for split in SPLITS}
    writers = {split: RunWriter(os.path.join(job.work_dir, block.name), split) for split in SPLITS}
    for split, instances in self._processor.process(block, statistics):
      writers[split].add(instances)
    for writer in writers.values():
      writer.flush()
    result = BlockResult(
      block.name,
      tuple(run for split in SPLITS for run in writers[split].runs),
      {split: statistics[split].to_json() for split in SPLITS},
      self._processor.nearest_to_eval(block),
      _held_out_in(job, block),
    )
    with files.atomic_writer(os.path.join(job.work_dir, f"{block.name}.json"), "w") as stream:
      stream.write(result.to_json())
    return result


def shard_name(split: str, shard: int, num_shards: int) -> str:
  return f"{split}-{shard:05d}-of-{num_shards:05d}.tfrecord"


def finish_shard(job: Job, runs: Sequence[Run], split: str, shard: int, num_shards: int) -> RecordFile:
  """Writes one final file into the stage, or takes the one an earlier run finished."""
  name = shard_name(split, shard, num_shards)
  note = os.path.join(job.stage_dir, f"{name}.json")
  if files.exists(note):
    with files.open_binary(note) as stream:
      finished = RecordFile(**json.loads(stream.read()))
    for directory in (job.stage_dir, job.output_dir):
      path = os.path.join(directory, name)
      if files.exists(path) and files.size(path) == finished.num_bytes:
        return finished
  path = os.path.join(job.stage_dir, name)
  result = write_shard(runs, path, split=split, shard=shard, num_shards=num_shards)
  with files.atomic_writer(note, "w") as stream:
    stream.write(json.dumps(dataclasses.asdict(result)))
  return result


def publish(job: Job, record_files: Sequence[RecordFile]) -> None:
  """Gives the final files their place, all at once: before, a cut-short run shows none of them."""
  files.makedirs(os.path.join(job.output_dir, INDEX_FOLDER))
  for record_file in record_files:
    staged, final = (os.path.join(folder, record_file.name) for folder in (job.stage_dir, job.output_dir))
    # The index goes first: one without its shard is harmless, a shard without its index is walked once more.
    for source, target in ((index_path(staged), index_path(final)), (staged, final)):
      if files.exists(source):
        files.rename(source, target)
