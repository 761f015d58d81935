"""Examples as packed rows of ids, from which the model's other inputs are computed.

Every task makes its `FeatureSet.rows` here.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.compat import coordinator_cpu
from albert_tf.keras_api.preprocessor import AlbertPreprocessor
from albert_tf.progress import track
from albert_tf.tokenization import Tokenizer

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
    lengths: lengths of each example's rows `[…]`, without padding.
    second_begins: positions `[…]` of the first token of the second segment, for each example.
    p_mask: whether items have "p_mask", of SQuAD 2.0.
    scalars: name → one more number of each example, `[n]`.
  """

  ids: Sequence[np.ndarray]
  lengths: Sequence[Any]
  second_begins: Sequence[Any]
  p_mask: bool = False
  scalars: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

  @classmethod
  def of(cls, batches: Iterable[Mapping[str, Any]], *, p_mask: bool = False) -> "PackedRows":
    """Rows without padding, of batches of `input_ids`, `input_mask`, `segment_ids` `[b, …, S]`."""
    ids = []
    lengths: list[Any] = []
    second_begins: list[Any] = []
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
      lengths.extend(batch_lengths)
      second_begins.extend(batch_lengths - second_lengths)
    return cls(ids, lengths, second_begins, p_mask)

  def take(self, numbers: Sequence[int] | np.ndarray, **scalars: np.ndarray) -> "PackedRows":
    """The examples with these numbers, with additional scalars of each."""
    ids = [self.ids[i] for i in numbers]
    lengths = [self.lengths[i] for i in numbers]
    second_begins = [self.second_begins[i] for i in numbers]
    return PackedRows(ids, lengths, second_begins, self.p_mask, scalars)

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


def tokenized(
  tokenizer: Tokenizer, kind: str, columns: Mapping[str, Any], **sizes: Any
) -> PackedRows:
  """Tokenizes examples with the ops of a SavedModel.

  Args:
    tokenizer: tokenizer of the weights.
    kind, sizes: see `AlbertPreprocessor`.
    columns: the preprocessor's inputs by name, with a value for each example; columns of None are
      left out.
  """
  columns = {name: column for name, column in columns.items() if set(column) != {None}}
  blocks = in_blocks(max(map(len, columns.values())), desc="Tokenizing")
  # The tables too: a slice's first host could not give them to us.
  with tf.device(coordinator_cpu()):
    pack = AlbertPreprocessor(tokenizer, kind=kind, **sizes).pack
    return PackedRows.of(
      pack({name: column[block] for name, column in columns.items()}) for block in blocks
    )


def in_blocks(count: int, *, desc: str) -> Iterable[slice]:
  """Slices of `AT_ONCE` that cover `count` examples, with a progress bar."""
  blocks = [slice(begin, begin + AT_ONCE) for begin in range(0, count, AT_ONCE)]
  return track(blocks, len(blocks), desc=desc, unit=f"x {AT_ONCE}")
