"""[CLS] a [SEP] or [CLS] a [SEP] b [SEP]: what every tokenizer does in Python, whatever its vocabulary."""

from collections.abc import Iterable, Sequence

import numpy as np

BLANK = "_"  # RACE's mark for the place in a question where the choice belongs.


def truncate_pair(first: list[int], second: list[int], budget: int) -> tuple[list[int], list[int]]:
  """Drops tokens from the end of the longer one (of `second` when equal) until both fit in `budget`.

  Equals the original's loop that pops one token at a time, in closed form.
  """
  excess = len(first) + len(second) - budget
  if excess <= 0:
    return first, second
  # The longer one shrinks alone to the length of the other; then they shrink in turn, `second` first.
  keep_first = min(len(first), max(budget - len(second), (budget + 1) // 2))
  return first[:keep_first], second[: budget - keep_first]


class PackingTokenizer:
  """Texts as a batch for the encoder; how a text becomes ids is the subclass's."""

  cls_id: int
  sep_id: int
  pad_id: int
  mask_id: int
  unk_id: int
  _pieces: list[str]

  def encode(self, text: str, *, allow_mask: bool = False) -> list[int]:
    """Ids of one text, without [CLS] and [SEP]; `allow_mask` reads a literal "[MASK]" as the mask piece."""
    raise NotImplementedError

  def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
    """Ids of many texts; much faster than one call a text."""
    raise NotImplementedError

  @property
  def vocab_size(self) -> int:
    return len(self._pieces)

  @property
  def pieces(self) -> list[str]:
    """All pieces, indexed by id."""
    return list(self._pieces)

  def id_to_piece(self, index: int) -> str:
    return self._pieces[index]

  def __call__(
    self,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    *,
    max_length: int = 512,
    pad_to_max_length: bool = False,
    allow_mask: bool = False,
  ) -> dict[str, np.ndarray]:
    """Texts, or pairs of texts, as a batch for the encoder.

    Args:
      texts: B strings.
      pairs: B second segments, or None. An empty one makes a single segment.
      max_length: longer rows are cut at the end; of a pair, the longer segment first.
      pad_to_max_length: S = max_length; else S = the longest row.
      allow_mask: read a literal "[MASK]" as the mask piece.

    Returns:
      int32 arrays `input_ids`, `input_mask`, `segment_ids`, each [B, S].
    """
    if isinstance(texts, str) or isinstance(pairs, str):
      raise TypeError("texts and pairs are sequences of strings. Received: one string. Put it in a list.")
    if pairs is not None and len(pairs) != len(texts):
      raise ValueError(f"texts and pairs must have the same length. Received: {len(texts)} and {len(pairs)}.")
    if max_length < (3 if pairs is None else 5):
      raise ValueError(f"max_length must leave room beside the special pieces. Received: {max_length}.")
    firsts, seconds = (
      [self.encode(text, allow_mask=True) for text in part] if allow_mask else self.encode_batch(part)
      for part in (texts, pairs or [])
    )
    rows: list[list[int]] = []
    segment_starts: list[int] = []  # Where segment 1 begins.
    for index, first in enumerate(firsts):
      second = seconds[index] if seconds else []
      if second:
        first, second = truncate_pair(first, second, max_length - 3)
        row = [self.cls_id, *first, self.sep_id, *second, self.sep_id]
      else:
        row = [self.cls_id, *first[: max_length - 2], self.sep_id]
      segment_starts.append(len(first) + 2 if second else len(row))
      rows.append(row)
    length = max_length if pad_to_max_length else max(map(len, rows), default=0)
    input_ids = np.full([len(rows), length], self.pad_id, np.int32)  # [B, S]
    input_mask = np.zeros_like(input_ids)
    segment_ids = np.zeros_like(input_ids)
    for index, row in enumerate(rows):
      input_ids[index, : len(row)] = row
      input_mask[index, : len(row)] = 1
      segment_ids[index, segment_starts[index] : len(row)] = 1
    return {"input_ids": input_ids, "input_mask": input_mask, "segment_ids": segment_ids}
