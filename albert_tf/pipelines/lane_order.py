"""Version 2 of the data order: long reads, and each host reads only its own rows."""

import dataclasses
import math

import tensorflow as tf

from albert_tf.pipelines.extents import Extents, HostPart, StreamPosition

LANES = 64  # So many hosts at most share the reading; a batch of 64 comes from 64 places of the corpus.
LANE_RECORDS = 512  # About 1.8 MB at length 512, one request; a window is 64 times that.
_WINDOW = LANES * LANE_RECORDS

_EXTENT_SALT, _RECORD_SALT, _REST_SALT = 0x1A4E, 0xC0DE, 0x7A11  # Independent streams from one seed.


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaneOrder:
  """Example p of the stream comes from lane p % `LANES`; in a window, a lane is one extent, shuffled.

  Each epoch cuts the list of records into extents of `LANE_RECORDS`, in a keyed order; `LANES` successive ones make
  a window. What is left over, fewer records than a window, is cut out of the list at a keyed place of each
  epoch and makes the epoch's last window, of equally many records a lane but for one.

  A batch of B successive examples has B / n examples with p % n == h, wherever it begins. So host h of n reads only
  the lanes with lane % n == h, and the batch is whole, for every n that divides `LANES`.

  Attributes:
    num_records: records of one epoch.
    seed: keys all permutations, together with epoch, window and lane.
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

  def _lanes(self, window: tf.Tensor, part: HostPart) -> tuple[tf.Tensor, tf.Tensor]:
    """A part's lanes and how many records each has in a window, in the order in which the stream takes them."""
    epoch, number = window // self.windows_per_epoch, window % self.windows_per_epoch
    first = epoch * self.num_records + number * _WINDOW  # Position of the window's first example.
    size = tf.minimum(self.num_records - number * _WINDOW, _WINDOW)
    leads = tf.range((part.part - first) % part.parts, LANES, part.parts)
    return (first + leads) % LANES, tf.maximum((size - leads + LANES - 1) // LANES, 0)

  def extents(self, window: tf.Tensor, part: HostPart) -> Extents:
    epoch, number = window // self.windows_per_epoch, window % self.windows_per_epoch
    lanes, counts = self._lanes(window, part)
    num_extents, rest = self._full_windows * LANES, self.num_records % _WINDOW
    hole = LANE_RECORDS * tf.random.stateless_uniform(
      [], self._key(_REST_SALT, epoch), 0, num_extents + 1, tf.int64, alg="philox"
    )
    last = max(num_extents - 1, 0)
    extent = tf.raw_ops.RandomIndexShuffle(
      index=tf.minimum(number * LANES + lanes, last),
      seed=self._key(_EXTENT_SALT, epoch, tf.zeros_like(epoch)),
      max_index=tf.constant(last, tf.int64),
      rounds=4,
    )
    full = extent * LANE_RECORDS
    full += tf.where(full >= hole, tf.constant(rest, tf.int64), 0)
    starts = tf.where(number < self._full_windows, full, hole + self._places_in_rest(window, lanes))
    return Extents(starts, counts)

  def _places_in_rest(self, window: tf.Tensor, lanes: tf.Tensor) -> tf.Tensor:
    """Where lanes begin in what is left over: the lanes lie there in a keyed order."""
    all_lanes, counts = self._lanes(window, HostPart())
    draws = tf.random.stateless_uniform(
      [LANES], self._key(_RECORD_SALT, -1 - window), None, None, tf.int64, alg="philox"
    )
    turn = tf.gather(all_lanes, tf.argsort(draws, stable=True))
    counts = tf.gather(counts, tf.argsort(all_lanes))  # By lane.
    places = tf.cumsum(tf.gather(counts, turn), exclusive=True)
    return tf.gather(places, tf.gather(tf.argsort(turn), lanes))

  def arrangement(self, window: tf.Tensor, part: HostPart, extents: Extents) -> tf.Tensor:
    lanes, counts = self._lanes(window, part)
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
