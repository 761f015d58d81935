"""How large records will be, before they are made: for the number of files, and for the guide's table.

English text, a vocabulary of 30,000 pieces; `benchmarks/data_sizing.py` compares with records that were made. Other
languages give other numbers of tokens.
"""

import collections
from collections.abc import Sequence
import dataclasses
import math
from typing import NamedTuple

from tfrecords_tools.pretraining.settings import MOST_SHARDS, RecordSettings
from tfrecords_tools.pretraining.sources import Source

_SHARD_BYTES = 192e6  # So that most corpora have files of 128 to 256 MB.
_TEXT_BYTES_PER_TOKEN = 4.3
_FILLED = 0.96  # Of S: tokens of the text that an instance uses up, those cut off included.
_USED = {"nsp": 0.75}  # … of which each pair uses so much: one of label 1 its first segment alone.
_LENGTH = 0.91  # Of S: tokens that an instance keeps; one in ten is short.
_LAST = 0.5  # Instances that the end of a document adds; a document gives one at least.
# A record of each layout: bytes in any, for each of S places, for each token, for each of P predictions.
_RECORD_BYTES = {"example": (211.0, 4.42, 0.0, 6.95), "compact": (26.0, 0.0, 2.0, 4.0)}


class Size(NamedTuple):
  """What some text comes to, about."""

  tokens: float
  instances: float
  record_bytes: float


def expected_size(text_bytes: float, settings: RecordSettings, *, document_bytes: float = math.inf) -> Size:
  """All instances of all passes, train and held out, of documents of `document_bytes` on average."""
  tokens, documents = text_bytes / _TEXT_BYTES_PER_TOKEN, text_bytes / document_bytes
  used = _FILLED * _USED.get(settings.sentence_pair, 1.0)
  of_pass = max(documents, tokens / (used * settings.max_seq_length) + _LAST * documents)
  predictions = settings.max_predictions_per_seq
  length = min(_LENGTH * settings.max_seq_length, tokens / of_pass if of_pass else 0.0)
  base, of_place, of_token, of_prediction = _RECORD_BYTES[settings.record_layout]
  record = base + of_place * settings.max_seq_length + of_token * length + of_prediction * predictions
  instances = of_pass * settings.dupe_factor
  return Size(tokens, instances, instances * record)


def expected_bytes(
  settings: RecordSettings,
  text_sizes: Sequence[int],
  sources: Sequence[Source],
  *,
  document_bytes: float = math.inf,
) -> dict[str, float]:
  """Bytes of the records of `train`, and of `eval` of the largest source; weights are of train alone.

  Args:
    settings: what to make.
    text_sizes, sources: of each input file.
    document_bytes: of text, on average.
  """
  held_out: collections.Counter[str] = collections.Counter()
  for size, source in zip(text_sizes, sources, strict=True):
    held_out[source.name] += size
  train = sum(size * source.weight for size, source in zip(text_sizes, sources, strict=True))
  share, largest = settings.eval_fraction, max(held_out.values(), default=0)
  return {
    "train": (1 - share) * expected_size(train, settings, document_bytes=document_bytes).record_bytes,
    "eval": share * expected_size(largest, settings, document_bytes=document_bytes).record_bytes,
  }


def decide_num_shards(
  settings: RecordSettings,
  text_sizes: Sequence[int],
  sources: Sequence[Source],
  *,
  document_bytes: float = math.inf,
) -> RecordSettings:
  """`settings` with the numbers of files that they leave open; a function of the settings and the input."""
  expected = expected_bytes(settings, text_sizes, sources, document_bytes=document_bytes)
  return dataclasses.replace(
    settings,
    num_shards=settings.num_shards or _num_shards(expected["train"]),
    num_eval_shards=settings.num_eval_shards or _num_shards(expected["eval"]),
  )


def _num_shards(num_bytes: float) -> int:
  return min(max(1, round(num_bytes / _SHARD_BYTES)), MOST_SHARDS)
