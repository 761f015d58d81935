"""Version 1 of the data order, of runs that began with it: windows of 64 blocks of 64 records, read by every host."""

import dataclasses

import tensorflow as tf

from albert_tf.pipelines.extents import Extents, HostPart, StreamPosition

BLOCK_RECORDS = 64
WINDOW_BLOCKS = 64

_BLOCK_SALT, _RECORD_SALT = 0x5EED, 0xA1BE  # Two independent streams from one seed.


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockOrder:
  """Each epoch permutes the blocks; each `WINDOW_BLOCKS` of them make a window, permuted record by record.

  The seed keys both permutations, together with the epoch and the window.
  """

  num_records: int
  seed: int

  @property
  def window_records(self) -> int:
    return WINDOW_BLOCKS * BLOCK_RECORDS

  @property
  def windows_per_epoch(self) -> int:
    return -(-self.num_records // self.window_records)

  def part(self, num_hosts: int, host: int) -> HostPart:
    """All: a block's records are scattered over all rows."""
    del num_hosts, host
    return HostPart()

  def locate(self, position: int) -> StreamPosition:
    epoch, in_epoch = divmod(position, self.num_records)
    window, offset = divmod(in_epoch, self.window_records)
    return StreamPosition(window=epoch * self.windows_per_epoch + window, offset=offset)

  def before(self, position: StreamPosition, part: HostPart) -> int:
    del part
    return position.offset

  def extents(self, window: tf.Tensor, part: HostPart) -> Extents:
    del part
    starts = self.window_blocks(window) * BLOCK_RECORDS
    return Extents(starts, tf.minimum(starts + BLOCK_RECORDS, self.num_records) - starts)

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

  def arrangement(self, window: tf.Tensor, part: HostPart, extents: Extents) -> tf.Tensor:
    del part
    key = tf.stack([tf.constant((self.seed ^ _RECORD_SALT) % 2**31, tf.int64), window])
    draws = tf.random.stateless_uniform(
      tf.reshape(tf.reduce_sum(extents.counts), [1]), key, None, None, tf.int64, alg="philox"
    )
    return tf.argsort(draws, stable=True)
