"""Where each piece comes from in the original text."""

from collections.abc import Mapping

import sentencepiece

from albert_tf.tokenization.config import TokenizerConfig
from albert_tf.tokenization.normalization import AlignedText, normalize_with_alignment
from albert_tf.tokenization.word_starts import SPIECE_UNDERLINE


def encode_with_offsets(
  processor: sentencepiece.SentencePieceProcessor,
  text: str,
  *,
  config: TokenizerConfig,
  digit_commas: Mapping[int, list[str]],
) -> tuple[list[int], list[tuple[int, int]]]:
  """Ids of `text`, and the half-open range of its characters each id stands for.

  Args:
    processor: the vocabulary.
    text: the original, un-normalised text.
    config: the tokenizer's settings.
    digit_commas: the digit-comma rule's table, id → pieces.
  """
  aligned = normalize_with_alignment(
    text,
    do_lower_case=config.do_lower_case,
    remove_space=config.remove_space,
    normalize_quotes=config.normalize_quotes,
  )
  ids: list[int] = []
  ranges: list[tuple[int, int]] = []
  for piece in processor.encode(aligned.text, out_type="immutable_proto").pieces:
    begin, end = piece.begin, piece.end
    if piece.id not in digit_commas:
      ids.append(piece.id)
      ranges.append(_original_range(aligned, begin, end))
      continue
    for part in digit_commas[piece.id]:
      ids.append(processor.piece_to_id(part))
      # Skip the space that "▁" stands for; a part takes as many characters as it has.
      while begin < end and aligned.text[begin].isspace():
        begin += 1
      width = len(part.removeprefix(SPIECE_UNDERLINE))
      stop = min(begin + width, end) if part != "," else end
      ranges.append(_original_range(aligned, begin, stop))
      begin = stop
  return ids, ranges


def _original_range(aligned: AlignedText, begin: int, end: int) -> tuple[int, int]:
  while begin < end and aligned.text[begin].isspace():
    begin += 1
  while end > begin and aligned.text[end - 1].isspace():
    end -= 1
  if begin == end:
    at = aligned.starts[begin] if begin < len(aligned.starts) else (aligned.ends[-1] if aligned.ends else 0)
    return at, at
  return aligned.starts[begin], aligned.ends[end - 1]
