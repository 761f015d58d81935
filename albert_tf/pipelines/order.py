"""The order of training records: a function of (seed, position), so that a run can begin anywhere.

`batches` reads what a host needs of each window. Another order would break the resume of runs.
"""

import dataclasses
import functools
from typing import NamedTuple

import tensorflow as tf

from albert_tf.errors import UserError

LANES = 64  # At most 64 hosts share the reading; a batch of 64 has 64 places of the corpus.
LANE_RECORDS = 512  # About 1.8 MB at length 512, one request; a window is 64 times that.
_WINDOW_RECORDS = LANES * LANE_RECORDS

# Every use of the seed has its own stream of random numbers.
_EXTENT_SALT = 0x1A4E
_RECORD_SALT = 0xC0DE
_REMAINDER_SALT = 0x7A11
_STRATUM_SALT = 0x57A7

# Without a named algorithm the numbers would depend on the device.
_uniform = functools.partial(tf.random.stateless_uniform, dtype=tf.int64, alg="philox")


class Window(NamedTuple):
  """Successive examples of the stream that are read together; int64 scalars.

  Attributes:
    epoch: 0, 1, …
    number: place of the window in its epoch. Only the last window of an epoch is not full.
  """

  epoch: tf.Tensor
  number: tf.Tensor


class Extents(NamedTuple):
  """Ranges of the list of all records; int64 `[extents]` each. A count may be 0."""

  starts: tf.Tensor
  counts: tf.Tensor


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataOrder:
  """Example p of the stream comes from lane p % `LANES`; in a window a lane is one shuffled extent.

  The list of records is cut into `LANES` strata. Every epoch cuts each stratum into extents of
  `LANE_RECORDS` and one shorter remainder, at a place that is drawn. A full window takes one
  extent of each stratum, so every batch comes from all over the corpus. The remainders are the
  epoch's last window. Which extent a window takes, which lane a stratum has, and the order within
  a lane are permutations, keyed by the seed with epoch, window and lane.

  A batch of B successive examples has B / n examples with p % n == h, wherever it begins. So host
  h of n reads only the lanes with lane % n == h, for every n that divides `LANES`. With more hosts
  than lanes several hosts read the same lane, each for its own rows.

  Example: 2 lanes, 3 records an extent, 17 records, seed 5, epoch 0.
    stratum 0:  0  1  2 (3 4 5)  6  7  8       in brackets the remainder,
    stratum 1:  9 10 11 (12 13) 14 15 16       this time behind one extent
    window 0: lane 0 is 14 15 16, lane 1 is 0 1 2; the stream is 15 1 14 2 16 0
    window 1: lane 0 is 9 10 11, lane 1 is 6 7 8; the stream is 11 6 9 7 10 8
    window 2: lane 0 is 3 4 5, lane 1 is 12 13; the stream is 5 13 4 12 3

  Raises:
    UserError: this number of hosts cannot share the `LANES`.
  """

  num_records: int
  seed: int
  num_hosts: int = 1
  host: int = 0

  def __post_init__(self) -> None:
    num_hosts = self.num_hosts
    if LANES % num_hosts and num_hosts % LANES:
      possible = (1, 2, 4, 8, 16, 32, num_hosts // LANES * LANES)
      fewer = max(number for number in possible if number < num_hosts)
      raise UserError(
        f"The number of hosts must divide {LANES} or be a multiple of it. Received: {num_hosts} "
        f"hosts, of which each would have to read all records. Use {fewer}, or one host with more "
        "replicas."
      )

  @property
  def num_shares(self) -> int:
    """The host reads the examples at positions p with p % `num_shares` == `host` % `num_shares`."""
    return min(self.num_hosts, LANES)

  @property
  def windows_per_epoch(self) -> int:
    return -(-self.num_records // _WINDOW_RECORDS)

  @property
  def _full_windows(self) -> int:
    return self.num_records // _WINDOW_RECORDS

  def locate(self, position: int) -> tuple[int, int]:
    """Finds example `position` (0, 1, …) of the stream.

    Returns:
      The index of its window, and how many of the host's examples in it are before `position`.
    """
    epoch, offset_in_epoch = divmod(position, self.num_records)
    number, offset = divmod(offset_in_epoch, _WINDOW_RECORDS)
    first_of_host = (self.host - (position - offset)) % self.num_shares
    skipped = len(range(first_of_host, offset, self.num_shares))
    return epoch * self.windows_per_epoch + number, skipped

  def window(self, index: tf.Tensor) -> Window:
    """Window `index` (0, 1, …) of the stream, int64."""
    return Window(epoch=index // self.windows_per_epoch, number=index % self.windows_per_epoch)

  def extents(self, window: Window) -> Extents:
    """What the host reads of a window: an extent for each of its lanes, in stream order."""
    lanes, counts = self._lanes(window, self.num_shares)
    strata = tf.gather(self._strata(window), lanes)
    full_windows = self._full_windows
    remainders = self._remainders(window.epoch)
    strata_starts = tf.gather(tf.cumsum(remainders, exclusive=True), strata)
    strata_starts += strata * full_windows * LANE_RECORDS

    # Of the extents of a stratum, the one that this window takes.
    last_extent = tf.constant(max(full_windows - 1, 0), tf.int64)
    epoch_keys = tf.tile(self._key(_EXTENT_SALT, window.epoch)[tf.newaxis], [tf.size(strata), 1])
    extent_number = tf.raw_ops.RandomIndexShuffle(
      index=tf.minimum(window.number, last_extent),
      seed=tf.concat([epoch_keys, strata[:, tf.newaxis]], axis=1),
      max_index=last_extent,
      rounds=4,
    )
    # The remainder lies behind this many extents; those behind it begin later.
    remainder_place = _uniform([], self._key(_REMAINDER_SALT, window.epoch), 0, full_windows + 1)
    passed = tf.where(extent_number >= remainder_place, tf.gather(remainders, strata), 0)
    starts = tf.where(
      window.number < full_windows,
      extent_number * LANE_RECORDS + passed,
      remainder_place * LANE_RECORDS,
    )
    return Extents(strata_starts + starts, counts)

  def arrangement(self, window: Window, extents: Extents) -> tf.Tensor:
    """int64 `[n]`: for each example of the host, in stream order, its index among the records read.

    Example: two lanes with 3 and 2 records, read as 0 1 2 | 3 4. The lanes are shuffled to 2 0 1
    and 4 3; the stream takes them in turns: 2 4 0 3 1.
    """
    lanes, counts = self._lanes(window, self.num_shares)
    index = window.epoch * self.windows_per_epoch + window.number

    def draw(lane: tf.Tensor) -> tf.Tensor:
      # The lane keys the draws, and not the host: they are the same for any number of hosts.
      return _uniform([LANE_RECORDS], self._key(_RECORD_SALT, index * LANES + lane), 0, 2**31)

    exists = tf.range(LANE_RECORDS, dtype=tf.int64) < counts[:, tf.newaxis]  # [lanes, LANE_RECORDS]
    draws = tf.where(exists, tf.map_fn(draw, lanes), 2**31)
    shuffled = tf.cast(tf.argsort(draws, stable=True), tf.int64)
    sources = shuffled + tf.cumsum(extents.counts, exclusive=True)[:, tf.newaxis]
    # Row by row through the lanes.
    return tf.boolean_mask(tf.transpose(sources), tf.transpose(exists))

  def _lanes(self, window: Window, num_shares: int) -> tuple[tf.Tensor, tf.Tensor]:
    """The host's lanes in a window, in stream order, and their numbers of records.

    Example: 2 lanes, 17 records. Epoch 1 begins with position 17, so with lane 1. One host gets
    lanes [1 0]. Of the last window, 5 records, lane 1 has 3 and lane 0 has 2.
    """
    window_place = window.number * _WINDOW_RECORDS
    position = window.epoch * self.num_records + window_place
    size = tf.minimum(self.num_records - window_place, _WINDOW_RECORDS)
    # Offset in the window of the first example of each lane.
    offsets = tf.range((self.host - position) % num_shares, LANES, num_shares)
    counts = tf.maximum((size - offsets + LANES - 1) // LANES, 0)
    return (position + offsets) % LANES, counts

  def _strata(self, window: Window) -> tf.Tensor:
    """int64 `[LANES]`: the stratum of each lane in a window, a permutation."""
    key = self._key(_STRATUM_SALT, window.epoch * (self._full_windows + 1) + window.number)
    return tf.cast(tf.argsort(_uniform([LANES], key, None, None), stable=True), tf.int64)

  def _remainders(self, epoch: tf.Tensor) -> tf.Tensor:
    """int64 `[LANES]`: how many records of each stratum are in no full window of an epoch."""
    window = Window(epoch, tf.constant(self._full_windows, tf.int64))
    lanes, counts = self._lanes(window, 1)
    return tf.math.unsorted_segment_sum(counts, tf.gather(self._strata(window), lanes), LANES)

  def _key(self, salt: int, number: tf.Tensor) -> tf.Tensor:
    """int64 `[2]`: the key of a draw."""
    return tf.stack([tf.constant((self.seed ^ salt) % 2**31, tf.int64), number])
