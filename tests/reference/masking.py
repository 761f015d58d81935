"""n-gram masking with lists and sets, the reference of `tfrecords_tools.pretraining.masking`."""

from collections.abc import Sequence


def word_groups(
  starts: Sequence[bool], separators: Sequence[bool], *, whole_words: bool, glue: bool
) -> list[list[int]]:
  """Positions of each word; [CLS] and [SEP] are in none.

  Args:
    starts: whether each piece starts a word.
    separators: whether each position is [CLS] or [SEP].
    glue: a continuation behind a [SEP] belongs to the last word before it, as in the original.
  """
  groups: list[list[int]] = []
  for position, separator in enumerate(separators):
    if separator:
      continue
    opens = starts[position] or not whole_words or not groups
    if not glue and position > 0 and separators[position - 1]:
      opens = True
    if opens:
      groups.append([position])
    else:
      groups[-1].append(position)
  return groups


def choose(
  groups: list[list[int]],
  segment_of_group: Sequence[int],
  order: Sequence[int],
  lengths: Sequence[int],
  budget: int,
  *,
  fill: bool,
) -> set[int]:
  """Masked positions, taking words in `order` with n-gram `lengths` until `budget` pieces are masked."""
  covered: set[int] = set()
  left = budget

  def window(word: int, n: int) -> list[int]:
    chosen = []
    for other in range(word, min(word + n, len(groups))):
      if segment_of_group[other] == segment_of_group[word]:
        chosen += groups[other]
    return chosen

  for word, n in zip(order, lengths, strict=True):
    if left == 0:
      break
    while n and len(window(word, n)) > left:
      n -= 1
    pieces = window(word, n)
    if not n or covered & set(pieces):
      continue
    covered |= set(pieces)
    left -= len(pieces)
  if fill:
    for word in order:
      pieces = groups[word]
      if not covered & set(pieces) and len(pieces) <= left:
        covered |= set(pieces)
        left -= len(pieces)
  return covered
