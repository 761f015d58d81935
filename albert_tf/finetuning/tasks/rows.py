"""Examples as packed rows of ids, from which the other inputs are computed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from albert_tf.checkpoints.bundle import coordinator_cpu
from albert_tf.keras_api.preprocessor import INPUT_NAMES, AlbertPreprocessor
from albert_tf.progress import track
from albert_tf.tokenization import Tokenizer

_Example = TypeVar("_Example")


@dataclasses.dataclass(frozen=True, eq=False)
class PackedRows(Sequence[Mapping[str, np.ndarray]]):
  """Rows `[CLS] first [SEP] second [SEP]` of n examples, made on access; all rows of RACE would take 2 GB.

  An item has int32 `input_ids`, `input_mask` and `segment_ids` `[…, s]`, `p_mask` and `more`.

  Attributes:
    ids: ids of each example `[…, s]`, padded if its rows (such as choices) have different lengths.
    lengths: lengths of each example's rows `[…]`, without padding.
    second: positions `[…]` of the first token of the second segment, for each example.
    p_mask: whether to add "p_mask": 0 at [CLS] and in the second segment, where answers can be, else 1.
    more: name → additional scalars of each example, `[n]`.
  """

  ids: Sequence[np.ndarray]
  lengths: Sequence[Any]
  second: Sequence[Any]
  p_mask: bool = False
  more: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

  @classmethod
  def of(cls, batches: Iterable[Mapping[str, Any]], **options: Any) -> "PackedRows":
    """Makes rows without padding from batches of `input_ids`, `input_mask` and `segment_ids` `[b, …, S]`."""
    ids: list[np.ndarray] = []
    lengths: list[Any] = []
    second: list[Any] = []
    for batch in batches:
      every = np.asarray(batch["input_ids"])
      every = every.astype(np.uint16 if every.max(initial=0) < 1 << 16 else np.int32)
      sizes = np.asarray(batch["input_mask"]).sum(axis=-1)
      ids += [row[..., : np.max(size)].copy() for row, size in zip(every, sizes, strict=True)]
      lengths += list(sizes)
      second += list(sizes - np.asarray(batch["segment_ids"]).sum(axis=-1))
    return cls(ids, lengths, second, **options)

  def take(self, chosen: Sequence[int] | np.ndarray, **more: np.ndarray) -> "PackedRows":
    """The chosen examples, with additional scalars of each."""
    ids, lengths, second = ([column[i] for i in chosen] for column in (self.ids, self.lengths, self.second))
    return PackedRows(ids, lengths, second, self.p_mask, more)

  def __len__(self) -> int:
    return len(self.ids)

  def __getitem__(self, index: Any) -> Any:
    ids = np.asarray(self.ids[index], np.int32)
    place = np.arange(ids.shape[-1])
    length, second = (np.asarray(column[index])[..., np.newaxis] for column in (self.lengths, self.second))
    real = place < length
    in_second = real & (place >= second)
    row = {"input_ids": ids, "input_mask": real.astype(np.int32), "segment_ids": in_second.astype(np.int32)}
    if self.p_mask:
      may_answer = (in_second & (place < length - 1)) | (place == 0)
      row["p_mask"] = (~may_answer).astype(np.int32)
    return row | {name: column[index] for name, column in self.more.items()}


def in_blocks(examples: Sequence[_Example], size: int, *, desc: str) -> Iterable[Sequence[_Example]]:
  """Yields blocks of examples, with a progress bar."""
  blocks = [examples[begin : begin + size] for begin in range(0, len(examples), size)]
  return track(blocks, len(blocks), desc=desc, unit=f"x {size}")


def tokenized(
  tokenizer: Tokenizer,
  kind: str,
  examples: Sequence[_Example],
  texts: Callable[[_Example], Sequence[Any]],
  *,
  at_once: int,
  **sizes: Any,
) -> PackedRows:
  """Tokenizes examples with the ops of a SavedModel.

  Args:
    tokenizer: tokenizer of the weights.
    kind, sizes: see `AlbertPreprocessor`.
    examples: examples of the task.
    texts: returns the preprocessor's inputs for an example, in order.
    at_once: number of examples to tokenize together.
  """
  with tf.device(coordinator_cpu()):  # The tables too: a slice's first host could not give them to us.
    pack = AlbertPreprocessor(tokenizer, kind=kind, **sizes).pack
    return PackedRows.of(
      pack(dict(zip(INPUT_NAMES[kind], zip(*map(texts, block), strict=True), strict=False)))
      for block in in_blocks(examples, at_once, desc="Tokenizing")
    )
