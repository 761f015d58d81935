"""What a runner reports of the instances it made, and what every runner can do."""

from collections.abc import Callable, Sequence
import dataclasses
from typing import Protocol

from albert_tf.records import RecordFile
from tfrecords_tools.corpus import CorpusOptions, CorpusStats
from tfrecords_tools.pretraining.blocks import SPLITS, SplitDraw
from tfrecords_tools.pretraining.settings import PretrainingSettings
from tfrecords_tools.pretraining.statistics import Statistics
from tfrecords_tools.pretraining.tasks import BlockResult, Job

Progress = Callable[[str, int, int], None]
"""Called with a stage (read|write), how much of it is done, and its total."""


@dataclasses.dataclass
class Outcome:
  """Counts over all blocks.

  Attributes:
    statistics: by split.
    corpus: what the readers counted.
    nearest: the document that is nearest to being held out; None without one.
  """

  statistics: dict[str, Statistics]
  corpus: CorpusStats
  nearest: SplitDraw | None = None

  @classmethod
  def empty(cls, settings: PretrainingSettings, vocab_size: int) -> "Outcome":
    return cls({split: Statistics(settings, vocab_size) for split in SPLITS}, CorpusStats())

  def add_block(self, result: BlockResult) -> None:
    """Adds a block; what the readers counted comes from them."""
    for split in SPLITS:
      self.statistics[split].add_json(result.statistics[split])
    self.note(result.nearest)

  def add(self, other: "Outcome") -> None:
    self.corpus.update(other.corpus)
    for split in SPLITS:
      self.statistics[split].add(other.statistics[split])
    self.note(other.nearest)

  def note(self, nearest: SplitDraw | None) -> None:
    candidates = [draw for draw in (self.nearest, nearest) if draw is not None]
    self.nearest = min(candidates, key=lambda draw: (draw.draw, draw.file_index, draw.document), default=None)


class Runner(Protocol):
  """Runs the tasks of a job somewhere."""

  def make(self, job: Job, paths: Sequence[str], options: CorpusOptions, progress: Progress) -> Outcome:
    """Makes all instances and keeps them sorted in `job.work_dir`."""

  def write(self, job: Job, progress: Progress) -> list[RecordFile]:
    """Writes the final files of the instances made last."""

  def close(self) -> None:
    """Gives back what the runner holds."""


def num_shards(settings: PretrainingSettings, split: str) -> int:
  """Number of final files of a split."""
  if split == "train":
    return settings.num_shards
  return settings.num_eval_shards if settings.eval_fraction else 0
