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
from albert_tf.pipelines.record_index import ExtentReader, RecordIndex, build_record_index, check_records
from albert_tf.records.parse import parse_pretraining_batch
from albert_tf.tokenization import load_tokenizer
from albert_tf.training.distribution import host_shard
from albert_tf.training.evaluation import HeldOut, read_held_out
from albert_tf.training.settings import PretrainingSettings


@dataclasses.dataclass(frozen=True)
class PretrainingInput:
  """The records of a run as distributed datasets; `held_out` is None for runs without evaluation."""

  settings: PretrainingSettings
  strategy: tf.distribute.Strategy
  index: RecordIndex
  held_out: HeldOut | None

  def training_iterator(self, start_position: int) -> Any:
    """An iterator of batches from example `start_position` on."""
    settings, step, mask = self.settings, self.settings.step, None
    if settings.masking is not None:
      mask = FreshMasks(settings.masking, load_tokenizer(settings.tokenizer_path), seed=step.seed)
    make_batches = functools.partial(
      training_batches,
      self.index,
      functools.partial(parse_pretraining_batch, spec=settings.spec),
      seed=step.seed,
      global_batch_size=step.global_batch_size,
      start_position=start_position,
      mask=mask,
    )
    dataset = self.strategy.distribute_datasets_from_function(
      lambda context: make_batches(shard=host_shard(self.strategy, context))
    )
    with iterators_without_autotune():
      return iter(dataset)

  @contextlib.contextmanager
  def naming_damage(self, start_position: int, num_examples: int) -> Iterator[None]:
    """If the body fails on these examples, reads them again and names the damaged record."""
    try:
      yield
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError):
      index, spec, reader = self.index, self.settings.spec, ExtentReader(self.index)
      order = DataOrder(num_records=index.num_records, seed=self.settings.step.seed)
      first, last = (order.locate(start_position + ahead)[0] for ahead in (0, num_examples - 1))
      for window in range(first, last + 1):
        extents = np.stack(order.extents(tf.constant(window, tf.int64)), axis=1)
        for start, count in extents[extents[:, 1] > 0]:
          try:
            parse_pretraining_batch(reader.read(start, count), spec)
          except tf.errors.OpError:  # Check the files of the extent record by record.
            ends = index.first_record.searchsorted([start, start + count - 1], "right")
            limits = {"vocab_size": self.settings.model.vocab_size, "at_most": index.num_records}
            check_records(index.paths[ends[0] - 1 : ends[1]], spec=spec, **limits)
      raise


def checked_input(settings: PretrainingSettings, strategy: tf.distribute.Strategy) -> PretrainingInput:
  """Indexes all records; checks the first training records and all records of an evaluation.

  Raises:
    UserError: records are damaged, too few, or of other lengths or another vocabulary; or the hosts cannot share them.
  """
  extended = strategy.extended  # Of a TPU slice, of several workers, of one machine.
  hosts = getattr(extended, "num_hosts", 0) or getattr(extended, "_num_workers", 1)
  DataOrder(num_records=1, seed=0, num_hosts=hosts)  # First: records without an index are read whole.
  index = build_record_index(settings.input_files)
  if index.num_records < settings.step.global_batch_size:
    raise UserError(
      "There must be at least as many training records as one batch holds. Received: "
      f"{index.num_records} records, train_batch_size={settings.step.global_batch_size}."
    )
  check_records(settings.input_files, spec=settings.spec, vocab_size=settings.model.vocab_size)
  if not settings.eval_input_files:
    return PretrainingInput(settings, strategy, index, None)
  held_out = read_held_out(
    settings.eval_input_files,
    spec=settings.spec,
    sentence_task=settings.step.sentence_task,
    vocab_size=settings.model.vocab_size,
    batch_size=settings.eval_batch_size,
    max_steps=settings.max_eval_steps,
  )
  return PretrainingInput(settings, strategy, index, held_out)
