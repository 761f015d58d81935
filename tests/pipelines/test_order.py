"""The data order: every record once an epoch, seekable, the same for any number of hosts."""

import collections
import pathlib
import time

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.pipelines.pretraining import HostShard, evaluation_batches, training_batches
from albert_tf.pipelines.record_index import BLOCK_RECORDS, build_record_index
from albert_tf.records import TFRecordWriter

FILE_COUNTS = (30, 10, 700, 5000, 7, 4000)  # Blocks span files; the last block is incomplete.
NUM_RECORDS = sum(FILE_COUNTS)
ONE_HOST = HostShard()


def parse(serialized):
  return {"number": tf.strings.to_number(tf.strings.strip(serialized), tf.int32)}


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
  folder, number = tmp_path_factory.mktemp("order"), 0
  result = []
  for file, count in enumerate(FILE_COUNTS):
    result.append(str(folder / f"train-{file}.tfrecord"))
    with open(result[-1], "wb") as stream:
      writer = TFRecordWriter(stream)
      for _ in range(count):
        writer.write(f"{number}{' ' * (number % 7)}".encode())  # Records of several lengths.
        number += 1
  return result


@pytest.fixture(scope="module")
def index(paths):
  return build_record_index(paths)


def numbers(index, start, batches, *, batch_size=32, shard=ONE_HOST, seed=3):
  dataset = training_batches(
    index, parse, seed=seed, global_batch_size=batch_size, start_position=start, shard=shard
  )
  return [batch["number"].numpy() for batch in dataset.take(batches)]


@pytest.fixture(scope="module")
def two_epochs(index):
  return np.concatenate(numbers(index, 0, 2 * NUM_RECORDS // 32 + 1))


def test_every_epoch_holds_every_record_once_in_another_order(two_epochs):
  first, second = two_epochs[:NUM_RECORDS], two_epochs[NUM_RECORDS : 2 * NUM_RECORDS]
  assert collections.Counter(first.tolist()) == collections.Counter(range(NUM_RECORDS))
  assert collections.Counter(second.tolist()) == collections.Counter(range(NUM_RECORDS))
  assert np.mean(first == second) < 0.01


@pytest.mark.parametrize("start", [0, 1, 4095, 4096, 8191, NUM_RECORDS - 5, NUM_RECORDS, NUM_RECORDS + 4097])
def test_any_position_can_be_the_first(index, two_epochs, start):
  np.testing.assert_array_equal(np.concatenate(numbers(index, start, 5)), two_epochs[start : start + 160])


def test_step_one_million_costs_a_seek(index):
  """Its batches are those of the stream, and come without the four billion before them."""
  start = 10**6 * 4096
  started = time.monotonic()
  first = np.concatenate(numbers(index, start, 4))
  assert time.monotonic() - started < 20
  np.testing.assert_array_equal(np.concatenate(numbers(index, start + 32, 3)), first[32:])
  assert len(set(first.tolist())) == 128


def test_hosts_share_every_batch_without_overlap(index, two_epochs):
  shards = [HostShard(num_replicas=4, num_hosts=2, host=host) for host in range(2)]
  parts = [numbers(index, 64, 6, shard=shard) for shard in shards]
  joined = [parts[host][2 * step + replica] for step in range(3) for host in range(2) for replica in range(2)]
  np.testing.assert_array_equal(np.concatenate(joined), two_epochs[64 : 64 + 96])


def test_the_seed_is_the_order_and_neighbours_are_torn_apart(index, two_epochs):
  assert np.mean(np.concatenate(numbers(index, 0, 50, seed=4)) == two_epochs[:1600]) < 0.02
  distance = np.abs(np.diff(two_epochs[:NUM_RECORDS].astype(np.int64)))
  assert np.mean(distance < BLOCK_RECORDS) < 0.05  # In file order every distance is 1.


def test_positions_are_arithmetic():
  order = ShuffledOrder(num_records=10_000, seed=1)
  assert order.windows_per_epoch == 3
  assert order.locate(0) == (0, 0)
  assert order.locate(9_999) == (2, 9_999 - 2 * 4096)
  assert order.locate(10_000) == (3, 0)
  assert order.locate(10**15 * 10_000 + 4096) == (3 * 10**15 + 1, 0)


def test_the_order_is_pinned():
  """A change of the order breaks the resume of running jobs: it must be deliberate."""
  order = ShuffledOrder(num_records=100 * BLOCK_RECORDS + 5, seed=12345)
  assert order.window_blocks(tf.constant(0, tf.int64)).numpy()[:6].tolist() == PINNED_BLOCKS
  shuffled = order.permute_window(tf.range(100), tf.constant(7, tf.int64))
  assert shuffled.numpy()[:6].tolist() == PINNED_RECORDS


PINNED_BLOCKS = [23, 6, 47, 79, 55, 41]
PINNED_RECORDS = [52, 2, 18, 51, 45, 43]


def test_evaluation_sees_every_record_once_and_marks_the_filling(paths):
  batches = list(evaluation_batches(paths[:2], parse, global_batch_size=16))
  weights = np.concatenate([batch["example_weights"].numpy() for batch in batches])
  seen = np.concatenate([batch["number"].numpy() for batch in batches])
  assert len(weights) == 48
  assert weights.sum() == 40
  np.testing.assert_array_equal(seen[weights == 1], np.arange(40))


def test_damaged_records_are_left_out_and_the_rest_stays_readable(paths, tmp_path):
  data = bytearray(pathlib.Path(paths[2]).read_bytes())
  offsets = build_record_index([paths[2]])
  data[offsets.block_offset[3] + 13] ^= 1  # In the data of record 3 * 64.
  damaged = tmp_path / "train-0.tfrecord"
  damaged.write_bytes(bytes(data))
  index = build_record_index([str(damaged), paths[1]], on_bad_record="skip")
  assert (index.num_skipped, index.num_records) == (1, 709)
  seen = np.concatenate(numbers(index, 0, 709 // 8, batch_size=8))[:704]
  assert len(set(seen.tolist())) == 704
  assert 40 + 3 * BLOCK_RECORDS not in seen
