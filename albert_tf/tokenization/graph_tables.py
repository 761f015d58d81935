"""Replacing numbers in a TensorFlow graph by rows of a constant table."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf


class Table(NamedTuple):
  """For each number, those that replace it: row v is values[starts[v] : starts[v] + lengths[v]].

  A number beyond the table stays as it is.
  """

  values: tf.Tensor
  starts: tf.Tensor
  lengths: tf.Tensor


def make_table(replacements: Mapping[int, Sequence[int]]) -> Table:
  """The table in which each key is replaced by its values."""
  return as_table(*table_arrays(replacements))


def as_table(values: np.ndarray, lengths: np.ndarray) -> Table:
  """The table of what `table_arrays` gave."""
  with tf.init_scope():  # One copy in a SavedModel, however many functions use it.
    return Table(*(tf.constant(array, tf.int32) for array in (values, np.cumsum(lengths) - lengths, lengths)))


def table_arrays(replacements: Mapping[int, Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
  """Values and lengths of a table."""
  rows = [replacements.get(index, (index,)) for index in range(max(replacements, default=-1) + 1)]
  lengths = np.array([len(row) for row in rows], np.int32)
  return np.array([index for row in rows for index in row], np.int32), lengths


def replace(numbers: tf.RaggedTensor, table: Table) -> tf.RaggedTensor:
  """Replaces each number by its row of the table; [B, (length)] to [B, (length)]."""
  size = table.lengths.shape[0]
  if not size:
    return numbers
  flat = numbers.flat_values
  known = flat < size
  row = tf.minimum(flat, size - 1)
  lengths = tf.where(known, tf.gather(table.lengths, row), 1)
  # A number without a row points to itself: -1 - its place.
  starts = tf.where(known, tf.gather(table.starts, row), -1 - tf.range(tf.size(flat)))
  positions = tf.ragged.range(starts, starts + lengths)
  index = positions.flat_values
  own = tf.gather(flat, tf.maximum(-1 - index, 0))
  values = tf.where(index < 0, own, tf.gather(table.values, tf.maximum(index, 0)))
  splits = tf.gather(positions.row_splits, numbers.row_splits)
  return tf.RaggedTensor.from_row_splits(values, splits, validate=False)
