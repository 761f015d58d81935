"""The unit of work: some whole documents of one file. It bounds memory, and a restart skips finished ones."""

from collections.abc import Callable, Iterator
import dataclasses
import itertools
from typing import Any

from tfrecords_tools.corpus import CorpusStats, iter_documents
from tfrecords_tools.pretraining.documents import BlockTokenizer, TokenizedDocument
from tfrecords_tools.pretraining.instances import Instance, InstanceMaker
from tfrecords_tools.pretraining.job import Job, check_input
from tfrecords_tools.pretraining.randomness import SPLIT_PASS, Stream
from tfrecords_tools.pretraining.settings import SPLITS
from tfrecords_tools.pretraining.sorted_runs import Run
from tfrecords_tools.pretraining.statistics import Statistics

_BYTES_AT_ONCE = 1 << 18  # Text tokenized together; its words take 30 times as much memory.
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


def read_blocks(job: Job, file_index: int, count: Callable[[int], None]) -> Iterator[Block]:
  """Reads the blocks of one file, at least one; where they are cut depends on the file alone.

  Before it hands one over it looks whether the file is still the same: what was cut short looks like an end.

  Args:
    job: names the file and how to read it.
    file_index: its number.
    count: told before each block how many bytes of text were read for it.
  """
  stats = CorpusStats()
  documents: list[list[str]] = []
  size = index = first = counted = 0
  for document in iter_documents(job.paths[file_index], job.options, stats=stats):
    if size >= job.block_bytes:
      check_input(job, file_index)
      count(stats.bytes_read - counted)
      counted = stats.bytes_read
      yield Block(file_index, index, first, documents)
      first += len(documents)
      index += 1
      documents, size = [], 0
    documents.append(document)
    size += _size(document)
  check_input(job, file_index)
  count(stats.bytes_read - counted)
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
  """Results of some blocks.

  Attributes:
    statistics: by split.
    corpus: the readers' counts for files with their last block in this result.
    runs: sorted records on disk, where the runner keeps them so.
  """

  def __init__(self, job: Job):
    self.statistics = {split: Statistics(job.settings, job.tokenizer.vocab_size) for split in SPLITS}
    self.corpus = CorpusStats()
    self.runs: list[Run] = []

  def to_json(self) -> dict[str, Any]:
    return {
      "statistics": {split: statistics.to_json() for split, statistics in self.statistics.items()},
      "corpus": self.corpus.to_dict(),
      "runs": [dataclasses.asdict(run) for run in self.runs],
    }

  def add(self, fields: dict[str, Any]) -> None:
    """Adds what `to_json` gave."""
    for split in SPLITS:
      self.statistics[split].add(fields["statistics"][split])
    self.corpus.add(fields["corpus"])
    self.runs += [Run(**run) for run in fields["runs"]]


class BlockMaker:
  """Makes all instances of a block, in a fixed order."""

  def __init__(self, job: Job):
    tokenizer, settings = job.tokenizer, job.settings
    self._job = job
    self._unk_id = tokenizer.unk_id
    self._is_torn = tokenizer.torn_pieces & (settings.whole_word == "original")
    self._tokenize = BlockTokenizer(tokenizer, settings.whole_word)
    self._make = InstanceMaker(tokenizer, settings)

  def __call__(self, block: Block, result: BlockResult) -> Iterator[tuple[str, list[Instance]]]:
    """Yields (split, instances) a few at a time, and counts them in `result`, which is empty."""
    if block.corpus is not None:
      result.corpus.add(block.corpus.to_dict())
    for split, numbered in self._split(block, result).items():
      others = [document for _, document in numbered]  # Never from the other split.
      drafts = (
        draft
        for number, document in numbered
        for dupe in range(self._job.settings.dupe_factor)
        for draft in self._make.drafts(document, self._stream(block, number, dupe), others=others)
      )
      while few := list(itertools.islice(drafts, _INSTANCES_AT_ONCE)):
        instances = self._make.finish(few)
        result.statistics[split].add_instances(instances)
        yield split, instances

  def _split(self, block: Block, result: BlockResult) -> dict[str, list[tuple[int, TokenizedDocument]]]:
    """The documents of each split that have text, tokenized, with their places in the file."""
    settings = self._job.settings
    limit = None if settings.is_original else settings.max_num_tokens // 2
    documents: list[TokenizedDocument] = []
    for few in _portions(block.documents):
      documents += self._tokenize(few, max_sentence_tokens=limit)
    by_split: dict[str, list[tuple[int, TokenizedDocument]]] = {split: [] for split in SPLITS}
    for number, document in enumerate(documents, block.first_document):
      # The first document of all is held out whatever is drawn, so that a small corpus has one.
      is_first = bool(settings.eval_fraction) and block.file_index == number == 0
      drawn = self._stream(block, number, SPLIT_PASS).uniform() < settings.eval_fraction
      split = "eval" if is_first or drawn else "train"
      counters = result.statistics[split].counters
      counters["documents"] += 1
      if not document.num_sentences:
        counters["empty_documents"] += 1
        continue
      counters["sentences"] += document.num_sentences
      counters["tokens"] += len(document.ids)
      counters["unknown"] += int((document.ids == self._unk_id).sum())
      counters["torn"] += int(self._is_torn[document.ids].sum())
      by_split[split].append((number, document))
    return by_split

  def _stream(self, block: Block, document: int, dupe: int) -> Stream:
    seed = self._job.settings.random_seed
    return Stream(seed=seed, file_index=block.file_index, document=document, dupe=dupe)
