"""The data order: a function of (version, seed, position), so any position can be the first.

A run keeps the version that it began with.
"""

from typing import Protocol

import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.pipelines.block_order import BlockOrder
from albert_tf.pipelines.extents import Extents, HostPart, StreamPosition
from albert_tf.pipelines.lane_order import LaneOrder

ORDER_VERSION = 2  # Of new runs.


class Order(Protocol):
  """Epoch after epoch over all records, window after window; example i is found by arithmetic."""

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
  """The order of a run.

  Args:
    version: 1 or 2.
    num_records: records of one epoch.
    seed: keys the order.

  Raises:
    UserError: a version that this program does not have.
  """
  if version == 1:
    return BlockOrder(num_records=num_records, seed=seed)
  if version == 2:
    return LaneOrder(num_records=num_records, seed=seed)
  raise UserError(
    f"The order of the training data must be version 1 to {ORDER_VERSION}. Received: order_version={version}. "
    "Continue this run with the version of this package that began it."
  )
