"""Examples as unpadded rows."""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import hashlib
from typing import Any

import numpy as np

from albert_tf.errors import UserError

Column = np.ndarray | Sequence[np.ndarray]  # One array, or one array a row where lengths differ.


@dataclasses.dataclass(frozen=True)
class FeatureSet:
  """The examples of one split, ready to be batched.

  Attributes:
    rows: one mapping an example: int32 arrays whose LAST axis is its own length s (`input_ids`, `input_mask`,
      `segment_ids`; multiple choice `[C, s]`), and scalars (`start_positions`).
    labels: what the loss compares with: an array `[n, …]`, a list of n arrays `[s]` (tags), or, for a model
      with named outputs, a mapping output name → one of these. None where there are none.
    pad_values: name → what a row is filled up with, 0 unless said; "labels" for tags.
    weights: of each example `[n]` or of each piece, n arrays `[s]`; None: 1. A batch's loss is the weighted
      mean over the whole of it, all replicas together.
    factors: on each example's part of that mean, `[n]`, as those of `class_factors`; None: 1.
  """

  rows: Sequence[Mapping[str, np.ndarray]]
  labels: Column | Mapping[str, Column] | None = None
  pad_values: Mapping[str, int] = dataclasses.field(default_factory=dict)
  weights: Column | None = None
  factors: np.ndarray | None = None

  def __len__(self) -> int:
    return len(self.rows)

  @functools.cached_property
  def lengths(self) -> np.ndarray:
    """int64 `[n]`: the length of each row."""
    return np.array([np.shape(row["input_ids"])[-1] for row in self.rows], np.int64)

  def fingerprint(self) -> str:
    """A hash of everything that training or evaluation on these examples depends on."""
    digest = hashlib.sha256()
    labels = self.labels if isinstance(self.labels, Mapping) else {"labels": self.labels}
    columns = {
      name: column for name, column in {**labels, "weights": self.weights}.items() if column is not None
    }
    for name, arrays in (*columns.items(), *(("", row.values()) for row in self.rows)):
      digest.update(name.encode())
      for value in arrays:
        array = np.ascontiguousarray(value)
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def class_factors(
  labels: Any, names: Sequence[str], class_weights: str | Mapping[str, float]
) -> np.ndarray | None:
  """The weight of each example's class, float32 `[n]`, as Keras' `class_weight` has it; None without weights.

  Args:
    labels: class ids, `[n]`.
    names: of the classes, by id; none of a task without.
    class_weights: see `FineTuneSettings`.

  Raises:
    UserError: weights for a class that there is not, or for a task without classes of examples.
  """
  if not class_weights:
    return None
  if not names or not isinstance(labels, np.ndarray):
    raise UserError("Class weights are for classification. Received: another kind of task. Leave them out.")
  if isinstance(class_weights, str):  # Balanced.
    counts = np.bincount(labels, minlength=len(names))
    return (len(labels) / (len(names) * np.maximum(counts, 1)))[labels].astype(np.float32)
  unknown = sorted(class_weights.keys() - set(names))
  if unknown:
    raise UserError(
      f"Class weights are for classes of the task: {', '.join(names)}. Received: weights of {', '.join(unknown)}."
    )
  return np.array([class_weights.get(name, 1.0) for name in names], np.float32)[labels]
