"""The data order: a function of (version, seed, position), so any position can be the first.

A run keeps the version that it began with.
"""

from typing import NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.pipelines.block_order import BlockOrder
from albert_tf.pipelines.extents import Extents, HostPart, StreamPosition
from albert_tf.pipelines.lane_order import LaneOrder
from albert_tf.pipelines.record_index import RecordIndex

ORDER_VERSION = 2  # Of new runs.


class Order(Protocol):
  """Epoch after epoch over all records, window after window; example i is found by arithmetic."""

  @property
  def windows_per_epoch(self) -> int:
    """Window w is of epoch w // windows_per_epoch."""

  def part(self, num_hosts: int, host: int) -> HostPart:
    """What host `host` of `num_hosts` reads: its rows of every global batch are in it."""

  def locate(self, position: int) -> StreamPosition:
    """Where example `position` (0, 1, … over all epochs) lies."""

  def before(self, position: StreamPosition, part: HostPart) -> int:
    """Examples of a part in the window of `position` that come before it."""

  def extents(self, window: tf.Tensor, part: HostPart) -> Extents:
    """What to read of a window."""

  def arrangement(self, window: tf.Tensor, part: HostPart, extents: Extents) -> tf.Tensor:
    """int64 `[n]`: for each example of a part in the order of the stream, its place among the records read."""


def make_order(version: int, *, num_records: int, seed: int) -> Order:
  """The order of a run; `UserError` where its version is unknown."""
  if version == 1:
    return BlockOrder(num_records=num_records, seed=seed)
  if version == 2:
    return LaneOrder(num_records=num_records, seed=seed)
  raise UserError(
    f"The order of the training data must be version 1 to {ORDER_VERSION}. Received: order_version={version}. "
    "Continue this run with the version of this package that began it."
  )


class RecordPlace(NamedTuple):
  """Where a record lies; `record` counts from 0, damaged ones that a run leaves out not counted."""

  path: str
  record: int


def locate_examples(index: RecordIndex, order: Order, *, position: int, count: int) -> list[RecordPlace]:
  """The places of the examples `[position, position + count)` of the stream, without reading a record."""
  part = order.part(1, 0)
  window, skipped = order.locate(position)
  numbers: list[int] = []  # In the list of all records.
  while len(numbers) < count:
    this = tf.constant(window, tf.int64)
    extents = order.extents(this, part)
    stretches = zip(extents.starts.numpy(), extents.counts.numpy(), strict=True)
    read = np.concatenate([np.arange(start, start + n) for start, n in stretches])
    numbers += read[order.arrangement(this, part, extents).numpy()][skipped:].tolist()
    window, skipped = window + 1, 0
  places = []
  for number in numbers[:count]:
    path = index.paths[np.searchsorted(index.first_record, number, side="right") - 1]
    # A file with gaps has several stretches.
    places.append(RecordPlace(path, number - int(index.first_record[index.paths.index(path)])))
  return places
