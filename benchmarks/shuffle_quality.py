"""How well the data order mixes the records, beside a shuffle buffer of 100 records as the original's.

Prints one JSON line. Records lie document by document, so neighbours in a file resemble each other: a good order
tears them apart. Only numbers of records are put in order; no file is read. `uniform` is a perfect permutation;
`version_1` the order of runs that began before version 2.

  - correlation: of place in the files and place in the stream; 0 is a perfect mix, 1 the order of the files.
  - neighbour_distance: mean distance in the stream of records that are neighbours in a file.
  - same_document_share: share of examples whose document has another example in the same batch.
  - batch_spread: standard deviation, within a batch, of the places in the files.

Example:
  python benchmarks/shuffle_quality.py --num_records=1000000 --batch_size=4096
"""

from typing import Any

from absl import flags
import common
import numpy as np
import tensorflow as tf

from albert_tf.pipelines.order import ORDER_VERSION, make_order

_NUM_RECORDS = flags.DEFINE_integer("num_records", 1_000_000, "Records of an epoch.", lower_bound=1000)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 256, "Examples of a batch.", lower_bound=2)
_DOCUMENT_RECORDS = flags.DEFINE_integer(
  "document_records", 8, "Successive records made from one document.", lower_bound=1
)
_BUFFER = flags.DEFINE_integer(
  "buffer", 100, "Records of the shuffle buffer it is compared with.", lower_bound=1
)
_SEED = flags.DEFINE_integer("seed", 12345, "Keys the order.")


def our_order(num_records: int, seed: int, version: int) -> np.ndarray:
  """File places in the order of the first epoch of training."""
  order = make_order(version, num_records=num_records, seed=seed)
  whole = order.part(1, 0)

  @tf.function
  def window_records(window: tf.Tensor) -> tf.Tensor:
    extents = order.extents(window, whole)
    read = tf.ragged.range(extents.starts, extents.starts + extents.counts).flat_values
    return tf.gather(read, order.arrangement(window, whole, extents))

  found, window = [np.zeros([0], np.int64)], 0
  while sum(map(len, found)) < num_records:
    found.append(window_records(tf.constant(window, tf.int64)).numpy())
    window += 1
  return np.concatenate(found)


def buffer_order(num_records: int, size: int, seed: int) -> np.ndarray:
  """File places in the order of a shuffle buffer over one file after the other."""
  rng = np.random.default_rng(seed)
  buffer = list(range(min(size, num_records)))
  result = np.empty(num_records, np.int64)
  slots = rng.integers(0, len(buffer), num_records)
  for place in range(num_records):
    if place + size < num_records:
      slot = slots[place]
      result[place], buffer[slot] = buffer[slot], place + size
    else:
      result[place] = buffer.pop(rng.integers(len(buffer)))
  return result


def measures(order: np.ndarray, batch_size: int, document_records: int) -> dict[str, float]:
  """What the head of this file describes, of an order of file places."""
  count = len(order)
  place = np.empty(count, np.int64)
  place[order] = np.arange(count)
  batches = order[: count // batch_size * batch_size].reshape(-1, batch_size)
  documents = np.sort(batches // document_records, axis=1)
  repeated = np.zeros(documents.shape, bool)
  same = documents[:, 1:] == documents[:, :-1]
  repeated[:, 1:] |= same
  repeated[:, :-1] |= same
  return {
    "correlation": float(np.corrcoef(np.arange(count), order)[0, 1]),
    "neighbour_distance": float(np.abs(np.diff(place)).mean()),
    "same_document_share": float(repeated.mean()),
    "batch_spread": float(batches.std(axis=1).mean()),
  }


def benchmark() -> dict[str, Any]:
  count, seed = _NUM_RECORDS.value, _SEED.value
  orders = {
    "ours": our_order(count, seed, ORDER_VERSION),
    "version_1": our_order(count, seed, 1),
    "shuffle_buffer": buffer_order(count, _BUFFER.value, seed),
    "uniform": np.random.default_rng(seed).permutation(count),
  }
  assert all(np.array_equal(np.sort(order), np.arange(count)) for order in orders.values())
  found = {
    name: measures(order, _BATCH_SIZE.value, _DOCUMENT_RECORDS.value) for name, order in orders.items()
  }
  return {
    "records": count,
    "batch_size": _BATCH_SIZE.value,
    "document_records": _DOCUMENT_RECORDS.value,
    "order_version": ORDER_VERSION,
    "buffer": _BUFFER.value,
    **{name: {key: round(value, 5) for key, value in each.items()} for name, each in found.items()},
  }


if __name__ == "__main__":
  common.run(benchmark)
