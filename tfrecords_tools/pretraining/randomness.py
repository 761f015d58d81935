"""One independent stream of random numbers for each (seed, file, document, pass).

Philox is a counter-based generator: its key and counter say where a stream
starts, so any worker can make any stream without the ones before it. Only raw
64-bit words are taken from NumPy (their values are guaranteed across versions);
the numbers are made from them in this file, so the same seed gives the same records
on every version of NumPy.
"""

import numpy as np

_TO_UNIT = 2.0**-53
_SCALARS_AT_ONCE = 32
_WORDS_AHEAD = 256  # A call for a few costs NumPy as much as one for so many.
SPLIT_PASS = 2**32 - 1  # The "pass" that only decides whether a document is held out.


class Stream:
  """Random numbers of one (seed, file, document, pass)."""

  def __init__(self, *, seed: int, file_index: int, document: int, dupe: int):
    self._bits = np.random.Philox(
      key=np.array([seed, file_index], np.uint64), counter=np.array([0, 0, document, dupe], np.uint64)
    )
    self._words = np.zeros(0, np.uint64)  # Made ahead,
    self._uniforms: np.ndarray = np.zeros(0)  # and the same as numbers in [0, 1);
    self._used = 0  # so many of them are given out.
    self._scalars: list[float] = []

  def _take(self, count: int) -> slice:
    """Where the next `count` words are."""
    begin = self._used
    if begin + count > len(self._words):
      made = self._bits.random_raw(max(count, _WORDS_AHEAD))
      self._words = np.concatenate([self._words[begin:], made])
      self._uniforms = (self._words >> np.uint64(11)) * _TO_UNIT
      begin = 0
    self._used = begin + count
    return slice(begin, self._used)

  def words(self, count: int) -> np.ndarray:
    """uint64 [count], uniform."""
    taken = self._take(count)
    return self._words[taken]

  def uniforms(self, count: int) -> np.ndarray:
    """float64 [count], uniform in [0, 1)."""
    taken = self._take(count)
    return self._uniforms[taken]

  def uniform(self) -> float:
    """One number, uniform in [0, 1)."""
    if not self._scalars:
      self._scalars = self.uniforms(_SCALARS_AT_ONCE).tolist()
    return self._scalars.pop()

  def integer(self, low: int, high: int) -> int:
    """Uniform in [low, high], both ends included."""
    return low + int(self.uniform() * (high - low + 1))

  def permutation(self, count: int) -> np.ndarray:
    """A random order of 0 … count - 1."""
    return np.argsort(self.words(count), kind="stable")

  def coin_flips(self, count: int) -> int:
    """How many of `count` fair coins show heads."""
    heads = 0
    for word in self.words((count + 63) // 64).tolist():
      heads += (word >> (64 - min(count, 64))).bit_count()
      count -= 64
    return heads
