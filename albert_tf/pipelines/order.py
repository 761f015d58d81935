"""The data order: a function of (index, seed, position), so any position can be the first."""

import dataclasses
from typing import NamedTuple

import tensorflow as tf

from albert_tf.pipelines.record_index import BLOCK_RECORDS

WINDOW_BLOCKS = 64  # 4,096 records are mixed one by one: the paper's batch; about 14 MB at length 512.

_BLOCK_SALT, _RECORD_SALT = 0x5EED, 0xA1BE  # Two independent streams from one seed.


class StreamPosition(NamedTuple):
  """A place in the endless stream of training examples."""

  window: int  # Number of the window since the start of epoch 0.
  offset: int  # Examples of that window already consumed.


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShuffledOrder:
  """Epoch after epoch over all records, in a keyed order.

  Each epoch permutes the blocks; each `WINDOW_BLOCKS` successive blocks make a window, whose
  records are permuted one by one. Example i of the stream is found by
  arithmetic, without replaying what came before.

  Attributes:
    num_records: records of one epoch.
    seed: keys both permutations, together with the epoch and the window.
  """

  num_records: int
  seed: int

  @property
  def window_records(self) -> int:
    return WINDOW_BLOCKS * BLOCK_RECORDS

  @property
  def windows_per_epoch(self) -> int:
    return -(-self.num_records // self.window_records)

  def locate(self, position: int) -> StreamPosition:
    """Where example `position` (0, 1, … over all epochs) lies."""
    epoch, in_epoch = divmod(position, self.num_records)
    window, offset = divmod(in_epoch, self.window_records)
    return StreamPosition(window=epoch * self.windows_per_epoch + window, offset=offset)

  def window_size(self, window: tf.Tensor) -> tf.Tensor:
    """Records of a window, int64: all windows of an epoch but the last are full."""
    left = self.num_records - window % self.windows_per_epoch * self.window_records
    return tf.minimum(left, self.window_records)

  def window_blocks(self, window: tf.Tensor) -> tf.Tensor:
    """Ids of the blocks of a window, int64 `[<= WINDOW_BLOCKS]`.

    The one incomplete block stays last in every epoch: then all windows but the
    last are full and `locate` is exact.
    """
    num_blocks = -(-self.num_records // BLOCK_RECORDS)
    num_full = self.num_records // BLOCK_RECORDS
    epoch, in_epoch = window // self.windows_per_epoch, window % self.windows_per_epoch
    first = in_epoch * WINDOW_BLOCKS
    ranks = tf.range(first, tf.minimum(first + WINDOW_BLOCKS, num_blocks))
    key = tf.stack([tf.constant(self.seed % 2**31, tf.int64), epoch, tf.constant(_BLOCK_SALT, tf.int64)])
    last_full = max(num_full - 1, 0)
    permuted = tf.raw_ops.RandomIndexShuffle(
      index=tf.minimum(ranks, last_full), seed=key, max_index=tf.constant(last_full, tf.int64), rounds=4
    )
    return tf.where(ranks < num_full, permuted, ranks)

  def permute_window(self, records: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
    """The records `[n]` of a window in their final order."""
    key = tf.stack([tf.constant((self.seed ^ _RECORD_SALT) % 2**31, tf.int64), window])
    draws = tf.random.stateless_uniform(
      tf.shape(records), seed=key, minval=None, maxval=None, dtype=tf.int64, alg="philox"
    )
    return tf.gather(records, tf.argsort(draws, stable=True))
