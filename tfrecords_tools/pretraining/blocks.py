"""The unit of work: some whole documents of one file. It bounds memory, and a restart skips finished ones."""

from collections.abc import Callable, Iterator
import dataclasses
import itertools
from typing import Any

from tfrecords_tools.corpus import Checksum, CorpusStats, iter_documents
from tfrecords_tools.pretraining.documents import BlockTokenizer, TokenizedDocument
from tfrecords_tools.pretraining.instances import Instance, InstanceMaker
from tfrecords_tools.pretraining.job import Job
from tfrecords_tools.pretraining.randomness import SPLIT_PASS, Place, SplitDraw, Stream
from tfrecords_tools.pretraining.settings import SPLITS
from tfrecords_tools.pretraining.sorted_runs import Run
from tfrecords_tools.pretraining.statistics import Statistics

_BYTES_AT_ONCE = 1 << 18  # Of text that is tokenized together: its words take thirty times as much memory.
_INSTANCES_AT_ONCE = 256


@dataclasses.dataclass(frozen=True)
class Block:
  """Consecutive documents of one file.

  Args:
    file_index: the file's place in the list of inputs.
    index: the block's place in the file.
    first_document: the place in the file of its first document.
    documents: raw sentences of each.
    corpus: with the last block of a file, which may be empty: what the readers counted in all of it.
  """

  file_index: int
  index: int
  first_document: int
  documents: list[list[str]]
  corpus: CorpusStats | None = None

  @property
  def places(self) -> list[Place]:
    return [Place(self.file_index, self.first_document + number) for number in range(len(self.documents))]


def read_blocks(job: Job, file_index: int, count: Callable[[int], None]) -> Iterator[Block]:
  """Reads the blocks of one file, at least one; where they are cut depends on the file alone.

  Args:
    job: names the file and how to read it.
    file_index: its number.
    count: told before each block how many bytes of text were read for it.
  """
  stats, checksum = CorpusStats(), Checksum()
  documents: list[list[str]] = []
  size = index = first = counted = 0
  for document in iter_documents(job.paths[file_index], job.options, stats=stats, checksum=checksum):
    if size >= job.block_bytes:
      count(stats.bytes_read - counted)
      counted = stats.bytes_read
      yield Block(file_index, index, first, documents)
      first += len(documents)
      index += 1
      documents, size = [], 0
    documents.append(document)
    size += _size(document)
  count(stats.bytes_read - counted)
  stats.checksums[file_index] = (checksum.num_bytes, checksum.crc32c)
  yield Block(file_index, index, first, documents, stats)


def _size(document: list[str]) -> int:
  return sum(map(len, document)) + len(document)


def _portions(documents: list[list[str]]) -> Iterator[list[list[str]]]:
  """Yields a few documents at a time."""
  few: list[list[str]] = []
  size = 0
  for document in documents:
    few.append(document)
    size += _size(document)
    if size >= _BYTES_AT_ONCE:
      yield few
      few, size = [], 0
  if few:
    yield few


class BlockResult:
  """What was made of some blocks.

  Attributes:
    statistics: by split.
    corpus: what the readers counted.
    nearest: of the documents with text, the one that is nearest to being held out; None without one.
    runs: sorted records on disk, where the runner keeps them so.
  """

  def __init__(self, job: Job):
    self.statistics = {split: Statistics(job.settings, job.tokenizer.vocab_size) for split in SPLITS}
    self.corpus = CorpusStats()
    self.nearest: SplitDraw | None = None
    self.runs: list[Run] = []

  @property
  def lacks_held_out(self) -> bool:
    """Whether nothing is held out though one of several documents could be."""
    counters = [statistics.counters for statistics in self.statistics.values()]
    with_text = sum(each["documents"] - each["empty_documents"] for each in counters)
    return with_text > 1 and not self.statistics["eval"].num_instances

  def add(self, other: "BlockResult") -> None:
    self.corpus.update(other.corpus)
    for split in SPLITS:
      self.statistics[split].add(other.statistics[split])
    self.nearest = min(filter(None, (self.nearest, other.nearest)), default=None)
    self.runs += other.runs

  def to_json(self) -> dict[str, Any]:
    return {
      "statistics": {split: statistics.to_json() for split, statistics in self.statistics.items()},
      "corpus": self.corpus.to_dict(),
      "nearest": self.nearest,
      "runs": [dataclasses.asdict(run) for run in self.runs],
    }

  @classmethod
  def from_json(cls, job: Job, fields: dict[str, Any]) -> "BlockResult":
    result = cls(job)
    for split in SPLITS:
      result.statistics[split].add_json(fields["statistics"][split])
    result.corpus = CorpusStats.from_dict(fields["corpus"])
    if fields["nearest"]:
      draw, place = fields["nearest"]
      result.nearest = SplitDraw(draw, Place(*place))
    result.runs = [Run(**run) for run in fields["runs"]]
    return result


class BlockMaker:
  """Makes all instances of a block, in a fixed order."""

  def __init__(self, job: Job):
    tokenizer, settings = job.tokenizer, job.settings
    self._job = job
    self._unk_id = tokenizer.unk_id
    self._is_torn = tokenizer.torn_pieces & (settings.whole_word == "original")
    self._tokenize = BlockTokenizer(tokenizer, settings.whole_word)
    self._make = InstanceMaker(tokenizer, settings)

  def __call__(
    self, block: Block, result: BlockResult, *, held_out: Place | None = None
  ) -> Iterator[tuple[str, list[Instance]]]:
    """Yields (split, instances) a few at a time, and counts them in `result`.

    Args:
      block: the documents.
      result: empty.
      held_out: a document to hold out whatever was drawn for it.
    """
    if block.corpus is not None:
      result.corpus.update(block.corpus)
    for split, numbered in self._split(block, result, held_out).items():
      others = [document for _, document in numbered]  # Never from the other split.
      drafts = (
        draft
        for place, document in numbered
        for dupe in range(self._job.settings.dupe_factor)
        for draft in self._make.drafts(document, self._stream(place, dupe), others=others)
      )
      while few := list(itertools.islice(drafts, _INSTANCES_AT_ONCE)):
        instances = self._make.finish(few)
        result.statistics[split].add_instances(instances)
        yield split, instances

  def _split(
    self, block: Block, result: BlockResult, held_out: Place | None
  ) -> dict[str, list[tuple[Place, TokenizedDocument]]]:
    """The documents of each split that have text, tokenized."""
    settings = self._job.settings
    limit = None if settings.is_original else settings.max_num_tokens // 2
    documents: list[TokenizedDocument] = []
    for few in _portions(block.documents):
      documents += self._tokenize(few, max_sentence_tokens=limit)
    by_split: dict[str, list[tuple[Place, TokenizedDocument]]] = {split: [] for split in SPLITS}
    for place, document in zip(block.places, documents, strict=True):
      draw = SplitDraw(self._stream(place, SPLIT_PASS).uniform(), place)
      split = "eval" if place == held_out or draw.draw < settings.eval_fraction else "train"
      counters = result.statistics[split].counters
      counters["documents"] += 1
      if not document.num_sentences:
        counters["empty_documents"] += 1
        continue
      if len(document.word_positions) > 1:  # A single word gives no pair of segments.
        result.nearest = min(result.nearest or draw, draw)
      counters["sentences"] += document.num_sentences
      counters["tokens"] += len(document.ids)
      counters["unknown"] += int((document.ids == self._unk_id).sum())
      counters["torn"] += int(self._is_torn[document.ids].sum())
      by_split[split].append((place, document))
    return by_split

  def _stream(self, place: Place, dupe: int) -> Stream:
    seed = self._job.settings.random_seed
    return Stream(seed=seed, file_index=place.file_index, document=place.document, dupe=dupe)
