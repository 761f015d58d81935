"""The unit of work: some whole documents of one file. It bounds memory, and a restart skips finished ones."""

from collections.abc import Collection, Iterator, Sequence
import dataclasses
import itertools
from typing import Any

from albert_tf.tokenization import Tokenizer
from tfrecords_tools.corpus import Checksum, CorpusOptions, CorpusStats, iter_documents
from tfrecords_tools.pretraining.documents import BlockTokenizer, TokenizedDocument
from tfrecords_tools.pretraining.instances import Instance, InstanceMaker
from tfrecords_tools.pretraining.randomness import SPLIT_PASS, WEIGHT_PASS, Place, SplitDraw, Stream
from tfrecords_tools.pretraining.settings import SPLITS, RecordSettings
from tfrecords_tools.pretraining.sorted_runs import Run
from tfrecords_tools.pretraining.sources import Source
from tfrecords_tools.pretraining.statistics import ALONE, SourceCounts, Statistics

# Bytes of text in a block: enough to be worth a task, few enough to share out a small corpus.
SMALLEST_BLOCK, _LARGEST_BLOCK, _MOST_BLOCKS = 1 << 20, 4 << 20, 4096
_BYTES_AT_ONCE = 1 << 18  # Of text that is tokenized together: its words take thirty times as much memory.
INSTANCES_AT_ONCE = 256


@dataclasses.dataclass(frozen=True)
class Block:
  """Consecutive documents of one file.

  Args:
    file_index: the file's place in the list of inputs.
    index: the block's place in the file.
    first_document: the place in the file of its first document.
    documents: raw sentences of each.
    corpus: with the last block of a file, which may be empty: what the readers counted in all of it.
    dropped: numbers of those left out as copies of earlier ones; they have no sentences.
  """

  file_index: int
  index: int
  first_document: int
  documents: list[list[str]]
  corpus: CorpusStats | None = None
  dropped: frozenset[int] = frozenset()

  @property
  def name(self) -> str:
    return f"block-{self.file_index:05d}-{self.index:06d}"

  @property
  def places(self) -> list[Place]:
    return [Place(self.file_index, self.first_document + number) for number in range(len(self.documents))]

  def holds(self, place: Place) -> bool:
    numbers = range(self.first_document, self.first_document + len(self.documents))
    return place.file_index == self.file_index and place.document in numbers


def block_bytes_for(total_bytes: int) -> int:
  """Size of a block for input files of this size together: larger ones of a huge corpus, so that they stay few."""
  return min(max(total_bytes // _MOST_BLOCKS, SMALLEST_BLOCK), _LARGEST_BLOCK)


def read_blocks(
  path: str, file_index: int, options: CorpusOptions, *, stats: CorpusStats, block_bytes: int
) -> Iterator[Block]:
  """Blocks of one file, at least one; where they are cut depends on the file alone. `stats` begins empty."""
  documents: list[list[str]] = []
  size = index = first = 0
  checksum = Checksum()
  for document in iter_documents(path, options, stats=stats, checksum=checksum):
    if size >= block_bytes:
      yield Block(file_index, index, first, documents)
      first += len(documents)
      index += 1
      documents, size = [], 0
    documents.append(document)
    size += _size(document)
  stats.checksums[file_index] = (checksum.num_bytes, checksum.crc32c)
  yield Block(file_index, index, first, documents, stats)


def _size(document: list[str]) -> int:
  return sum(map(len, document)) + len(document)


def portions(documents: list[list[str]]) -> Iterator[list[list[str]]]:
  """A few documents at a time."""
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


@dataclasses.dataclass
class Outcome:
  """What was made of some blocks.

  Attributes:
    statistics: by split.
    corpus: what the readers counted.
    sources: by name; one of an empty name where none is named.
    runs: sorted records on disk, where the runner keeps them so.
  """

  statistics: dict[str, Statistics]
  corpus: CorpusStats = dataclasses.field(default_factory=CorpusStats)
  sources: dict[str, SourceCounts] = dataclasses.field(default_factory=dict)
  runs: list[Run] = dataclasses.field(default_factory=list)

  @classmethod
  def empty(cls, settings: RecordSettings, vocab_size: int) -> "Outcome":
    return cls({split: Statistics(settings, vocab_size) for split in SPLITS})

  def add(self, other: "Outcome") -> None:
    self.corpus.update(other.corpus)
    for split in SPLITS:
      self.statistics[split].add(other.statistics[split])
    for name, counts in other.sources.items():
      self.sources.setdefault(name, SourceCounts()).add(counts)
    self.runs += other.runs

  def to_json(self) -> dict[str, Any]:
    return {
      "statistics": {split: statistics.to_json() for split, statistics in self.statistics.items()},
      "corpus": self.corpus.to_dict(),
      "sources": {name: dataclasses.asdict(counts) for name, counts in self.sources.items()},
      "runs": [dataclasses.asdict(run) for run in self.runs],
    }

  def add_json(self, fields: dict[str, Any]) -> None:
    """Adds what `to_json` gave."""
    for split in SPLITS:
      self.statistics[split].add_json(fields["statistics"][split])
    self.corpus.update(CorpusStats.from_dict(fields["corpus"]))
    for name, counts in fields["sources"].items():
      self.sources.setdefault(name, SourceCounts()).add(SourceCounts.from_json(counts))
    self.runs += [Run(**run) for run in fields["runs"]]


class BlockMaker:
  """Makes all instances of a block, in a fixed order.

  Args:
    tokenizer, settings: what decides the bytes.
    sources: of each input file.
  """

  def __init__(self, tokenizer: Tokenizer, settings: RecordSettings, sources: Sequence[Source]):
    self._unk_id = tokenizer.unk_id
    self._is_torn = tokenizer.torn_pieces & (settings.whole_word == "original")
    self._settings = settings
    self._sources = sources
    self._tokenize = BlockTokenizer(tokenizer, settings.whole_word)
    self._make = InstanceMaker(tokenizer, settings)

  def __call__(
    self, block: Block, outcome: Outcome, *, held_out: Collection[Place] = ()
  ) -> Iterator[tuple[str, list[Instance]]]:
    """Yields (train, eval or eval-SOURCE; instances) a few at a time, and counts them in `outcome`.

    A source's weight says how often its documents are gone through in train; held-out ones are gone through
    `dupe_factor` times, so that models of differently weighted records are measured on the same ones.

    Args:
      block: the documents.
      outcome: empty.
      held_out: documents to hold out whatever was drawn for them.
    """
    source = self._sources[block.file_index]
    counts = outcome.sources[source.name] = SourceCounts(duplicates=len(block.dropped))
    for split, numbered in self._split(block, outcome, counts, held_out).items():
      kind = split if split == "train" else source.eval_split
      statistics = outcome.statistics[split]
      others = [document for _, document in numbered]  # Never from the other split.
      dupe_factor = self._settings.dupe_factor
      passes = source.passes(dupe_factor) if split == "train" else (dupe_factor, 0.0)
      drafts = (
        draft
        for place, document in numbered
        for dupe in range(self._passes(place, *passes))
        for draft in self._make.drafts(document, self._stream(place, dupe), others=others)
      )
      while few := list(itertools.islice(drafts, INSTANCES_AT_ONCE)):
        instances = self._make.finish(few)
        statistics.add_instances(instances)
        yield kind, instances
    counts.count(outcome.statistics)

  def _passes(self, place: Place, whole: int, rest: float) -> int:
    """Passes over a document: the whole part for all, one more by a draw."""
    return whole + (rest > 0 and self._stream(place, WEIGHT_PASS).uniform() < rest)

  def _split(
    self, block: Block, outcome: Outcome, counts: SourceCounts, held_out: Collection[Place]
  ) -> dict[str, list[tuple[Place, TokenizedDocument]]]:
    """The documents of each split that have text, tokenized."""
    settings = self._settings
    limit = None if settings.is_original else settings.max_num_tokens // 2
    documents: list[TokenizedDocument] = []
    for few in portions(block.documents):
      documents += self._tokenize(few, max_sentence_tokens=limit)
    draws = [SplitDraw(self._stream(place, SPLIT_PASS).uniform(), place) for place in block.places]
    by_split: dict[str, list[tuple[Place, TokenizedDocument]]] = {split: [] for split in SPLITS}
    for draw, document in zip(draws, documents, strict=True):
      place = draw.place
      if place.document in block.dropped:
        continue
      split = "eval" if place in held_out or draw.draw < settings.eval_fraction else "train"
      counters = outcome.statistics[split].counters
      counters["documents"] += 1
      if not document.num_sentences:
        counters["empty_documents"] += 1
        continue
      if len(document.word_positions) > 1:  # A single word gives no pair of segments.
        counts.nearest = min(counts.nearest or draw, draw)
      counters["sentences"] += document.num_sentences
      counters["tokens"] += len(document.ids)
      counters["unknown"] += int((document.ids == self._unk_id).sum())
      counters["torn"] += int(self._is_torn[document.ids].sum())
      by_split[split].append((place, document))
    for split, numbered in by_split.items():
      if settings.sentence_pair == "nsp" and len(numbered) == 1:
        outcome.statistics[split].counters[ALONE] += 1
    return by_split

  def _stream(self, place: Place, dupe: int) -> Stream:
    seed = self._settings.random_seed
    return Stream(seed=seed, file_index=place.file_index, document=place.document, dupe=dupe)
