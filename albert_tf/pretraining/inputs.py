"""The records of a run, checked at the start and read as distributed datasets."""

from collections.abc import Iterator
import contextlib
import dataclasses
import functools
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.pipelines.batches import iterators_without_autotune, training_batches
from albert_tf.pipelines.fresh_masks import FreshMasks
from albert_tf.pipelines.order import DataOrder
from albert_tf.pipelines.record_index import (
  READ_ERRORS,
  ExtentReader,
  RecordIndex,
  build_record_index,
  check_range,
  check_records,
)
from albert_tf.pretraining.evaluation import HeldOut, read_held_out
from albert_tf.pretraining.settings import PretrainingSettings
from albert_tf.records.parse import parse_pretraining_batch
from albert_tf.runs.distribution import host_shard
from albert_tf.tokenization import load_tokenizer


@dataclasses.dataclass(frozen=True)
class PretrainingInput:
  """The records of a run as distributed datasets; `held_out` is None without evaluation."""

  settings: PretrainingSettings
  strategy: tf.distribute.Strategy
  index: RecordIndex
  held_out: HeldOut | None

  def training_iterator(self, start_position: int) -> Any:
    """An iterator of batches from example `start_position` on."""
    seed = self.settings.step.seed
    fresh_masks = None
    if self.settings.masking is not None:
      tokenizer = load_tokenizer(self.settings.tokenizer_path)
      fresh_masks = FreshMasks(self.settings.masking, tokenizer, seed=seed)

    def batches_of_host(context: tf.distribute.InputContext) -> tf.data.Dataset:
      return training_batches(
        self.index,
        functools.partial(parse_pretraining_batch, rules=self.settings.record_rules),
        seed=seed,
        global_batch_size=self.settings.step.global_batch_size,
        start_position=start_position,
        mask=fresh_masks,
        shard=host_shard(self.strategy, context),
      )

    # Each host reads only its rows of every batch: a slice must not read the corpus once a host.
    dataset = self.strategy.distribute_datasets_from_function(batches_of_host)
    with iterators_without_autotune():
      return iter(dataset)

  @contextlib.contextmanager
  def locate_damaged_record(self, start_position: int, num_examples: int) -> Iterator[None]:
    """If the body fails on these examples, reads them again and names the damaged file or record."""
    try:
      yield
    except READ_ERRORS:
      self._check_examples(start_position, num_examples)
      raise  # No record is damaged.

  def _check_examples(self, start_position: int, num_examples: int) -> None:
    """Reads the windows of these examples; raises `UserError` for what is damaged."""
    # Batches come from windows of long extents; one of these extents holds the record.
    rules = self.settings.record_rules
    reader = ExtentReader(self.index)
    order = DataOrder(num_records=self.index.num_records, seed=self.settings.step.seed)
    first_window, _ = order.locate(start_position)
    last_window, _ = order.locate(start_position + num_examples - 1)
    for window_index in range(first_window, last_window + 1):
      window = order.window(tf.constant(window_index, tf.int64))
      starts, counts = order.extents(window)
      for start, count in zip(np.array(starts), np.array(counts), strict=True):
        if count == 0:
          continue
        try:
          parse_pretraining_batch(reader.read(start, count), rules)
        except tf.errors.OpError:
          check_range(self.index, start, start + count, rules)


def checked_input(
  settings: PretrainingSettings, strategy: tf.distribute.Strategy
) -> PretrainingInput:
  """Indexes all records; checks the first training records and all records of an evaluation.

  Raises:
    UserError: records are damaged, too few, or of other lengths or another vocabulary; or the hosts
      cannot share them.
  """
  # Whether the hosts can share the rows is checked first: records without an index are read whole.
  DataOrder(num_records=1, seed=0, num_hosts=_num_hosts(strategy))

  index = build_record_index(settings.input_files)
  if index.num_records < settings.step.global_batch_size:
    raise UserError(
      "There must be at least as many training records as one batch holds. Received: "
      f"{index.num_records} records, train_batch_size={settings.step.global_batch_size}."
    )
  check_records(settings.input_files, settings.record_rules)

  held_out = None
  if settings.eval_input_files:
    held_out = read_held_out(
      settings.eval_input_files,
      rules=settings.record_rules,
      sentence_task=settings.step.sentence_task,
      batch_size=settings.eval_batch_size,
      max_steps=settings.max_eval_steps,
    )
  return PretrainingInput(settings, strategy, index, held_out)


def _num_hosts(strategy: tf.distribute.Strategy) -> int:
  """The hosts of a TPU slice, the workers of a multi-worker strategy, or 1."""
  extended = strategy.extended
  return getattr(extended, "num_hosts", 0) or getattr(extended, "_num_workers", 1)
