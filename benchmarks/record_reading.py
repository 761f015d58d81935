r"""Examples per second of batches for training, against a plain pipeline that parses record by record.

Prints one JSON line. The claim: at least 5 times the plain pipeline on the same file. `training` is the whole
input of training, which also shuffles over all of the file and can start anywhere; `fresh` is that with masks drawn
anew. All sides run in turns, several times; the best of each counts.

Example:
  python benchmarks/record_reading.py --records 'records/train-*'
"""

from collections.abc import Iterator, Sequence
import functools
import itertools
import os
import tempfile
import types
from typing import Any, NamedTuple

from absl import flags
import measuring
import numpy as np
import tensorflow as tf

from albert_tf import files
from albert_tf.pipelines.batches import training_batches
from albert_tf.pipelines.fresh_masks import FreshMasks
from albert_tf.pipelines.record_index import build_record_index
from albert_tf.records import PretrainingSpec, RecordRules, frame_record, read_records
from albert_tf.records import features as names
from albert_tf.records.masking import MaskingConfig, ngram_probabilities
from albert_tf.records.parse import decode_example, feature_description, parse_pretraining_batch
from albert_tf.records.tfrecord import encode_packed, pack_varints

_RECORDS = flags.DEFINE_list(
  "records", None, "Files of the example layout; default: random ones of length 512."
)
_PREDICTIONS = flags.DEFINE_integer(
  "predictions", 20, "Masked tokens of a random record.", lower_bound=1
)
_NUM_RANDOM = flags.DEFINE_integer(
  "random_records", 16_384, "Number of random records.", lower_bound=1
)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 256, "Examples of a batch.", lower_bound=1)
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Times each side runs.", lower_bound=1)
_VOCAB_SIZE = 30_000
_CLAIM = 5.0  # Times the plain pipeline.


def _measure() -> dict[str, Any]:
  with tempfile.TemporaryDirectory() as directory:
    if _RECORDS.value:
      paths = files.expand_globs(_RECORDS.value, name="record file")
    else:
      paths = [os.path.join(directory, "random.tfrecord")]
      _write_random_records(paths[0], PretrainingSpec(512, _PREDICTIONS.value))
    source = _Source(paths, _spec_of(paths[0]), _BATCH_SIZE.value)
    num_records = sum(1 for path in paths for _ in read_records(path))
    # About one pass over the files.
    num_batches = max(1, num_records // source.batch_size)
    sides = {
      "plain": _plain_batches(source),
      "ours": _parsed_batches(source),
      "training": _training_batches(source),
      "fresh": _training_batches(source, _fresh_masks(source.spec)),
    }
    timers = {
      name: functools.partial(_time_batches, dataset, num_batches)
      for name, dataset in sides.items()
    }
    # Each round has an iterator of its own, which starts anew.
    rounds = measuring.in_turn(timers, _ROUNDS.value)

  # Other work on the machine can only slow a round.
  best = {name: measuring.best(times) for name, times in rounds.items()}
  num_examples = num_batches * source.batch_size
  by_clock = {name: num_examples / times.wall for name, times in best.items()}
  by_cpu = {name: num_examples / times.cpu for name, times in best.items()}
  return {
    "records": num_records,
    "max_seq_length": source.spec.max_seq_length,
    "batch_size": source.batch_size,
    "examples_per_second": by_clock,
    "examples_per_cpu_second": by_cpu,
    "ratio": by_clock["ours"] / by_clock["plain"],
    "ratio_by_cpu_time": by_cpu["ours"] / by_cpu["plain"],
    "claim": _CLAIM,
    "training_ratio": by_clock["training"] / by_clock["plain"],
    "fresh_over_training": by_clock["fresh"] / by_clock["training"],
  }


def _time_batches(dataset: tf.data.Dataset, num_batches: int) -> measuring.Times:
  iterator = iter(dataset)
  next(iterator)  # Opens files and traces.

  def read() -> None:
    for _ in itertools.islice(iterator, num_batches):
      pass

  return measuring.timed(read)


# ---------------------------------------------------------------------- records


class _Source(NamedTuple):
  """What all sides read."""

  paths: Sequence[str]
  spec: PretrainingSpec
  batch_size: int


def _spec_of(path: str) -> PretrainingSpec:
  """The lengths of the first record."""
  example = decode_example(next(read_records(path)))
  return PretrainingSpec(len(example[names.INPUT_IDS]), len(example[names.MASKED_LM_IDS]))


def _write_random_records(path: str, spec: PretrainingSpec) -> None:
  with open(path, "wb") as stream:
    for features in itertools.islice(_random_features(spec), _NUM_RANDOM.value):
      # Packed as the data command packs them.
      payloads = {name: pack_varints(values) for name, values in features.items()}
      # The one feature of floats.
      weights = np.ones(spec.max_predictions_per_seq, "<f4")
      payloads[names.MASKED_LM_WEIGHTS] = weights.tobytes()
      stream.write(frame_record(encode_packed(payloads)))


def _random_features(spec: PretrainingSpec) -> Iterator[dict[str, np.ndarray]]:
  """Full-length records of random tokens, without end."""
  rng = np.random.default_rng(0)
  length = spec.max_seq_length
  num_predictions = spec.max_predictions_per_seq
  while True:
    yield {
      names.INPUT_IDS: rng.integers(5, _VOCAB_SIZE, length),
      names.INPUT_MASK: np.ones(length, np.int64),
      names.SEGMENT_IDS: (np.arange(length) > length // 2).astype(np.int64),
      names.TOKEN_BOUNDARY: rng.integers(0, 2, length),
      names.MASKED_LM_POSITIONS: np.sort(rng.choice(length, num_predictions, replace=False)),
      names.MASKED_LM_IDS: rng.integers(5, _VOCAB_SIZE, num_predictions),
      names.SENTENCE_ORDER_LABELS_FEATURE: rng.integers(0, 2, 1),
    }


# ---------------------------------------------------------------------- the sides


def _plain_batches(source: _Source) -> tf.data.Dataset:
  """Record by record, as the original parses them."""
  description = feature_description(source.spec)
  description[names.TOKEN_BOUNDARY] = tf.io.FixedLenFeature([source.spec.max_seq_length], tf.int64)

  def parse(record: tf.Tensor) -> dict[str, tf.Tensor]:
    example = tf.io.parse_single_example(record, description)
    return {name: _int32(values) for name, values in example.items()}

  # The original's order of operations: parse, then batch.
  dataset = tf.data.TFRecordDataset(list(source.paths)).repeat().map(parse)
  dataset = dataset.batch(source.batch_size, drop_remainder=True)
  return dataset.prefetch(tf.data.AUTOTUNE)


def _int32(values: tf.Tensor) -> tf.Tensor:
  """Whole numbers as a model takes them."""
  return tf.cast(values, tf.int32) if values.dtype == tf.int64 else values


def _parsed_batches(source: _Source) -> tf.data.Dataset:
  """The same records in the same order, a batch parsed in one call."""
  dataset = tf.data.TFRecordDataset(list(source.paths)).repeat()
  dataset = dataset.batch(source.batch_size, drop_remainder=True)
  parse = functools.partial(_parse_batch, source.spec)
  return dataset.map(parse, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def _training_batches(source: _Source, mask: FreshMasks | None = None) -> tf.data.Dataset:
  """The input of training: shuffled over the whole file, seekable."""
  return training_batches(
    build_record_index(list(source.paths)),
    functools.partial(_parse_batch, source.spec),
    seed=1,
    global_batch_size=source.batch_size,
    mask=mask,
  )


def _parse_batch(spec: PretrainingSpec, serialized: tf.Tensor) -> Any:
  rules = RecordRules(spec, vocab_size=_VOCAB_SIZE, type_vocab_size=2)
  return parse_pretraining_batch(serialized, rules)


def _fresh_masks(spec: PretrainingSpec) -> FreshMasks:
  # Only these of a tokenizer's properties are read; words start at random tokens.
  word_starts = np.random.default_rng(1).random(_VOCAB_SIZE) < 0.7
  tokenizer: Any = types.SimpleNamespace(
    vocab_size=_VOCAB_SIZE,
    cls_id=2,
    sep_id=3,
    mask_id=4,
    special_ids=[0, 1, 2, 3, 4],
    word_starts=lambda rule: word_starts,
  )
  masking = MaskingConfig(
    masked_lm_prob=0.15,
    max_predictions_per_seq=spec.max_predictions_per_seq,
    ngram_probabilities=tuple(ngram_probabilities(3).tolist()),
    redraw_order=True,
  )
  return FreshMasks(masking, tokenizer, seed=1)


if __name__ == "__main__":
  measuring.run(_measure)
