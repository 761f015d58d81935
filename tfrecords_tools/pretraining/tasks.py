"""The two kinds of task a runner hands out: make a block's runs, and put a final file together."""

from collections.abc import Sequence
import dataclasses
import json
import os
from typing import Any

from albert_tf import files
from albert_tf.records import RecordFile
from albert_tf.tokenization import AlbertTokenizer
from tfrecords_tools.pretraining.blocks import SPLITS, Block, BlockProcessor, SplitDraw
from tfrecords_tools.pretraining.settings import PretrainingSettings
from tfrecords_tools.pretraining.spill import Run, RunWriter, write_shard
from tfrecords_tools.pretraining.statistics import Statistics


@dataclasses.dataclass(frozen=True)
class Job:
  """What every worker needs to know; it is sent to each once.

  Args:
    tokenizer: the vocabulary.
    settings: what to make.
    work_dir: local directory of unfinished work.
    output_dir: where the final files go.
    held_out: (file, document) to hold out whatever was drawn for it.
  """

  tokenizer: AlbertTokenizer
  settings: PretrainingSettings
  work_dir: str
  output_dir: str
  held_out: tuple[int, int] | None = None


@dataclasses.dataclass(frozen=True)
class BlockResult:
  """A finished block: its runs, its statistics as JSON, and which document is nearest to being held out."""

  name: str
  runs: tuple[Run, ...]
  statistics: dict[str, Any]
  nearest: SplitDraw

  def to_json(self) -> str:
    return json.dumps(dataclasses.asdict(self))

  @classmethod
  def from_json(cls, text: bytes) -> "BlockResult":
    fields = json.loads(text)
    runs = tuple(Run(**run) for run in fields["runs"])
    return cls(fields["name"], runs, fields["statistics"], SplitDraw(**fields["nearest"]))


def load_block_result(work_dir: str, name: str) -> BlockResult | None:
  """The result of a block that an earlier run finished."""
  path = os.path.join(work_dir, f"{name}.json")
  if not os.path.exists(path):
    return None
  with open(path, "rb") as stream:
    result = BlockResult.from_json(stream.read())
  whole = all(
    os.path.exists(f"{run.path}.npy") and os.path.getsize(run.path) == run.num_bytes for run in result.runs
  )
  return result if whole else None


class BlockTask:
  """Makes the runs of blocks; holds what is slow to build."""

  def __init__(self, job: Job):
    self._job = job
    self._processor = BlockProcessor(job.tokenizer, job.settings, held_out=job.held_out)

  def __call__(self, block: Block) -> BlockResult:
    job = self._job
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
    )
    with files.atomic_writer(os.path.join(job.work_dir, f"{block.name}.json"), "w") as stream:
      stream.write(result.to_json())
    return result


def shard_name(split: str, shard: int, num_shards: int) -> str:
  return f"{split}-{shard:05d}-of-{num_shards:05d}.tfrecord"


def finish_shard(job: Job, runs: Sequence[Run], split: str, shard: int, num_shards: int) -> RecordFile:
  """Writes one final file, or takes the one an earlier run finished."""
  name = shard_name(split, shard, num_shards)
  path, note = os.path.join(job.output_dir, name), os.path.join(job.work_dir, f"{name}.json")
  if os.path.exists(note) and files.exists(path):
    with open(note, "rb") as stream:
      finished = RecordFile(**json.loads(stream.read()))
    if files.size(path) == finished.num_bytes:
      return finished
  result = write_shard(runs, path, split=split, shard=shard, num_shards=num_shards)
  with files.atomic_writer(note, "w") as stream:
    stream.write(json.dumps(dataclasses.asdict(result)))
  return result
