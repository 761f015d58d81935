"""This Python's Unicode rules as constants, for TensorFlow graphs and Hugging Face's tokenizer.

TensorFlow's string ops have other rules: NFKD of another Unicode version, case folding that differs
from lower-casing, and `tf.strings.lower`, which depends on the locale.
"""

from collections.abc import Iterable, Sequence
import functools
import sys
import unicodedata

_SIGMA = "Σ"
_FINAL_SIGMA = "ς"
_UNASSIGNED = ("Cn", "Co", "Cs")  # Not assigned, private, and halves of UTF-16's pairs.


@functools.cache
def assigned_characters() -> Sequence[str]:
  """All characters that are not private or unassigned."""
  characters = map(chr, range(sys.maxunicode + 1))
  return [char for char in characters if unicodedata.category(char) not in _UNASSIGNED]


def character_class(characters: Iterable[str]) -> str:
  """The characters as the inside of an RE2 class, in ranges: `\\\\x{9}-\\\\x{d}\\\\x{20}`."""
  codes = {ord(char) for char in characters}
  text = ""
  for code in sorted(codes):
    # Only the ends of a range are written; a single character is both.
    is_first = code - 1 not in codes
    is_last = code + 1 not in codes
    if is_first:
      text += f"\\x{{{code:x}}}"
    elif is_last:
      text += f"-\\x{{{code:x}}}"
  return text


@functools.cache
def space_class() -> str:
  """RE2 class of the characters that `str.split()` splits at."""
  return character_class(char for char in assigned_characters() if char.isspace())


@functools.cache
def decomposition_rows() -> dict[int, list[int]]:
  """The replacement of each code point that NFKD without combining characters changes.

  Example: é is replaced by e, and ½ by the three characters 1⁄2; a combining accent by nothing.
  """
  rows: dict[int, list[int]] = {}
  for char in assigned_characters():
    decomposed = unicodedata.normalize("NFKD", char)
    row = [ord(base) for base in decomposed if not unicodedata.combining(base)]
    if row != [ord(char)]:
      rows[ord(char)] = row
  return rows


@functools.cache
def lower_rows() -> dict[int, list[int]]:
  """For each code point that lower-casing changes, its lower case."""
  rows = {}
  for char in assigned_characters():
    lower = char.lower()
    if lower != char:
      rows[ord(char)] = [ord(letter) for letter in lower]
  return rows


@functools.cache
def final_sigma_pattern() -> tuple[str, str]:
  """(RE2 pattern, replacement) that turns a capital sigma at the end of a word into the final form.

  A sigma is final after a cased letter and not before one, where case-ignorable characters do not
  count.
  Both properties are found with `str.lower`.
  """

  def final_after(prefix: str) -> bool:
    return (prefix + _SIGMA).lower().endswith(_FINAL_SIGMA)

  # Behind a letter and a cased or an ignorable character a sigma is final; behind a space and an
  # ignorable one it is not.
  cased_or_ignorable = [char for char in assigned_characters() if final_after("A" + char)]
  ignorable = [char for char in cased_or_ignorable if not final_after(" " + char)]
  cased = character_class(set(cased_or_ignorable) - set(ignorable))
  ignored = character_class(ignorable)
  pattern = f"([{cased}][{ignored}]*){_SIGMA}([{ignored}]*(?:[^{cased}{ignored}]|$))"
  return pattern, rf"\1{_FINAL_SIGMA}\2"


@functools.cache
def combining_class() -> str:
  """RE2 class of combining characters, which normalisation drops after NFKD."""
  return character_class(char for char in assigned_characters() if unicodedata.combining(char))
