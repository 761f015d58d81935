r"""Examples per second of batches for training, against a plain pipeline that parses record by record.

Prints one JSON line. The claim: at least 5 times the plain pipeline on the same file. `training` is the whole
input of training, which also shuffles over all of the file and can start anywhere; `fresh` is that with masks drawn
anew. All sides run in turns, several times; the best of each counts.

Example:
  python benchmarks/record_reading.py --records 'records/train-*'
"""

from collections.abc import Sequence
from functools import partial
import os
import tempfile
import types
from typing import Any

from absl import flags
import common
import numpy as np
import tensorflow as tf

from albert_tf import files
from albert_tf.pipelines.batches import training_batches
from albert_tf.pipelines.fresh_masks import FreshMasks
from albert_tf.pipelines.record_index import build_record_index
from albert_tf.records import PretrainingSpec, RecordRules, frame_record, read_records
from albert_tf.records import features as names
from albert_tf.records.encode import encode_packed, pack_varints
from albert_tf.records.features import TOKEN_BOUNDARY
from albert_tf.records.masking import MaskingConfig, ngram_probabilities
from albert_tf.records.parse import decode_example, feature_description, parse_pretraining_batch

_RECORDS = flags.DEFINE_list(
  "records", None, "Files of the example layout; default: random ones of length 512."
)
_PREDICTIONS = flags.DEFINE_integer(
  "predictions", 20, "Masked tokens of a random record.", lower_bound=1
)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 256, "Examples of a batch.", lower_bound=1)
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Times each side runs.", lower_bound=1)
_NUM_RANDOM = 16_384
_VOCAB_SIZE = 30_000


def write_random_records(path: str, spec: PretrainingSpec, count: int) -> None:
  """Full-length records of random tokens."""
  rng = np.random.default_rng(0)
  length, predictions = spec.max_seq_length, spec.max_predictions_per_seq
  with open(path, "wb") as stream:
    for _ in range(count):
      features: dict[str, np.ndarray] = {
        names.INPUT_IDS: rng.integers(5, _VOCAB_SIZE, length),
        names.INPUT_MASK: np.ones(length, np.int64),
        names.SEGMENT_IDS: (np.arange(length) > length // 2).astype(np.int64),
        names.TOKEN_BOUNDARY: rng.integers(0, 2, length),
        names.MASKED_LM_POSITIONS: np.sort(rng.choice(length, predictions, replace=False)),
        names.MASKED_LM_IDS: rng.integers(5, _VOCAB_SIZE, predictions),
        names.SENTENCE_ORDER_LABELS_FEATURE: rng.integers(0, 2, 1),
      }
      payloads = {name: pack_varints(values) for name, values in features.items()}
      payloads[names.MASKED_LM_WEIGHTS] = np.ones(predictions, "<f4").tobytes()
      stream.write(frame_record(encode_packed(payloads)))


def rules_of(spec: PretrainingSpec) -> RecordRules:
  return RecordRules(spec, vocab_size=_VOCAB_SIZE, type_vocab_size=2)


def plain_batches(paths: Sequence[str], spec: PretrainingSpec, batch_size: int) -> tf.data.Dataset:
  """Record by record, as the original parses them."""
  boundary = {TOKEN_BOUNDARY: tf.io.FixedLenFeature([spec.max_seq_length], tf.int64)}
  description = {**feature_description(spec), **boundary}

  def parse(record: tf.Tensor) -> dict[str, tf.Tensor]:
    parsed = tf.io.parse_single_example(record, description)
    return {
      name: tf.cast(value, tf.int32) if value.dtype == tf.int64 else value
      for name, value in parsed.items()
    }

  dataset = tf.data.TFRecordDataset(list(paths)).repeat().map(parse)
  return dataset.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def batched(paths: Sequence[str], spec: PretrainingSpec, batch_size: int) -> tf.data.Dataset:
  """The same records in the same order, a batch parsed in one call."""
  dataset = tf.data.TFRecordDataset(list(paths)).repeat().batch(batch_size, drop_remainder=True)
  dataset = dataset.map(
    lambda serialized: parse_pretraining_batch(serialized, rules_of(spec)),
    num_parallel_calls=tf.data.AUTOTUNE,
  )
  return dataset.prefetch(tf.data.AUTOTUNE)


def training(
  paths: Sequence[str], spec: PretrainingSpec, batch_size: int, mask: FreshMasks | None = None
) -> tf.data.Dataset:
  """The input of training: shuffled over the whole file, seekable."""
  return training_batches(
    build_record_index(list(paths)),
    lambda serialized: parse_pretraining_batch(serialized, rules_of(spec)),
    seed=1,
    global_batch_size=batch_size,
    mask=mask,
  )


def fresh_masks(spec: PretrainingSpec) -> FreshMasks:
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


def batch_times(dataset: tf.data.Dataset, batches: int) -> common.Times:
  iterator = iter(dataset)
  next(iterator)  # Opens files and traces.
  return common.timed(lambda: [next(iterator) for _ in range(batches)])


def benchmark() -> dict[str, Any]:
  with tempfile.TemporaryDirectory() as directory:
    if _RECORDS.value:
      paths = files.expand_globs(_RECORDS.value, name="record file")
    else:
      paths = [os.path.join(directory, "random.tfrecord")]
      write_random_records(paths[0], PretrainingSpec(512, _PREDICTIONS.value), _NUM_RANDOM)
    first = decode_example(next(read_records(paths[0])))
    spec = PretrainingSpec(len(first[names.INPUT_IDS]), len(first[names.MASKED_LM_IDS]))
    batch_size = _BATCH_SIZE.value
    total = sum(1 for path in paths for _ in read_records(path))
    batches = max(1, total // batch_size)
    sides = {
      "plain": plain_batches(paths, spec, batch_size),
      "ours": batched(paths, spec, batch_size),
      "training": training(paths, spec, batch_size),
      "fresh": training(paths, spec, batch_size, fresh_masks(spec)),
    }
    timers = {name: partial(batch_times, dataset, batches) for name, dataset in sides.items()}
    times, examples = common.in_turn(timers, _ROUNDS.value), batches * batch_size
    best = {name: examples / min(each.wall for each in found) for name, found in times.items()}
    by_cpu = {name: examples / min(each.cpu for each in found) for name, found in times.items()}
  return {
    "records": total,
    "max_seq_length": spec.max_seq_length,
    "batch_size": batch_size,
    "examples_per_second": best,
    "examples_per_cpu_second": by_cpu,
    "ratio": best["ours"] / best["plain"],
    "ratio_by_cpu_time": by_cpu["ours"] / by_cpu["plain"],
    "claim": 5.0,
    "training_ratio": best["training"] / best["plain"],
    "fresh_over_training": best["fresh"] / best["training"],
  }


if __name__ == "__main__":
  common.run(benchmark)
