"""The data order: a function of (seed, position), so that any position can be the first."""

import dataclasses
from typing import NamedTuple

import tensorflow as tf

from albert_tf.errors import UserError

LANES = 64  # At most 64 hosts share the reading; a batch of 64 comes from 64 places of the corpus.
LANE_RECORDS = 512  # About 1.8 MB at length 512, one request; a window is 64 times that.
_WINDOW = LANES * LANE_RECORDS

# Independent streams from one seed.
_EXTENT_SALT, _RECORD_SALT, _REST_SALT, _STRATUM_SALT = 0x1A4E, 0xC0DE, 0x7A11, 0x57A7


class Extents(NamedTuple):
  """Ranges of the list of all records; int64 `[extents]` each. A count may be 0."""

  starts: tf.Tensor
  counts: tf.Tensor


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataOrder:
  """Example p of the stream comes from lane p % `LANES`; in a window, a lane is one extent, shuffled.

  The list of records is cut into `LANES` equal strata. Every epoch cuts each stratum into extents of `LANE_RECORDS`
  and a shorter remainder at a keyed place. A window takes one extent of each stratum, by keyed permutations of the
  extents in a stratum and of the strata over the lanes, so every batch comes from all over the corpus. The
  remainders make the epoch's last window. The seed keys all permutations, with epoch, window and lane.

  A batch of B successive examples has B / n examples with p % n == h, wherever it begins. So host h of n reads only
  the lanes with lane % n == h, for every n that divides `LANES`. With more hosts than lanes, several hosts read the
  same lane, each for its own rows.

  Raises:
    UserError: this number of hosts cannot share the `LANES`.
  """

  num_records: int
  seed: int
  num_hosts: int = 1
  host: int = 0

  def __post_init__(self) -> None:
    n = self.num_hosts
    if LANES % n and n % LANES:
      fewer = max(k for k in (1, 2, 4, 8, 16, 32, n // LANES * LANES) if k < n)
      raise UserError(
        f"The number of hosts must divide {LANES} or be a multiple of it. Received: {n} hosts, "
        f"of which each would have to read all records. Use {fewer}, or one host with more replicas."
      )

  @property
  def parts(self) -> int:
    """The host reads the examples at positions p of the stream with p % `parts` == `host` % `parts`."""
    return min(self.num_hosts, LANES)

  @property
  def _full_windows(self) -> int:
    return self.num_records // _WINDOW

  @property
  def windows_per_epoch(self) -> int:
    """Window w is of epoch w // windows_per_epoch."""
    return -(-self.num_records // _WINDOW)

  def locate(self, position: int) -> tuple[int, int]:
    """The window of example `position` (0, 1, …), and the number of the host's examples in it before `position`."""
    epoch, in_epoch = divmod(position, self.num_records)
    window, offset = divmod(in_epoch, _WINDOW)
    lead = (self.host - (position - offset)) % self.parts
    return epoch * self.windows_per_epoch + window, max(0, -(-(offset - lead) // self.parts))

  def _key(self, salt: int, *more: tf.Tensor) -> tf.Tensor:
    return tf.stack([tf.constant((self.seed ^ salt) % 2**31, tf.int64), *more])

  def _lanes(self, epoch: tf.Tensor, number: tf.Tensor, parts: int) -> tuple[tf.Tensor, tf.Tensor]:
    """The host's lanes and their numbers of records in a window, in stream order."""
    first = epoch * self.num_records + number * _WINDOW  # Position of the window's first example.
    size = tf.minimum(self.num_records - number * _WINDOW, _WINDOW)
    leads = tf.range((self.host - first) % parts, LANES, parts)
    return (first + leads) % LANES, tf.maximum((size - leads + LANES - 1) // LANES, 0)

  def _strata(self, epoch: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    """int64 `[LANES]`: the stratum of each lane in a window, a keyed permutation."""
    key = self._key(_STRATUM_SALT, epoch * (self._full_windows + 1) + number)
    draws = tf.random.stateless_uniform([LANES], key, None, None, tf.int64, alg="philox")
    return tf.cast(tf.argsort(draws, stable=True), tf.int64)

  def _rest(self, epoch: tf.Tensor) -> tf.Tensor:
    """int64 `[LANES]`: records of each stratum that are in no full window of an epoch."""
    number = tf.constant(self._full_windows, tf.int64)
    lanes, counts = self._lanes(epoch, number, 1)
    by_lane = tf.gather(counts, tf.argsort(lanes))
    return tf.gather(by_lane, tf.argsort(self._strata(epoch, number)))

  def extents(self, window: tf.Tensor) -> Extents:
    """The host's extents in a window."""
    epoch, number = window // self.windows_per_epoch, window % self.windows_per_epoch
    lanes, counts = self._lanes(epoch, number, self.parts)
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

  def arrangement(self, window: tf.Tensor, extents: Extents) -> tf.Tensor:
    """int64 `[n]`: for each example of the host, in stream order, its index among the records read."""
    epoch, number = window // self.windows_per_epoch, window % self.windows_per_epoch
    lanes, counts = self._lanes(epoch, number, self.parts)
    draws = tf.map_fn(  # A lane's draws do not depend on the number of hosts.
      lambda lane: tf.random.stateless_uniform(
        [LANE_RECORDS], self._key(_RECORD_SALT, window * LANES + lane), 0, 2**31, tf.int64, alg="philox"
      ),
      lanes,
    )
    exists = tf.range(LANE_RECORDS, dtype=tf.int64) < counts[:, tf.newaxis]  # [lanes, LANE_RECORDS]
    shuffled = tf.argsort(tf.where(exists, draws, 2**31), stable=True)
    places = tf.cast(shuffled, tf.int64) + tf.cumsum(extents.counts, exclusive=True)[:, tf.newaxis]
    return tf.boolean_mask(tf.transpose(places), tf.transpose(exists))  # Row by row through the lanes.
