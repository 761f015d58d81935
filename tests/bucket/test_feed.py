"""Reading records from a bucket, checked by the log of requests."""

import json
import subprocess
import sys

import numpy as np
import pytest

from albert_tf.records import frame_record
from albert_tf.records.shard_index import scan_shard

NUM_RECORDS, BATCH = 40_000, 500
CHILD = f"""
import json, sys
from albert_tf.cli.commands import load_tensorflow
load_tensorflow(reads_extents=True)
import tensorflow as tf
from albert_tf import files
from albert_tf.pipelines.batches import HostShard, training_batches
from albert_tf.pipelines.record_index import build_record_index

def parse(records):
  return {{"number": tf.strings.to_number(tf.strings.substr(records, 0, 6), tf.int32)}}

seen = []
for folder, hosts, host in (("one", 1, 0), ("two-0", 2, 0), ("two-1", 2, 1)):
  paths = [f"gs://albert/{{folder}}/train-{{shard}}.tfrecord" for shard in range(2)]
  index = build_record_index(paths)
  shard = HostShard(num_replicas=2, num_hosts=hosts, host=host)
  dataset = training_batches(index, parse, seed=1, global_batch_size={BATCH}, shard=shard)
  rows = [batch["number"].numpy() for batch in dataset.take({NUM_RECORDS // BATCH} * 2 // hosts)]
  seen.append([int(row) for part in rows for row in part])
paths = files.expand_globs("gs://albert/none/train-*")
made = build_record_index(paths)
print(json.dumps([seen, made.content == index.content, files.expand_globs("gs://albert/none/*train-*")]))
"""


@pytest.mark.slow
def test_a_window_is_few_long_reads_and_a_host_reads_its_own_rows(bucket, tmp_path):
  rng = np.random.default_rng(0)
  records = [
    frame_record(f"{number:06d}".encode() + bytes(int(rng.integers(300, 500))))
    for number in range(NUM_RECORDS)
  ]
  half, size = NUM_RECORDS // 2, sum(map(len, records))
  indices = []
  for number, part in enumerate((records[:half], records[half:])):
    name, shard = f"train-{number}.tfrecord", tmp_path / str(number)
    shard.write_bytes(b"".join(part))
    indices.append(scan_shard(str(shard)).to_bytes())
    for folder in ("one", "two-0", "two-1", "none"):
      bucket.put(f"{folder}/{name}", shard.read_bytes())
      if folder != "none":
        bucket.put(f"{folder}/index/offsets-{name}.npy", indices[-1])
  done = subprocess.run(
    [sys.executable, "-c", CHILD], env=bucket.environment(), stdout=subprocess.PIPE, check=True
  )
  (whole, *parts), same_content, found = json.loads(done.stdout.splitlines()[-1])
  assert same_content
  assert found == [f"gs://albert/none/train-{name}.tfrecord" for name in range(2)]
  made = [bucket.get(f"none/index/offsets-train-{name}.tfrecord.npy") for name in range(2)]
  assert made == indices

  reads = [
    each for each in bucket.proxy.exchanges if each.kind == "read" and "/index/" not in each.object
  ]
  asked = {
    folder: sum(each.received for each in reads if f"/{folder}/" in each.object) / size
    for folder in ("one", "two-0", "two-1")
  }
  # All of a window and the rest of an epoch, and at most the window behind them.
  assert 1.0 < asked["one"] < 1.3 * (NUM_RECORDS + 32_768) / NUM_RECORDS
  assert max(asked["two-0"], asked["two-1"]) < 0.6 * asked["one"]
  # A read of an extent, and before it TensorFlow's look at the byte before.
  lengths = [each.requested for each in reads if "/one/" in each.object]
  extents = [length for length in lengths if length > 1 << 14]
  assert len(extents) < 3 * 64 + 10
  assert max(extents) < 700 * 516
  assert sorted(whole) == list(range(NUM_RECORDS))
  for step in range(0, NUM_RECORDS, BATCH):
    mine = [row for part in parts for row in part[step // 2 : (step + BATCH) // 2]]
    assert sorted(mine) == sorted(whole[step : step + BATCH])
