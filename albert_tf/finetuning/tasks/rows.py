"""Examples as packed rows of ids, from which the model's other inputs are computed.

Every task makes its `FeatureSet.rows` here.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np

from albert_tf.progress import track

# Examples tokenized together: enough to keep TensorFlow busy, and few enough for padded rows.
AT_ONCE = 1024


@dataclasses.dataclass(frozen=True, eq=False)
class PackedRows(Sequence[Mapping[str, np.ndarray]]):
  """Rows `[CLS] first [SEP] second [SEP]` of n examples, made on access.

  An item has int32 `input_ids`, `input_mask` and `segment_ids` `[…, s]`, `p_mask` and the scalars:

      input_ids    [CLS]  a  b  [SEP]  c  d  [SEP]     length 7, second_begin 4
      segment_ids    0    0  0    0    1  1    1
      p_mask         0    1  1    1    0  0    1       0 where an answer can be

  Attributes:
    ids: ids of each example `[…, s]`, padded if its rows (such as choices) have different lengths.
    lengths: lengths `[n, …]` of each example's rows, without padding.
    second_begins: positions `[n, …]` of the first token of the second segment.
    p_mask: whether items have "p_mask", of SQuAD 2.0.
    scalars: name → one more number of each example, `[n]`.
  """

  ids: Sequence[np.ndarray]
  lengths: np.ndarray
  second_begins: np.ndarray
  p_mask: bool = False
  scalars: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

  @classmethod
  def of(cls, batches: Iterable[Mapping[str, Any]], *, p_mask: bool = False) -> "PackedRows":
    """Rows without padding, of batches of `input_ids`, `input_mask`, `segment_ids` `[b, …, S]`."""
    ids = []
    lengths = []
    second_begins = []
    for batch in batches:
      # Only ids are kept, in two bytes where they fit: all rows of RACE as int32 would take 2 GB.
      batch_ids = np.asarray(batch["input_ids"])
      if batch_ids.max(initial=0) < 1 << 16:
        batch_ids = batch_ids.astype(np.uint16)
      batch_lengths = np.asarray(batch["input_mask"]).sum(axis=-1)  # [b, …]
      second_lengths = np.asarray(batch["segment_ids"]).sum(axis=-1)
      for row, row_lengths in zip(batch_ids, batch_lengths, strict=True):
        # A copy: a view would keep the whole padded batch in memory.
        ids.append(row[..., : np.max(row_lengths)].copy())
      lengths.append(batch_lengths)
      second_begins.append(batch_lengths - second_lengths)
    return cls(ids, np.concatenate(lengths), np.concatenate(second_begins), p_mask)

  def take(self, numbers: np.ndarray, **scalars: np.ndarray) -> "PackedRows":
    """The examples with these numbers, with additional scalars of each."""
    ids = [self.ids[i] for i in numbers]
    return PackedRows(ids, self.lengths[numbers], self.second_begins[numbers], self.p_mask, scalars)

  def __len__(self) -> int:
    return len(self.ids)

  def __getitem__(self, index: Any) -> Any:
    ids = np.asarray(self.ids[index], np.int32)
    position = np.arange(ids.shape[-1])
    length = np.expand_dims(self.lengths[index], -1)  # […, 1]
    is_real = position < length
    in_second = is_real & (position >= np.expand_dims(self.second_begins[index], -1))
    row = {
      "input_ids": ids,
      "input_mask": is_real.astype(np.int32),
      "segment_ids": in_second.astype(np.int32),
    }
    if self.p_mask:
      # An answer is in the text, without its [SEP]; [CLS] stands for no answer.
      is_text = in_second & (position < length - 1)
      row["p_mask"] = 1 - (is_text | (position == 0)).astype(np.int32)
    for name, values in self.scalars.items():
      row[name] = values[index]
    return row


def in_blocks(count: int, *, desc: str) -> Iterable[slice]:
  """Slices of `AT_ONCE` that cover `count` examples, with a progress bar."""
  blocks = [slice(begin, begin + AT_ONCE) for begin in range(0, count, AT_ONCE)]
  return track(blocks, len(blocks), desc=desc, unit=f"x {AT_ONCE}")
