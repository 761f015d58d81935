"""[CLS] a [SEP] or [CLS] a [SEP] b [SEP]: truncation and padding of one batch."""

from collections.abc import Sequence

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


def pack_batch(
  firsts: Sequence[list[int]],
  seconds: Sequence[list[int]] | None,
  *,
  cls_id: int,
  sep_id: int,
  pad_id: int,
  max_length: int,
  pad_to_max_length: bool,
) -> dict[str, np.ndarray]:
  """Packs token ids into int32 arrays `input_ids`, `input_mask`, `segment_ids`, each [B, S].

  Args:
    firsts: B lists of ids without special pieces.
    seconds: B lists, or None. An empty second list makes a single segment.
    cls_id, sep_id, pad_id: the special pieces.
    max_length: no row is longer, special pieces included.
    pad_to_max_length: S = max_length; else S = the longest row.
  """
  rows: list[list[int]] = []
  segment_starts: list[int] = []  # Where segment 1 begins.
  for index, first in enumerate(firsts):
    second = seconds[index] if seconds is not None else []
    if second:
      first, second = truncate_pair(first, second, max_length - 3)
      row = [cls_id, *first, sep_id, *second, sep_id]
    else:
      row = [cls_id, *first[: max_length - 2], sep_id]
    segment_starts.append(len(first) + 2 if second else len(row))
    rows.append(row)
  length = max_length if pad_to_max_length else max(map(len, rows), default=0)
  input_ids = np.full([len(rows), length], pad_id, np.int32)  # [B, S]
  input_mask = np.zeros_like(input_ids)
  segment_ids = np.zeros_like(input_ids)
  for index, row in enumerate(rows):
    input_ids[index, : len(row)] = row
    input_mask[index, : len(row)] = 1
    segment_ids[index, segment_starts[index] : len(row)] = 1
  return {"input_ids": input_ids, "input_mask": input_mask, "segment_ids": segment_ids}
