"""The four stages from text to a file of records: read, make, sort, write.

  read_blocks → make_instances → write_runs, read_sorted → write_shard

`local.py` runs them in processes of this machine. `beam.py` runs them on Apache Beam, which sorts
by itself.
"""

from collections.abc import Iterable, Iterator, Sequence
import dataclasses
import functools
import itertools
import os
from typing import NamedTuple, Self

import google_crc32c
import numpy as np

from albert_tf import files, json_files
from albert_tf.errors import UserError
from albert_tf.records import RecordFile
from albert_tf.records.shard_index import ShardIndexer
from albert_tf.tokenization import Tokenizer
from tfrecords_tools.corpus import CorpusStats, iter_documents
from tfrecords_tools.pretraining.documents import BlockTokenizer, TokenizedDocument, portions
from tfrecords_tools.pretraining.instances import InstanceMaker, Instances
from tfrecords_tools.pretraining.job import Job
from tfrecords_tools.pretraining.randomness import Stream, is_held_out
from tfrecords_tools.pretraining.segments import SegmentPair, make_pairs
from tfrecords_tools.pretraining.settings import SPLITS, Json, RecordSettings
from tfrecords_tools.pretraining.statistics import Statistics, torn_pieces

KEY_SPACE = 1 << 64  # Every key is below it.
RUN_BYTES = 32 << 20  # A run is written when this many bytes wait.
SORTED_BYTES = 64 << 20  # Records sorted together; a larger final file is sorted range by range.
_TOKENS_AT_ONCE = 1 << 16  # Of instances made together.


# Read.


@dataclasses.dataclass(frozen=True)
class Block:
  """Consecutive whole documents of one file: the unit of work, which bounds memory.

  Args:
    file_index: the file's number among the inputs.
    index: the block's number in the file.
    first_document: the number in the file of its first document.
    documents: raw sentences of each.
    num_bytes: bytes of text that were read for it.
    corpus: with the last block of a file, which may be empty: what the readers counted in all of
      the file.
  """

  file_index: int
  index: int
  first_document: int
  documents: list[list[str]]
  num_bytes: int
  corpus: CorpusStats | None = None


def read_blocks(job: Job, file_index: int) -> Iterator[Block]:
  """Reads the blocks of one file, at least one; where they are cut depends on the file alone.

  Raises:
    UserError: the file cannot be read, or has changed since the job was made.
  """
  stats = CorpusStats()
  first_document = 0
  bytes_before = 0
  all_documents = iter_documents(job.paths[file_index], job.options, stats=stats)
  for index, documents in enumerate(portions(all_documents, job.block_bytes, _text_size)):
    # Before a block is handed over: a file that was cut short looks as if it ended there.
    job.check_input(file_index)
    corpus = None
    # Only at its end has a file too little text for a block.
    if sum(map(_text_size, documents)) < job.block_bytes:
      corpus = stats
    num_bytes = stats.bytes_read - bytes_before
    yield Block(file_index, index, first_document, documents, num_bytes, corpus)
    bytes_before = stats.bytes_read
    first_document += len(documents)


def _text_size(document: Sequence[str]) -> int:
  return sum(map(len, document)) + len(document)  # Each sentence with its line end.


# Make.


@dataclasses.dataclass
class Result:
  """What is known of the records of some blocks; `a + b` of the blocks of both.

  Attributes:
    statistics: by split.
    corpus: the readers' counts for files with their last block in this result.
    runs: sorted records on disk, where the runner keeps them so.
  """

  statistics: dict[str, Statistics]
  corpus: CorpusStats
  runs: list["Run"]

  @classmethod
  def of_nothing(cls, job: Job) -> Self:
    vocab_size = job.tokenizer.vocab_size
    statistics = {split: Statistics.zeros(job.settings, vocab_size) for split in SPLITS}
    return cls(statistics, CorpusStats(), [])

  def __add__(self, other: "Result") -> "Result":
    return Result(
      statistics={split: self.statistics[split] + other.statistics[split] for split in SPLITS},
      corpus=self.corpus + other.corpus,
      runs=self.runs + other.runs,
    )

  def to_json(self) -> Json:
    """For a file, by which a later process knows what is done."""
    statistics = {split: counts.to_json() for split, counts in self.statistics.items()}
    runs = [dataclasses.asdict(run) for run in self.runs]
    return {"statistics": statistics, "corpus": self.corpus.to_dict(), "runs": runs}

  @classmethod
  def from_json(cls, fields: Json, job: Job) -> Self:
    vocab_size = job.tokenizer.vocab_size
    statistics = {
      split: Statistics.from_json(fields["statistics"][split], job.settings, vocab_size)
      for split in SPLITS
    }
    runs = [Run(**run) for run in fields["runs"]]
    return cls(statistics, CorpusStats.from_dict(fields["corpus"]), runs)


def make_instances(
  job: Job, block: Block, result: Result
) -> Iterator[tuple[str, Iterator[Instances]]]:
  """Makes all instances of a block, in a fixed order.

  Yields each split with its instances, some at a time, and counts them in `result`.
  """
  if block.corpus is not None:
    result.corpus += block.corpus
  tools = _tools_of(job.tokenizer, job.settings)
  documents_of = _tokenize_by_split(block, job.settings, tools)
  for purpose, split in enumerate(SPLITS):
    documents = documents_of[split]
    statistics = result.statistics[split]
    statistics.add_documents(documents, unk_id=job.tokenizer.unk_id, is_torn=tools.is_torn)
    # Any worker can make this block: its random numbers depend on nothing before it.
    stream = Stream(
      seed=job.settings.random_seed,
      file_index=block.file_index,
      document=block.first_document,
      purpose=purpose,
    )
    pairs = _make_pairs(documents, stream, job.settings)
    yield split, _mask(pairs, stream, job.settings, tools, statistics)


class _Tools(NamedTuple):
  """What is made of a vocabulary once, because it takes long.

  Attributes:
    tokenize: documents to ids.
    mask: pairs of segments to instances.
    is_torn: bool [V], as `torn_pieces`; of other rules for words none is.
  """

  tokenize: BlockTokenizer
  mask: InstanceMaker
  is_torn: np.ndarray


@functools.lru_cache(maxsize=1)
def _tools_of(tokenizer: Tokenizer, settings: RecordSettings) -> _Tools:
  is_torn = np.zeros(tokenizer.vocab_size, bool)
  if settings.whole_word == "original":
    is_torn = torn_pieces(tokenizer)
  return _Tools(
    tokenize=BlockTokenizer(tokenizer, settings.whole_word),
    mask=InstanceMaker(tokenizer, settings),
    is_torn=is_torn,
  )


def _tokenize_by_split(
  block: Block, settings: RecordSettings, tools: _Tools
) -> dict[str, list[TokenizedDocument]]:
  """The documents of each split; some may be without text."""
  max_sentence_tokens = None
  if not settings.is_original:
    # So that two sentences, one in each segment, always fit.
    max_sentence_tokens = settings.max_num_tokens // 2
  tokenized = tools.tokenize(block.documents, max_sentence_tokens=max_sentence_tokens)

  documents_of: dict[str, list[TokenizedDocument]] = {split: [] for split in SPLITS}
  # The first document whatever is drawn, so that a small corpus has one for evaluation.
  is_for_eval = block.file_index == block.first_document == 0 and settings.eval_fraction > 0
  for sentences, document in zip(block.documents, tokenized, strict=True):
    is_drawn = is_held_out(sentences, settings.random_seed, settings.eval_fraction)
    if is_for_eval or is_drawn:
      documents_of["eval"].append(document)
    else:
      documents_of["train"].append(document)
    is_for_eval = False
  return documents_of


def _make_pairs(
  documents: Sequence[TokenizedDocument], stream: Stream, settings: RecordSettings
) -> Iterator[SegmentPair]:
  """The pairs of segments of all passes over the documents of a block and split."""
  with_text = [document for document in documents if document.num_sentences]
  for document in with_text:
    for _ in range(settings.dupe_factor):
      # A second segment of another document is never one of the other split.
      yield from make_pairs(document, stream, settings, candidates=with_text)


def _mask(
  pairs: Iterator[SegmentPair],
  stream: Stream,
  settings: RecordSettings,
  tools: _Tools,
  statistics: Statistics,
) -> Iterator[Instances]:
  """The instances of the pairs, some at a time; counts them."""
  num_at_once = max(1, _TOKENS_AT_ONCE // settings.max_seq_length)
  while pairs_at_once := list(itertools.islice(pairs, num_at_once)):
    instances = tools.mask(pairs_at_once, stream)
    statistics.add_instances(instances)
    yield instances


# Sort.
#
# Every record has a random 64-bit key; the records of a split in the order of their keys are the
# shuffled corpus. A block writes sorted runs. A final file takes a range of keys: of every run the
# records in it are read, and sorted in memory. Equal keys come in the order of the runs, so the
# bytes do not depend on how the range is divided.


@dataclasses.dataclass(frozen=True)
class Run:
  """A sorted run: framed records in `path`, and in `index_path` where each ends.

  The index is uint64 [2, N]: the keys, and the bytes where the records end.
  """

  path: str
  split: str
  num_records: int
  num_bytes: int

  @property
  def index_path(self) -> str:
    return f"{self.path}.keys"

  def is_complete(self) -> bool:
    """Whether both files are there and have their sizes."""
    sizes = {self.path: self.num_bytes, self.index_path: 16 * self.num_records}
    return all(
      os.path.exists(path) and os.path.getsize(path) == size for path, size in sizes.items()
    )

  def read(self, low: int, high: int) -> tuple[np.ndarray, list[bytes]]:
    """The records with keys in [low, high): uint64 [N] keys in order, and the framed bytes of each.

    Example:
      Keys 3 5 9 of records that end at bytes 40, 70, 120. read(4, 9) reads the bytes 40 to 70,
      the record with key 5.
    """
    keys, ends = np.memmap(self.index_path, "<u8", "r", shape=(2, self.num_records))
    first = int(keys.searchsorted(np.uint64(low)))
    last = self.num_records
    if high < KEY_SPACE:  # KEY_SPACE itself is no uint64.
      last = int(keys.searchsorted(np.uint64(high)))
    if first == last:
      return np.zeros(0, np.uint64), []

    begin = 0
    if first > 0:
      begin = int(ends[first - 1])
    with open(self.path, "rb") as stream:
      stream.seek(begin)
      data = stream.read(int(ends[last - 1]) - begin)
    offsets = (ends[first:last] - np.uint64(begin)).tolist()
    if len(data) != offsets[-1]:
      raise UserError(
        f"Unfinished work must not be changed. Received: {self.path}, cut short. Give the same "
        "command again."
      )
    records = [data[start:end] for start, end in itertools.pairwise([0] + offsets)]
    return np.array(keys[first:last]), records


def write_runs(prefix: str, split: str, made: Iterable[Instances]) -> list[Run]:
  """Writes the records of one block and split as sorted runs.

  Args:
    prefix: the beginning of the runs' paths.
    split: train or eval.
    made: the instances of the block and split.
  """
  runs = []
  for number, waiting in enumerate(portions(made, RUN_BYTES, record_bytes)):
    if waiting:
      runs.append(_write_run(f"{prefix}-{split}-{number:04d}.run", split, waiting))
  return runs


def record_bytes(instances: Instances) -> int:
  """What the instances count against `RUN_BYTES`: their framed records."""
  return sum(map(len, instances.records))


def _write_run(path: str, split: str, waiting: Sequence[Instances]) -> Run:
  keys = np.concatenate([instances.keys for instances in waiting])
  unsorted: list[bytes] = []
  for instances in waiting:
    unsorted += instances.records
  order = np.argsort(keys, kind="stable")
  records = [unsorted[i] for i in order.tolist()]
  ends = np.cumsum([len(record) for record in records], dtype=np.uint64)
  run = Run(path, split, len(records), int(ends[-1]))
  # The files need no renaming: the result of their text, which is written last, has their sizes.
  with files.space_errors(run.path):
    with open(run.path, "wb") as stream:
      stream.writelines(records)
    # Not `tofile`, which does not say that the disk is full.
    with open(run.index_path, "wb") as stream:
      stream.write(np.stack([keys[order], ends]).tobytes())
  return run


def read_sorted(runs: Sequence[Run], *, low: int = 0, high: int = KEY_SPACE) -> Iterator[bytes]:
  """Yields the framed records of all runs with keys in [low, high), in the order of their keys."""
  # The keys are uniform, so a part of their range holds about that part of the bytes.
  num_bytes = sum(run.num_bytes for run in runs) * (high - low) // KEY_SPACE
  num_ranges = max(1, -(-num_bytes // SORTED_BYTES))
  edges = [low + (high - low) * number // num_ranges for number in range(num_ranges + 1)]
  for range_low, range_high in itertools.pairwise(edges):
    keys = [np.zeros(0, np.uint64)]
    records: list[bytes] = []
    for run in runs:
      run_keys, run_records = run.read(range_low, range_high)
      keys.append(run_keys)
      records += run_records
    for index in np.argsort(np.concatenate(keys), kind="stable").tolist():
      yield records[index]


# Write.


def write_shard(job: Job, name: str, split: str, records: Iterable[bytes]) -> RecordFile:
  """Writes a final file, its index, and last the description that says that it is complete.

  Args:
    job: that the file is of; it is written into `job.stage_dir`.
    name: of the file.
    split: train or eval.
    records: framed.
  """
  path = os.path.join(job.stage_dir, name)
  crc = 0
  indexer = ShardIndexer()
  with files.atomic_writer(path) as stream:
    for record in records:
      stream.write(record)
      crc = google_crc32c.extend(crc, record)
      indexer.add(record)
  index = indexer.finish()
  index.save(path)
  record_file = RecordFile(
    name=name,
    split=split,
    num_records=index.num_records,
    num_bytes=index.num_bytes,
    crc32c=f"{crc:08x}",
  )
  json_files.write(
    f"{path}.json", {"plan": job.plan_sha256, "file": dataclasses.asdict(record_file)}
  )
  return record_file


def read_description(job: Job, name: str) -> RecordFile | None:
  """The description that `write_shard` wrote for a file; None without one of this plan."""
  path = os.path.join(job.stage_dir, f"{name}.json")
  description = json_files.find(path, plan=str, file=dict)
  if description.get("plan") != job.plan_sha256:
    return None
  return RecordFile.from_dict(description["file"], source=path)
