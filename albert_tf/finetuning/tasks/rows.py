"""Examples as packed rows of ids; everything else about a row follows from three numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


class PackedRows(Sequence[Mapping[str, np.ndarray]]):
  """`[CLS] first [SEP] second [SEP]` of n examples, put together when asked for: RACE's would take 2 GB.

  Args:
    ids: of each example `[…, s]`, padded where its rows have different lengths, such as a question's choices.
    lengths: of each example `[…]`: without padding.
    second: of each example `[…]`: where its second segment begins; None: it has none.
    p_mask: adds "p_mask", 1 where no answer can be: outside of the second segment and [CLS].
    more: further scalars of each example, by name, `[n]`.

  Items: int32 `input_ids`, `input_mask`, `segment_ids` `[…, s]` and the rest.
  """

  def __init__(
    self,
    ids: Sequence[np.ndarray],
    lengths: Any,
    second: Any = None,
    *,
    p_mask: bool = False,
    more: Mapping[str, np.ndarray] | None = None,
  ):
    self._ids, self._lengths, self._second = ids, lengths, second
    self._p_mask, self._more = p_mask, more or {}

  def __len__(self) -> int:
    return len(self._ids)

  def __getitem__(self, index: Any) -> Any:
    ids = np.asarray(self._ids[index], np.int32)
    place = np.arange(ids.shape[-1])
    length = np.asarray(self._lengths[index])[..., np.newaxis]
    real = place < length
    in_second = np.zeros_like(real)
    if self._second is not None:
      in_second = real & (place >= np.asarray(self._second[index])[..., np.newaxis])
    row = {"input_ids": ids, "input_mask": real.astype(np.int32), "segment_ids": in_second.astype(np.int32)}
    if self._p_mask:
      may_answer = (in_second & (place < length - 1)) | (place == 0)
      row["p_mask"] = (~may_answer).astype(np.int32)
    return row | {name: column[index] for name, column in self._more.items()}
