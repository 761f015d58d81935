"""The unit of work: some whole documents of one file. It bounds memory, and a restart skips finished ones."""

from collections.abc import Callable, Iterator
import dataclasses
import itertools
from typing import Any

import numpy as np

from tfrecords_tools.corpus import CorpusStats, iter_documents
from tfrecords_tools.pretraining.documents import BlockTokenizer, TokenizedDocument
from tfrecords_tools.pretraining.instances import InstanceMaker, Instances
from tfrecords_tools.pretraining.job import Job, check_input
from tfrecords_tools.pretraining.randomness import Stream, is_held_out
from tfrecords_tools.pretraining.segments import make_pairs
from tfrecords_tools.pretraining.settings import SPLITS
from tfrecords_tools.pretraining.sorted_runs import Run
from tfrecords_tools.pretraining.statistics import Statistics

_TOKENS_AT_ONCE = 1 << 16  # Of instances made together.


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

  def __call__(self, block: Block, result: BlockResult) -> Iterator[tuple[str, Instances]]:
    """Yields (split, instances) a few at a time, and counts them in `result`, which is empty."""
    settings = self._job.settings
    if block.corpus is not None:
      result.corpus.add(block.corpus.to_dict())
    at_once = max(1, _TOKENS_AT_ONCE // settings.max_seq_length)
    for purpose, (split, documents) in enumerate(self._split(block, result).items()):
      stream = self._stream(block, purpose)
      pairs = (
        pair
        for document in documents
        for _ in range(settings.dupe_factor)
        for pair in make_pairs(document, stream, settings, others=documents)  # Never of the other split.
      )
      while few := list(itertools.islice(pairs, at_once)):
        instances = self._make(few, stream)
        result.statistics[split].add_instances(instances)
        yield split, instances

  def _split(self, block: Block, result: BlockResult) -> dict[str, list[TokenizedDocument]]:
    """The documents of each split that have text, tokenized."""
    settings = self._job.settings
    limit = None if settings.is_original else settings.max_num_tokens // 2
    tokenized = self._tokenize(block.documents, max_sentence_tokens=limit)
    is_first_block = block.file_index == 0 and block.first_document == 0
    by_split: dict[str, list[TokenizedDocument]] = {split: [] for split in SPLITS}
    for number, document in enumerate(tokenized):
      # The first document whatever is drawn, so that a small corpus has one.
      is_forced = is_first_block and number == 0 and settings.eval_fraction > 0
      held_out = is_forced or is_held_out(
        block.documents[number], seed=settings.random_seed, eval_fraction=settings.eval_fraction
      )
      by_split["eval" if held_out else "train"].append(document)
    for split, documents in by_split.items():
      ids = np.concatenate([np.zeros(0, np.int32), *(document.ids for document in documents)])
      by_split[split] = [document for document in documents if document.num_sentences]
      result.statistics[split].counters |= {
        "documents": len(documents),
        "empty_documents": len(documents) - len(by_split[split]),
        "sentences": sum(document.num_sentences for document in documents),
        "tokens": len(ids),
        "unknown": int(np.count_nonzero(ids == self._unk_id)),
        "torn": int(np.count_nonzero(self._is_torn[ids])),
      }
    return by_split

  def _stream(self, block: Block, purpose: int) -> Stream:
    seed = self._job.settings.random_seed
    return Stream(seed=seed, file_index=block.file_index, document=block.first_document, purpose=purpose)
