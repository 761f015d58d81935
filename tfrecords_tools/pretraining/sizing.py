"""How large records will be, before they are made: for the number of files, and for the guide's table.

English text, a vocabulary of 30,000 pieces; `benchmarks/data_sizing.py` compares with records that were made. Short
documents give more and shorter instances than this says, other languages other tokens.
"""

import collections
from collections.abc import Sequence
import dataclasses
from typing import NamedTuple

from tfrecords_tools.pretraining.settings import MOST_SHARDS, RecordSettings
from tfrecords_tools.pretraining.sources import Source

_SHARD_BYTES = 192e6  # So that most corpora have files of 128 to 256 MB.
_TEXT_BYTES_PER_TOKEN = 4.3
_FILLED = 0.96  # Of S: tokens of the text that an instance uses up, those cut off included.
_USED = {"nsp": 0.75}  # … of which each pair uses so much: one of label 1 its first segment alone.
_LENGTH = 0.91  # Of S: tokens that an instance keeps; one in ten is short.
# A record of each layout: bytes in any, for each of S places, for each token, for each of P predictions.
_RECORD_BYTES = {"example": (211.0, 4.42, 0.0, 6.95), "compact": (26.0, 0.0, 2.0, 4.0)}


class Size(NamedTuple):
  """What some text comes to, about."""

  tokens: float
  instances: float
  record_bytes: float


def expected_size(text_bytes: float, settings: RecordSettings) -> Size:
  """All instances of all passes, train and held out."""
  tokens = text_bytes / _TEXT_BYTES_PER_TOKEN
  used = _FILLED * _USED.get(settings.sentence_pair, 1.0)
  instances = tokens * settings.dupe_factor / (used * settings.max_seq_length)
  length, predictions = settings.max_seq_length, settings.max_predictions_per_seq
  base, of_place, of_token, of_prediction = _RECORD_BYTES[settings.record_layout]
  record = base + (of_place + of_token * _LENGTH) * length + of_prediction * predictions
  return Size(tokens, instances, instances * record)


def expected_bytes(
  settings: RecordSettings, text_sizes: Sequence[int], sources: Sequence[Source]
) -> dict[str, float]:
  """Bytes of the records of `train`, and of `eval` of the largest source; weights are of train alone.

  Args:
    settings: what to make.
    text_sizes, sources: of each input file.
  """
  held_out: collections.Counter[str] = collections.Counter()
  for size, source in zip(text_sizes, sources, strict=True):
    held_out[source.name] += size
  train = sum(size * source.weight for size, source in zip(text_sizes, sources, strict=True))
  share = settings.eval_fraction
  return {
    "train": (1 - share) * expected_size(train, settings).record_bytes,
    "eval": share * expected_size(max(held_out.values(), default=0), settings).record_bytes,
  }


def decide_num_shards(
  settings: RecordSettings, text_sizes: Sequence[int], sources: Sequence[Source]
) -> RecordSettings:
  """`settings` with the numbers of files that they leave open; a function of the settings and the input's sizes."""
  expected = expected_bytes(settings, text_sizes, sources)
  return dataclasses.replace(
    settings,
    num_shards=settings.num_shards or _num_shards(expected["train"]),
    num_eval_shards=settings.num_eval_shards or _num_shards(expected["eval"]),
  )


def _num_shards(num_bytes: float) -> int:
  return min(max(1, round(num_bytes / _SHARD_BYTES)), MOST_SHARDS)
