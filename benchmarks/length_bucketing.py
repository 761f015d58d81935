"""Fine-tuning with and without length bucketing, in one run.

Prints one JSON line. Both sides train the same classifier on the same examples with `model.fit`, the same number of
updates an epoch; they take turns, one going first in every other round. `ratio` is the median over rounds of
bucketed over plain examples per second (above 1: bucketing is faster). `padding` is the share of the positions that
hold no piece. Lengths are drawn from a log-normal distribution, as those of GLUE look.

Example:
  python benchmarks/length_bucketing.py --size tiny --max_seq_length 128 --median_length 30
"""

import os
import statistics
import time
from typing import Any

from absl import flags
import common
import numpy as np
import tensorflow as tf

from albert_tf.compat import STACK, keras
from albert_tf.configs import AlbertConfig, named_sizes
from albert_tf.configs.task import TaskSpec
from albert_tf.finetuning.engine.batches import (
  Batching,
  FlatFeatures,
  epoch_plan,
  planned_dataset,
  training_plan,
)
from albert_tf.finetuning.tasks.base import FeatureSet
from albert_tf.models.tasks import make_model
from albert_tf.optim.keras_optimizers import AdamW
from albert_tf.pipelines.batches import HostShard

_SIZE = flags.DEFINE_enum("size", "tiny", named_sizes(), "The model.")
_MAX_SEQ_LENGTH = flags.DEFINE_integer("max_seq_length", 128, "S.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "B.")
_BATCHES = flags.DEFINE_integer("batches", 40, "Updates of a measurement.")
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Measurements of each side.")
_BUCKET_MULTIPLE = flags.DEFINE_integer(
  "bucket_multiple", 32, "Bucketed batches are padded to a multiple of this."
)
_MEDIAN_LENGTH = flags.DEFINE_float(
  "median_length", 30.0, "Tokens of an example; QNLI has 46, MNLI 37, SST-2 11."
)
_SEED = flags.DEFINE_integer("seed", 0, "Of the examples.")


def _features(vocab_size: int) -> FeatureSet:
  rng = np.random.default_rng(_SEED.value)
  count = _BATCH_SIZE.value * _BATCHES.value
  lengths = np.clip(rng.lognormal(np.log(_MEDIAN_LENGTH.value), 0.5, count), 5, _MAX_SEQ_LENGTH.value).astype(
    int
  )
  rows = []
  for length in lengths:
    ids = rng.integers(5, vocab_size, length, dtype=np.int32)
    rows.append({"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)})
  return FeatureSet(rows, rng.integers(0, 2, count).astype(np.int32))


class _Side:
  """One way of batching, with a model of its own."""

  def __init__(self, features: FeatureSet, config: AlbertConfig, multiple: int):
    self._features = features
    self._batching = Batching(
      batch_size=_BATCH_SIZE.value, max_length=_MAX_SEQ_LENGTH.value, bucket_multiple=multiple
    )
    spec = TaskSpec(kind="classification", name="benchmark", label_names=("0", "1"))
    self._model: Any = make_model(spec, config)
    self._model.compile(
      AdamW(1e-5, global_clipnorm=1.0),
      keras.losses.SparseCategoricalCrossentropy(from_logits=True),
      jit_compile=False,
    )
    self._flat = FlatFeatures.of(features)
    self.rates: list[float] = []

  def measure(self, epoch: int, *, keep: bool) -> None:
    plan = training_plan(self._flat, self._batching, seed=epoch, num_steps=_BATCHES.value)
    dataset = planned_dataset(self._flat, plan, self._batching, shard=HostShard())
    began = time.perf_counter()
    self._model.fit(dataset, steps_per_epoch=_BATCHES.value, epochs=1, verbose=0, shuffle=False)
    if keep:
      self.rates.append(len(self._features) / (time.perf_counter() - began))

  @property
  def padding(self) -> float:
    plan = epoch_plan(self._features.lengths, self._batching, seed=1, epoch=0)
    positions = sum(
      self._batching.length(int(self._features.lengths[rows].max())) * _BATCH_SIZE.value for rows in plan
    )
    return 1.0 - float(self._features.lengths.sum()) / positions


def benchmark() -> dict[str, Any]:
  config = AlbertConfig.from_name(_SIZE.value, max_position_embeddings=max(512, _MAX_SEQ_LENGTH.value))
  features = _features(config.vocab_size)
  bucketed, plain = _Side(features, config, _BUCKET_MULTIPLE.value), _Side(features, config, 0)
  for number in range(_ROUNDS.value + 1):  # The first one compiles.
    for side in (bucketed, plain) if number % 2 else (plain, bucketed):
      side.measure(number, keep=number > 0)
  ratios = [a / b for a, b in zip(bucketed.rates, plain.rates, strict=True)]
  return {
    "size": _SIZE.value,
    "max_seq_length": _MAX_SEQ_LENGTH.value,
    "batch_size": _BATCH_SIZE.value,
    "bucket_multiple": _BUCKET_MULTIPLE.value,
    "median_length": float(np.median(features.lengths)),
    "bucketed_examples_per_second": round(statistics.median(bucketed.rates), 1),
    "plain_examples_per_second": round(statistics.median(plain.rates), 1),
    "ratio": round(statistics.median(ratios), 3),
    "ratios": [round(ratio, 3) for ratio in ratios],
    "bucketed_padding": round(bucketed.padding, 3),
    "plain_padding": round(plain.padding, 3),
    "stack": STACK,
    "tensorflow": tf.__version__,
    "cores": os.cpu_count(),
  }


if __name__ == "__main__":
  common.run(benchmark)
