"""One independent stream of random numbers for each (seed, file, document, purpose).

Philox is a counter-based generator: its key and counter say where a stream starts, so any worker
can make any stream without the ones before it. Only raw 64-bit words are taken from NumPy (their
values are guaranteed across versions). The numbers are made from them in this file, so the same
seed gives the same records on every version of NumPy.
"""

from collections.abc import Iterable
import hashlib

import numpy as np

_TO_UNIT = 2.0**-53  # Times an integer of 53 bits: below 1.
_SCALARS_AT_ONCE = 1024


class Stream:
  """Random numbers of one (seed, file, document, purpose); the document is the first of a block."""

  def __init__(self, *, seed: int, file_index: int, document: int, purpose: int):
    key = np.array([seed, file_index], np.uint64)
    # The generator counts up from the left: another document is 2**128 steps away.
    counter = np.array([0, 0, document, purpose], np.uint64)
    self._bits = np.random.Philox(key=key, counter=counter)
    self._scalars: list[float] = []

  def words(self, count: int) -> np.ndarray:
    """uint64 [count], uniform."""
    return self._bits.random_raw(count)

  def uniforms(self, count: int) -> np.ndarray:
    """float64 [count], uniform in [0, 1)."""
    # The upper 53 bits: a float64 holds as many exactly.
    return (self.words(count) >> np.uint64(11)) * _TO_UNIT

  def uniform(self) -> float:
    """One number, uniform in [0, 1)."""
    # One call of NumPy for each number would take longer than the rest of the pair.
    if not self._scalars:
      self._scalars = self.uniforms(_SCALARS_AT_ONCE).tolist()
    return self._scalars.pop()

  def integer(self, low: int, high: int) -> int:
    """Uniform in [low, high], both ends included."""
    return low + int(self.uniform() * (high - low + 1))

  def coin_flips(self, count: int) -> int:
    """How many of `count` fair coins show heads; each word holds 64 coins.

    Example:
      70 coins are the 64 bits of one word and the upper 6 bits of the next.
    """
    heads = 0
    for word in self.words((count + 63) // 64).tolist():
      used_bits = min(count, 64)
      heads += (word >> (64 - used_bits)).bit_count()
      count -= used_bits
    return heads


def is_held_out(document: Iterable[str], seed: int, eval_fraction: float) -> bool:
  """Whether a document belongs to the held-out split, by its sentences and the seed alone.

  So a larger input, or the same in another order, holds out the same documents; and copies of one
  go together.
  """
  digest = hashlib.blake2b(digest_size=8, key=seed.to_bytes(8, "little"))
  for sentence in document:
    digest.update(sentence.encode())
    digest.update(b"\n")  # No sentence holds a line break.
  draw = (int.from_bytes(digest.digest(), "little") >> 11) * _TO_UNIT
  return draw < eval_fraction
