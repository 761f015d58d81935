"""This Python's Unicode rules as constants that a TensorFlow graph can hold.

TensorFlow's string ops have other rules: NFKD of another Unicode version, case folding that differs from
lower-casing, and `tf.strings.lower`, which depends on the locale.
"""

from collections.abc import Iterable, Sequence
import functools
import sys
import unicodedata

_SIGMA, _FINAL_SIGMA = "Σ", "ς"


@functools.cache
def assigned_characters() -> Sequence[str]:
  """All characters that are not private or unassigned."""
  return [
    char
    for char in map(chr, range(sys.maxunicode + 1))
    if unicodedata.category(char) not in ("Cn", "Co", "Cs")
  ]


def character_class(characters: Iterable[str]) -> str:
  """The characters as the inside of an RE2 class, in ranges: `\\\\x{9}-\\\\x{d}\\\\x{20}`."""
  ranges: list[list[int]] = []
  for code in sorted(map(ord, characters)):
    if ranges and ranges[-1][1] == code - 1:
      ranges[-1][1] = code
    else:
      ranges.append([code, code])
  return "".join(f"\\x{{{a:x}}}" if a == b else f"\\x{{{a:x}}}-\\x{{{b:x}}}" for a, b in ranges)


@functools.cache
def space_class() -> str:
  """RE2 class of the characters that `str.split()` splits at."""
  return character_class(char for char in assigned_characters() if char.isspace())


@functools.cache
def decomposition_rows() -> dict[int, list[int]]:
  """The replacement of each code point that NFKD without combining characters changes."""
  rows: dict[int, list[int]] = {}
  for char in assigned_characters():
    if unicodedata.is_normalized("NFKD", char) and not unicodedata.combining(char):
      continue
    kept = "".join(part for part in unicodedata.normalize("NFKD", char) if not unicodedata.combining(part))
    if kept != char:
      rows[ord(char)] = [ord(part) for part in kept]
  return rows


@functools.cache
def lower_rows() -> dict[int, list[int]]:
  """For each code point that lower-casing changes, its lower case."""
  return {
    ord(char): [ord(part) for part in char.lower()] for char in assigned_characters() if char.lower() != char
  }


@functools.cache
def final_sigma_pattern() -> tuple[str, str]:
  """(RE2 pattern, replacement) that turns a capital sigma at the end of a word into the final form.

  A sigma is final after a cased letter and not before one, where case-ignorable characters do not count.
  Both properties are found with `str.lower`.
  """

  def final_after(prefix: str) -> bool:
    return (prefix + _SIGMA).lower().endswith(_FINAL_SIGMA)

  marks = [char for char in assigned_characters() if final_after("A" + char)]  # Cased, or ignorable.
  ignorable = [char for char in marks if not final_after(" " + char)]
  cased = character_class(set(marks) - set(ignorable))
  ignored = character_class(ignorable)
  pattern = f"([{cased}][{ignored}]*){_SIGMA}([{ignored}]*(?:[^{cased}{ignored}]|$))"
  return pattern, rf"\1{_FINAL_SIGMA}\2"


@functools.cache
def combining_class() -> str:
  """RE2 class of combining characters, which normalisation drops after NFKD."""
  return character_class(char for char in assigned_characters() if unicodedata.combining(char))
