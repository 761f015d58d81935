"""The digit-comma rule: "▁1990," is encoded as "▁1990" and ",", so that a comma does not change a number.

The rule looks at one piece alone, so it is a constant table over the vocabulary.
"""

from collections.abc import Sequence

import sentencepiece

from albert_tf.tokenization.word_starts import SPIECE_UNDERLINE


def ends_in_digit_comma(piece: str) -> bool:
  """Whether the rule applies: the last character is a comma and a digit is before it."""
  return len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()


def split_digit_comma(
  processor: sentencepiece.SentencePieceProcessor, piece: str, *, strip: bool
) -> list[str]:
  """The pieces that replace `piece`, for which `ends_in_digit_comma` holds.

  Args:
    processor: the vocabulary.
    piece: for example "▁1990," or "90,".
    strip: where `piece` did not begin with "▁" but its re-encoding does, drop that "▁".
  """
  pieces: list[str] = processor.encode(piece[:-1].replace(SPIECE_UNDERLINE, ""), out_type=str)
  if strip and not piece.startswith(SPIECE_UNDERLINE) and pieces[0].startswith(SPIECE_UNDERLINE):
    bare = pieces[0].removeprefix(SPIECE_UNDERLINE)
    pieces = [bare, *pieces[1:]] if bare else pieces[1:]
  return [*pieces, ","]


def digit_comma_table(
  processor: sentencepiece.SentencePieceProcessor, pieces: Sequence[str], *, strip: bool
) -> dict[int, list[str]]:
  """For the id of each piece the rule applies to, the pieces that replace it."""
  return {
    index: split_digit_comma(processor, piece, strip=strip)
    for index, piece in enumerate(pieces)
    if ends_in_digit_comma(piece)
  }
