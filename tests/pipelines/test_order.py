"""The data order: every record once an epoch, seekable, the same for any number of hosts."""

import collections
import functools
import time

import numpy as np
import pytest
from support.stacks import slow_by_default
from support.tiny_records import RULES, ids_of
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from albert_tf.errors import UserError
from albert_tf.pipelines.batches import HostShard, evaluation_batches, training_batches
from albert_tf.pipelines.fresh_masks import FreshMasks
from albert_tf.pipelines.order import DataOrder
from albert_tf.pipelines.record_index import RecordIndex, build_record_index
from albert_tf.records import frame_record
from albert_tf.records.masking import MaskingConfig
from albert_tf.records.parse import parse_pretraining_batch
from albert_tf.records.shard_index import BLOCK_RECORDS

# Extents span files; an epoch is one window and a rest.
FILE_COUNTS = (30, 10, 700, 5000, 7, 4000, 25_000)
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
      for _ in range(count):
        # Records of several lengths.
        stream.write(frame_record(f"{number}{' ' * (number % 7)}".encode()))
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
  return np.concatenate(numbers(index, 0, 2 * NUM_RECORDS // 512 + 1, batch_size=512))


def test_every_epoch_holds_every_record_once_in_another_order(two_epochs):
  first, second = two_epochs[:NUM_RECORDS], two_epochs[NUM_RECORDS : 2 * NUM_RECORDS]
  assert collections.Counter(first.tolist()) == collections.Counter(range(NUM_RECORDS))
  assert collections.Counter(second.tolist()) == collections.Counter(range(NUM_RECORDS))
  assert np.mean(first == second) < 0.01


@pytest.mark.parametrize(
  "start", [32_768 + 5, pytest.param(NUM_RECORDS - 5, marks=pytest.mark.slow)]
)
def test_any_position_can_be_the_first(index, two_epochs, start):
  found = np.concatenate(numbers(index, start, 5))
  np.testing.assert_array_equal(found, two_epochs[start : start + 160])


@slow_by_default
def test_step_one_million_costs_a_seek(index):
  """Its batches are those of the stream, without reading the four billion examples before."""
  start = 10**6 * 4096
  started = time.monotonic()
  first = np.concatenate(numbers(index, start, 4))
  assert time.monotonic() - started < 20
  np.testing.assert_array_equal(np.concatenate(numbers(index, start + 32, 3)), first[32:])
  assert len(set(first.tolist())) == 128


# (hosts, rows of a host, first example): windows and epochs end within batches; of 128 hosts, two share a lane.
@pytest.mark.parametrize(
  ("hosts", "rows", "start"),
  [
    (2, 16, 32_768 - 40),
    pytest.param(4, 50, 2 * NUM_RECORDS - 700, marks=pytest.mark.slow),
    pytest.param(128, 2, NUM_RECORDS - 40, marks=[pytest.mark.nightly, pytest.mark.timeout(900)]),
  ],
)
def test_hosts_share_every_batch_without_overlap(index, two_epochs, hosts, rows, start):
  batch = hosts * rows
  parts = []
  for host in range(hosts):
    shard = HostShard(num_replicas=hosts, num_hosts=hosts, host=host)
    parts.append(numbers(index, start, 3, batch_size=batch, shard=shard))
  for step in range(3):
    together = np.concatenate([part[step] for part in parts])
    expected = two_epochs[start + step * batch : start + (step + 1) * batch]
    assert sorted(together.tolist()) == sorted(expected.tolist())


@pytest.mark.parametrize(("hosts", "fitting"), [(3, 2), (6, 4), (63, 32), (100, 64)])
def test_hosts_that_would_each_read_everything_are_refused(index, hosts, fitting):
  with pytest.raises(UserError, match=f"Received: {hosts} hosts.*Use {fitting},"):
    numbers(
      index, 0, 1, batch_size=hosts, shard=HostShard(num_replicas=hosts, num_hosts=hosts, host=1)
    )


def window_records(order, window):
  """Numbers of a host's records in the order of the stream, without reading one."""
  window = order.window(tf.constant(window, tf.int64))
  extents = order.extents(window)
  pairs = zip(extents.starts.numpy(), extents.counts.numpy(), strict=True)
  read = np.concatenate([np.arange(start, start + count) for start, count in pairs])
  return read[order.arrangement(window, extents).numpy()]


@pytest.mark.slow
@pytest.mark.parametrize("num_records", [1, 63, 1000, 32_768, 32_769, 70_001])
def test_parts_of_hosts_are_the_whole_for_any_size(num_records):
  """Each host reads only its part: the positions p with p % hosts == host, in order."""
  order = DataOrder(num_records=num_records, seed=7)
  windows = order.windows_per_epoch
  for hosts in (1, 4, 64):
    first = num_records  # Of epoch 1.
    for window in range(windows, 2 * windows):
      whole = window_records(order, window)
      for host in {0, 1 % hosts, hosts - 1}:
        of_host = DataOrder(num_records=num_records, seed=7, num_hosts=hosts, host=host)
        mine = window_records(of_host, window)
        np.testing.assert_array_equal(mine, whole[(host - first) % hosts :: hosts])
        for offset in {0, len(whole) // 2, len(whole) - 1}:
          before = len(whole[(host - first) % hosts : offset : hosts])
          assert of_host.locate(first + offset) == (window, before)
      first += len(whole)
    assert first == 2 * num_records
  epochs = [
    np.concatenate([window_records(order, e * windows + w) for w in range(windows)]) for e in (0, 5)
  ]
  for epoch in epochs:
    assert np.array_equal(np.sort(epoch), np.arange(num_records))
  assert num_records < 64 or np.mean(epochs[0] == epochs[1]) < 0.05


def test_the_seed_is_the_order_and_neighbours_are_torn_apart(index, two_epochs):
  assert np.mean(np.concatenate(numbers(index, 0, 50, seed=4)) == two_epochs[:1600]) < 0.02
  distance = np.abs(np.diff(two_epochs[:NUM_RECORDS].astype(np.int64)))
  assert np.mean(distance < BLOCK_RECORDS) < 0.05  # In file order every distance is 1.


def test_the_order_is_pinned():
  """A change of the order breaks the resume of running jobs."""
  order = DataOrder(num_records=100_000, seed=12345)
  assert window_records(order, 0)[:6].tolist() == [51265, 42756, 20179, 13463, 79348, 76694]
  order = DataOrder(num_records=100_000, seed=12345, num_hosts=4, host=1)
  assert window_records(order, 7)[:6].tolist() == [19789, 77605, 55723, 86964, 83861, 21336]


@pytest.mark.parametrize("hosts", [1, 3])
def test_hosts_evaluate_every_record_once_and_mark_the_filling(paths, hosts):
  index, seen = build_record_index(paths[:2]), []
  for host in range(hosts):
    shard = HostShard(num_replicas=hosts, num_hosts=hosts, host=host)
    batches = list(evaluation_batches(index, parse, global_batch_size=18, num_steps=3, shard=shard))
    # Every host has every batch.
    assert [len(batch["number"]) for batch in batches] == [18 // hosts] * 3
    seen += [batch["number"].numpy()[batch["example_weights"].numpy() == 1] for batch in batches]
  assert sorted(np.concatenate(seen).tolist()) == list(range(40))
  some = evaluation_batches(index, parse, global_batch_size=18, num_steps=1)
  assert np.concatenate([batch["number"].numpy() for batch in some]).tolist() == list(range(18))


@slow_by_default
def test_masks_are_asked_for_by_epoch_and_record(index, two_epochs):
  start = NUM_RECORDS - 300
  found = []
  for host in range(2):
    dataset = training_batches(
      index,
      parse,
      seed=3,
      global_batch_size=100,
      start_position=start,
      shard=HostShard(num_replicas=2, num_hosts=2, host=host),
      mask=lambda batch, epochs, records: {**batch, "epoch": epochs, "record": records},
    )
    found.append(list(dataset.take(6)))
  for step, parts in enumerate(zip(*found, strict=True)):
    rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    np.testing.assert_array_equal(rows["record"], rows["number"])
    first = start + 100 * step
    assert set(rows["epoch"]) == {first // NUM_RECORDS}
    assert sorted(rows["record"]) == sorted(two_epochs[first : first + 100])


FILES = 3


def index_of(blocks_per_file):
  """An index of large files without content; they are read only for batches."""
  marks = np.arange(blocks_per_file + 1, dtype=np.int64) * 9_000
  return RecordIndex(
    paths=tuple(f"train-{number}.tfrecord" for number in range(FILES)),
    first_record=np.arange(FILES + 1, dtype=np.int64) * blocks_per_file * BLOCK_RECORDS,
    first_block=np.arange(FILES, dtype=np.int64) * len(marks),
    block_bytes=np.tile(marks, FILES),
    content="0",
  )


def batches(kind, index):
  options = {"global_batch_size": 32, "shard": HostShard(num_replicas=4, num_hosts=2, host=1)}
  parse = functools.partial(parse_pretraining_batch, rules=RULES)
  if kind == "evaluation":
    return evaluation_batches(index, parse, num_steps=1, **options)
  if kind == "fresh":
    masking = MaskingConfig(
      masked_lm_prob=0.15, max_predictions_per_seq=3, ngram_probabilities=(1.0,)
    )
    vocab_size = index.num_records  # It grows with the corpus.
    tokenizer = ids_of(vocab_size, np.ones(vocab_size, bool))
    options["mask"] = FreshMasks(masking, tokenizer, seed=1)
  return training_batches(index, parse, seed=5, start_position=1_000, **options)


def function_bytes(dataset):
  """The size of all functions that the dataset's graph calls, including constants."""
  graph = graph_pb2.GraphDef.FromString(dataset._as_serialized_graph().numpy())
  assert len(graph.library.function) > 3
  return sum(function.ByteSize() for function in graph.library.function)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["training", "fresh", "evaluation"])
def test_a_corpus_a_thousand_times_larger_has_the_same_functions(kind):
  small, large = (function_bytes(batches(kind, index_of(blocks))) for blocks in (40, 40_000))
  assert large == pytest.approx(small, abs=200)  # Numbers with more digits, names with other ones.
