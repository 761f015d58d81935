"""Which record of which file is at a position of the training stream."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf.pipelines.order import make_order
from albert_tf.pipelines.record_index import RecordIndex


class RecordPlace(NamedTuple):
  """Where a record lies; `record` counts from 0, damaged ones that a run leaves out not counted."""

  path: str
  record: int


def locate_examples(
  index: RecordIndex, *, seed: int, order_version: int, position: int, count: int
) -> list[RecordPlace]:
  """The places of the examples `[position, position + count)` of the stream, without reading a record.

  Args:
    index: of the training records.
    seed, order_version: of the run.
    position: number of the first example.
    count: how many.
  """
  order = make_order(order_version, num_records=index.num_records, seed=seed)
  part, start = order.part(1, 0), order.locate(position)
  window, skipped = start.window, start.offset
  numbers: list[int] = []  # In the list of all records.
  while len(numbers) < count:
    this = tf.constant(window, tf.int64)
    extents = order.extents(this, part)
    read = np.concatenate(
      [
        np.arange(first, first + n)
        for first, n in zip(extents.starts.numpy(), extents.counts.numpy(), strict=True)
      ]
    )
    numbers += read[order.arrangement(this, part, extents).numpy()][skipped:].tolist()
    window, skipped = window + 1, 0
  stretches = np.searchsorted(index.first_record, numbers[:count], side="right") - 1
  return [
    RecordPlace(index.paths[stretch], _in_file(index, stretch, number))
    for stretch, number in zip(stretches, numbers, strict=False)
  ]


def _in_file(index: RecordIndex, stretch: int, number: int) -> int:
  """The number within the file of record `number` of all: a file with gaps has several stretches."""
  first = index.paths.index(index.paths[stretch])
  return number - int(index.first_record[first])
