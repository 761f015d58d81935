"""The unit of work: some whole documents of one file. It bounds memory, and a restart skips finished ones."""

from collections.abc import Iterator
import dataclasses

from albert_tf.tokenization import AlbertTokenizer
from tfrecords_tools.corpus import CorpusOptions, CorpusStats, iter_documents
from tfrecords_tools.pretraining.documents import BlockTokenizer, TokenizedDocument
from tfrecords_tools.pretraining.instances import Instance, InstanceMaker
from tfrecords_tools.pretraining.randomness import SPLIT_PASS, Stream
from tfrecords_tools.pretraining.settings import PretrainingSettings
from tfrecords_tools.pretraining.statistics import Statistics

# Bytes of text in a block: enough to be worth a task, few enough to share out a small corpus.
_SMALLEST_BLOCK, _LARGEST_BLOCK, _MOST_BLOCKS = 1 << 20, 16 << 20, 4096
_INSTANCES_AT_ONCE = 1024
SPLITS = ("train", "eval")


@dataclasses.dataclass(frozen=True)
class Block:
  """Consecutive documents of one file.

  Args:
    file_index: the file's place in the sorted list of inputs.
    index: the block's place in the file.
    first_document: the place in the file of its first document.
    documents: raw sentences of each.
    num_bytes: size of the text.
  """

  file_index: int
  index: int
  first_document: int
  documents: list[list[str]]
  num_bytes: int

  @property
  def name(self) -> str:
    return f"block-{self.file_index:05d}-{self.index:06d}"


def block_bytes_for(total_bytes: int) -> int:
  """Size of a block for input files of this size together: larger ones of a huge corpus, so that they stay few."""
  return min(max(total_bytes // _MOST_BLOCKS, _SMALLEST_BLOCK), _LARGEST_BLOCK)


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
      yield Block(file_index, index, first, documents, size)
      first += len(documents)
      index += 1
      documents, size = [], 0
  if documents:
    yield Block(file_index, index, first, documents, size)


@dataclasses.dataclass(frozen=True)
class SplitDraw:
  """The document of a block that is nearest to being held out: drawn number, file, place in the file."""

  draw: float
  file_index: int
  document: int


class BlockProcessor:
  """Makes all instances of a block, in a fixed order.

  Args:
    tokenizer: the vocabulary.
    settings: what to make.
    held_out: (file, document) to hold out whatever was drawn for it.
  """

  def __init__(
    self,
    tokenizer: AlbertTokenizer,
    settings: PretrainingSettings,
    *,
    held_out: tuple[int, int] | None = None,
  ):
    self._tokenizer = tokenizer
    self._settings = settings
    self._held_out = held_out
    self._tokenize = BlockTokenizer(tokenizer)
    self._make = InstanceMaker(tokenizer, settings)

  def process(self, block: Block, statistics: dict[str, Statistics]) -> Iterator[tuple[str, list[Instance]]]:
    """Yields (split, instances) a few at a time, and adds them to `statistics`."""
    settings = self._settings
    limit = None if settings.is_original else settings.max_num_tokens // 2
    documents = self._tokenize(block.documents, max_sentence_tokens=limit)
    by_split: dict[str, list[tuple[int, TokenizedDocument]]] = {split: [] for split in SPLITS}
    for place, document in enumerate(documents):
      split = self._split_of(block, place)
      counters = statistics[split].counters
      counters["documents"] += 1
      if not document.num_sentences:
        counters["empty_documents"] += 1
        continue
      counters["sentences"] += document.num_sentences
      counters["tokens"] += len(document.ids)
      counters["unknown"] += int((document.ids == self._tokenizer.unk_id).sum())
      by_split[split].append((block.first_document + place, document))
    for split, numbered in by_split.items():
      others = [document for _, document in numbered]  # Never from the other split.
      buffer: list[Instance] = []
      for number, document in numbered:
        for dupe in range(settings.dupe_factor):
          stream = self._stream(block, number, dupe)
          for instance in self._make(document, stream, others=others):
            buffer.append(instance)
            if len(buffer) >= _INSTANCES_AT_ONCE:  # One document may give very many.
              statistics[split].add_instances(buffer)
              yield split, buffer
              buffer = []
      statistics[split].add_instances(buffer)
      yield split, buffer

  def nearest_to_eval(self, block: Block) -> SplitDraw:
    """The document of `block` with the smallest draw."""
    draws = (
      SplitDraw(self._draw(block, place), block.file_index, block.first_document + place)
      for place in range(len(block.documents))
    )
    return min(draws, key=lambda draw: (draw.draw, draw.document))

  def _stream(self, block: Block, document: int, dupe: int) -> Stream:
    return Stream(seed=self._settings.random_seed, file_index=block.file_index, document=document, dupe=dupe)

  def _draw(self, block: Block, place: int) -> float:
    return self._stream(block, block.first_document + place, SPLIT_PASS).uniform()

  def _split_of(self, block: Block, place: int) -> str:
    if (block.file_index, block.first_document + place) == self._held_out:
      return "eval"
    if not self._settings.eval_fraction:
      return "train"
    return "eval" if self._draw(block, place) < self._settings.eval_fraction else "train"
