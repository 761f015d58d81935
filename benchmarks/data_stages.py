"""Where the CPU seconds of making records go: what data_creation.py prints beside its totals."""

from collections.abc import Callable
import itertools
import math
import time
from typing import Any

from albert_tf.tokenization import AlbertTokenizer
from tfrecords_tools.corpus import CorpusOptions, CorpusStats
from tfrecords_tools.pretraining.blocks import INSTANCES_AT_ONCE, Block, portions, read_blocks
from tfrecords_tools.pretraining.documents import BlockTokenizer, TokenizedDocument
from tfrecords_tools.pretraining.instances import Draft, Instance, InstanceMaker
from tfrecords_tools.pretraining.randomness import Stream
from tfrecords_tools.pretraining.settings import RecordSettings


class _Parts:
  """The parts of the work, each as a whole over one text of one sentence a line."""

  def __init__(self, tokenizer: AlbertTokenizer, settings: RecordSettings):
    self._tokenizer = tokenizer
    self._settings = settings
    self._make = InstanceMaker(tokenizer, settings)

  def read(self, text: str) -> list[Block]:
    options = CorpusOptions(input_format="lines")
    return list(read_blocks(text, 0, options, stats=CorpusStats(), block_bytes=1 << 20))

  def tokenize(self, blocks: list[Block]) -> list[TokenizedDocument]:
    tokenize = BlockTokenizer(self._tokenizer)
    limit = self._settings.max_num_tokens // 2
    few = itertools.chain.from_iterable(portions(block.documents) for block in blocks)
    return [document for each in few for document in tokenize(each, max_sentence_tokens=limit)]

  def draw(self, documents: list[TokenizedDocument]) -> list[Draft]:
    passes = itertools.product(enumerate(documents), range(self._settings.dupe_factor))
    return [
      draft
      for (number, document), dupe in passes
      for draft in self._make.drafts(document, Stream(seed=1, file_index=0, document=number, dupe=dupe))
    ]

  def finish(self, drafts: list[Draft]) -> list[Instance]:
    begins = range(0, len(drafts), INSTANCES_AT_ONCE)
    return [each for begin in begins for each in self._make.finish(drafts[begin : begin + INSTANCES_AT_ONCE])]


def stages(
  text: str, tokenizer: AlbertTokenizer, settings: RecordSettings, *, rounds: int
) -> dict[str, float]:
  """CPU seconds by part, the best of all rounds.

  `sentencepiece_on_words`, of each distinct word once, is a part of `tokenize`; `sentencepiece_on_sentences` is what it
  would take without memory for words.
  """
  best: dict[str, float] = {}

  def measure(name: str, work: Callable[..., Any], *arguments: Any) -> Any:
    begin = time.process_time()
    result = work(*arguments)
    best[name] = min(best.get(name, math.inf), time.process_time() - begin)
    return result

  parts = _Parts(tokenizer, settings)
  for _ in range(rounds):
    blocks = measure("read", parts.read, text)
    documents = itertools.chain.from_iterable(block.documents for block in blocks)
    sentences = list(itertools.chain.from_iterable(documents))
    words = sorted({word for sentence in sentences for word in sentence.split()})
    measure("sentencepiece_on_words", tokenizer.encode_batch, words)
    measure("sentencepiece_on_sentences", tokenizer.encode_batch, sentences)
    tokenized = measure("tokenize", parts.tokenize, blocks)
    drafts = measure("draw_segments_and_masks", parts.draw, tokenized)
    measure("mask_and_encode", parts.finish, drafts)
  return best
