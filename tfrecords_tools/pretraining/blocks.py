"""The unit of work: some whole documents of one file. It bounds memory, and a restart skips finished ones."""

from collections.abc import Iterator
import dataclasses
from typing import Any, NamedTuple

from albert_tf.tokenization import Tokenizer
from tfrecords_tools.corpus import CorpusOptions, CorpusStats, iter_documents
from tfrecords_tools.pretraining.documents import BlockTokenizer, TokenizedDocument
from tfrecords_tools.pretraining.instances import Instance, InstanceMaker
from tfrecords_tools.pretraining.randomness import SPLIT_PASS, Stream
from tfrecords_tools.pretraining.settings import SPLITS, PretrainingSettings
from tfrecords_tools.pretraining.shards import Run
from tfrecords_tools.pretraining.statistics import Statistics

# Bytes of text in a block: enough to be worth a task, few enough to share out a small corpus.
SMALLEST_BLOCK, _LARGEST_BLOCK, _MOST_BLOCKS = 1 << 20, 16 << 20, 4096
_INSTANCES_AT_ONCE = 1024


class Place(NamedTuple):
  """A document: its file among the inputs, and its place there."""

  file_index: int
  document: int


class SplitDraw(NamedTuple):
  """What was drawn for a document; the smallest draws are held out."""

  draw: float
  place: Place


@dataclasses.dataclass(frozen=True)
class Block:
  """Consecutive documents of one file.

  Args:
    file_index: the file's place in the list of inputs.
    index: the block's place in the file.
    first_document: the place in the file of its first document.
    documents: raw sentences of each.
  """

  file_index: int
  index: int
  first_document: int
  documents: list[list[str]]

  @property
  def name(self) -> str:
    return f"block-{self.file_index:05d}-{self.index:06d}"

  @property
  def places(self) -> list[Place]:
    return [Place(self.file_index, self.first_document + number) for number in range(len(self.documents))]


def block_bytes_for(total_bytes: int) -> int:
  """Size of a block for input files of this size together: larger ones of a huge corpus, so that they stay few."""
  return min(max(total_bytes // _MOST_BLOCKS, SMALLEST_BLOCK), _LARGEST_BLOCK)


def read_blocks(
  path: str, file_index: int, options: CorpusOptions, *, stats: CorpusStats, block_bytes: int
) -> Iterator[Block]:
  """Blocks of one file; where they are cut depends on the file alone."""
  documents: list[list[str]] = []
  size = index = first = 0
  for document in iter_documents(path, options, stats=stats):
    documents.append(document)
    size += sum(map(len, document)) + len(document)
    if size >= block_bytes:
      yield Block(file_index, index, first, documents)
      first += len(documents)
      index += 1
      documents, size = [], 0
  if documents:
    yield Block(file_index, index, first, documents)


@dataclasses.dataclass
class Outcome:
  """What was made of some blocks.

  Attributes:
    statistics: by split.
    corpus: what the readers counted.
    nearest: the document that is nearest to being held out; None without one.
    runs: sorted records on disk, where the runner keeps them so.
  """

  statistics: dict[str, Statistics]
  corpus: CorpusStats = dataclasses.field(default_factory=CorpusStats)
  nearest: SplitDraw | None = None
  runs: list[Run] = dataclasses.field(default_factory=list)

  @classmethod
  def empty(cls, settings: PretrainingSettings, vocab_size: int) -> "Outcome":
    return cls({split: Statistics(settings, vocab_size) for split in SPLITS})

  def add(self, other: "Outcome") -> None:
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

  def add_json(self, fields: dict[str, Any]) -> None:
    """Adds what `to_json` gave."""
    for split in SPLITS:
      self.statistics[split].add_json(fields["statistics"][split])
    self.corpus.update(CorpusStats.from_dict(fields["corpus"]))
    if fields["nearest"]:
      draw, place = fields["nearest"]
      self.nearest = min(filter(None, (self.nearest, SplitDraw(draw, Place(*place)))))
    self.runs += [Run(**run) for run in fields["runs"]]


class BlockMaker:
  """Makes all instances of a block, in a fixed order."""

  def __init__(self, tokenizer: Tokenizer, settings: PretrainingSettings):
    self._unk_id = tokenizer.unk_id
    self._is_torn = tokenizer.torn_pieces & (settings.whole_word == "original")
    self._settings = settings
    self._tokenize = BlockTokenizer(tokenizer, settings.whole_word)
    self._make = InstanceMaker(tokenizer, settings)

  def __call__(
    self, block: Block, outcome: Outcome, *, held_out: Place | None = None
  ) -> Iterator[tuple[str, list[Instance]]]:
    """Yields (split, instances) a few at a time, and counts them in `outcome`.

    Args:
      block: the documents.
      outcome: empty.
      held_out: a document to hold out whatever was drawn for it.
    """
    settings = self._settings
    for split, numbered in self._split(block, outcome, held_out).items():
      statistics = outcome.statistics[split]
      others = [document for _, document in numbered]  # Never from the other split.
      buffer: list[Instance] = []
      for place, document in numbered:
        for dupe in range(settings.dupe_factor):
          for instance in self._make(document, self._stream(place, dupe), others=others):
            buffer.append(instance)
            if len(buffer) >= _INSTANCES_AT_ONCE:  # One document may give very many.
              statistics.add_instances(buffer)
              yield split, buffer
              buffer = []
      statistics.add_instances(buffer)
      yield split, buffer

  def _split(
    self, block: Block, outcome: Outcome, held_out: Place | None
  ) -> dict[str, list[tuple[Place, TokenizedDocument]]]:
    """The documents of each split that have text, tokenized."""
    settings = self._settings
    limit = None if settings.is_original else settings.max_num_tokens // 2
    documents = self._tokenize(block.documents, max_sentence_tokens=limit)
    draws = [SplitDraw(self._stream(place, SPLIT_PASS).uniform(), place) for place in block.places]
    outcome.nearest = min(draws)
    by_split: dict[str, list[tuple[Place, TokenizedDocument]]] = {split: [] for split in SPLITS}
    for (draw, place), document in zip(draws, documents, strict=True):
      split = "eval" if place == held_out or draw < settings.eval_fraction else "train"
      counters = outcome.statistics[split].counters
      counters["documents"] += 1
      if not document.num_sentences:
        counters["empty_documents"] += 1
        continue
      counters["sentences"] += document.num_sentences
      counters["tokens"] += len(document.ids)
      counters["unknown"] += int((document.ids == self._unk_id).sum())
      counters["torn"] += int(self._is_torn[document.ids].sum())
      by_split[split].append((place, document))
    return by_split

  def _stream(self, place: Place, dupe: int) -> Stream:
    seed = self._settings.random_seed
    return Stream(seed=seed, file_index=place.file_index, document=place.document, dupe=dupe)
