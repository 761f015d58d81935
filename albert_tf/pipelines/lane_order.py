"""Version 2 of the data order: long reads, and each host reads only its own rows."""

import dataclasses
import math

import tensorflow as tf

from albert_tf.pipelines.extents import Extents, HostPart, StreamPosition

LANES = 64  # So many hosts at most share the reading; a batch of 64 comes from 64 places of the corpus.
LANE_RECORDS = 512  # About 1.8 MB at length 512, one request; a window is 64 times that.
_WINDOW = LANES * LANE_RECORDS

_EXTENT_SALT, _RECORD_SALT, _REST_SALT, _STRATUM_SALT = (
  0x1A4E,
  0xC0DE,
  0x7A11,
  0x57A7,
)  # Independent streams from one seed.


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaneOrder:
  """Example p of the stream comes from lane p % `LANES`; in a window, a lane is one extent, shuffled.

  The list of records is cut into `LANES` equal strata, and each of them, in each epoch anew, into extents of
  `LANE_RECORDS` and a rest at a keyed place. A window takes one extent of each stratum, by keyed permutations of the
  extents of a stratum and of the strata over the lanes, so every batch comes from all over the corpus. The
  rests make the epoch's last window. The seed keys all permutations, together with epoch, window and lane.

  A batch of B successive examples has B / n examples with p % n == h, wherever it begins. So host h of n reads only
  the lanes with lane % n == h, and the batch is whole, for every n that divides `LANES`.
  """

  num_records: int
  seed: int

  @property
  def _full_windows(self) -> int:
    return self.num_records // _WINDOW

  @property
  def windows_per_epoch(self) -> int:
    return -(-self.num_records // _WINDOW)

  def part(self, num_hosts: int, host: int) -> HostPart:
    """Hosts share the lanes as far as their number and that of the lanes have a common divisor."""
    parts = math.gcd(num_hosts, LANES)
    return HostPart(parts, host % parts)

  def locate(self, position: int) -> StreamPosition:
    epoch, in_epoch = divmod(position, self.num_records)
    window, offset = divmod(in_epoch, _WINDOW)
    return StreamPosition(window=epoch * self.windows_per_epoch + window, offset=offset)

  def before(self, position: StreamPosition, part: HostPart) -> int:
    epoch, number = divmod(position.window, self.windows_per_epoch)
    lead = (part.part - epoch * self.num_records - number * _WINDOW) % part.parts
    return max(0, -(-(position.offset - lead) // part.parts))

  def _key(self, salt: int, *more: tf.Tensor) -> tf.Tensor:
    return tf.stack([tf.constant((self.seed ^ salt) % 2**31, tf.int64), *more])

  def _epoch_and_number(self, window: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return window // self.windows_per_epoch, window % self.windows_per_epoch

  def _lanes(self, epoch: tf.Tensor, number: tf.Tensor, part: HostPart) -> tuple[tf.Tensor, tf.Tensor]:
    """A part's lanes and how many records each has in a window, in the order in which the stream takes them."""
    first = epoch * self.num_records + number * _WINDOW  # Position of the window's first example.
    size = tf.minimum(self.num_records - number * _WINDOW, _WINDOW)
    leads = tf.range((part.part - first) % part.parts, LANES, part.parts)
    return (first + leads) % LANES, tf.maximum((size - leads + LANES - 1) // LANES, 0)

  def _strata(self, epoch: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    """int64 `[LANES]`: which stratum each lane reads in a window, a keyed permutation."""
    key = self._key(_STRATUM_SALT, epoch * (self._full_windows + 1) + number)
    draws = tf.random.stateless_uniform([LANES], key, None, None, tf.int64, alg="philox")
    return tf.cast(tf.argsort(draws, stable=True), tf.int64)

  def _rest(self, epoch: tf.Tensor) -> tf.Tensor:
    """int64 `[LANES]`: records of each stratum that the full windows of an epoch leave over."""
    number = tf.constant(self._full_windows, tf.int64)
    lanes, counts = self._lanes(epoch, number, HostPart())
    by_lane = tf.gather(counts, tf.argsort(lanes))
    return tf.gather(by_lane, tf.argsort(self._strata(epoch, number)))

  def extents(self, window: tf.Tensor, part: HostPart) -> Extents:
    epoch, number = self._epoch_and_number(window)
    lanes, counts = self._lanes(epoch, number, part)
    windows = self._full_windows
    strata = tf.gather(self._strata(epoch, number), lanes)
    rest = self._rest(epoch)
    starts = strata * windows * LANE_RECORDS + tf.gather(tf.cumsum(rest, exclusive=True), strata)
    hole = tf.random.stateless_uniform(
      [], self._key(_REST_SALT, epoch), 0, windows + 1, tf.int64, alg="philox"
    )
    last = tf.constant(max(windows - 1, 0), tf.int64)
    salt_and_epoch = tf.tile(self._key(_EXTENT_SALT, epoch)[tf.newaxis], [tf.size(strata), 1])
    turn = tf.raw_ops.RandomIndexShuffle(  # Of the extents of a stratum.
      index=tf.fill(tf.shape(strata), tf.minimum(number, last)),
      seed=tf.concat([salt_and_epoch, strata[:, tf.newaxis]], axis=1),
      max_index=last,
      rounds=4,
    )
    turn_start = turn * LANE_RECORDS + tf.where(turn >= hole, tf.gather(rest, strata), 0)
    return Extents(starts + tf.where(number < windows, turn_start, hole * LANE_RECORDS), counts)

  def arrangement(self, window: tf.Tensor, part: HostPart, extents: Extents) -> tf.Tensor:
    lanes, counts = self._lanes(*self._epoch_and_number(window), part)
    draws = tf.map_fn(  # A lane's draws do not depend on who else reads.
      lambda lane: tf.random.stateless_uniform(
        [LANE_RECORDS], self._key(_RECORD_SALT, window * LANES + lane), 0, 2**31, tf.int64, alg="philox"
      ),
      lanes,
    )
    exists = tf.range(LANE_RECORDS, dtype=tf.int64) < counts[:, tf.newaxis]  # [lanes, LANE_RECORDS]
    shuffled = tf.argsort(tf.where(exists, draws, 2**31), stable=True)
    places = tf.cast(shuffled, tf.int64) + tf.cumsum(extents.counts, exclusive=True)[:, tf.newaxis]
    return tf.boolean_mask(tf.transpose(places), tf.transpose(exists))  # Row by row through the lanes.
