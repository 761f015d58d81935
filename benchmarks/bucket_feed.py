r"""What training reads from a bucket, how fast, and what a start costs, with and without the index of each shard.

Prints one JSON line. Records of length 512 lie in a fake bucket on this machine, behind a proxy that counts and adds
`--latency_ms` to each request; TensorFlow's own `gs://` file system reads them. Claims: at least three times what
the planner says a v3-8 consumes for base; at most 1.3 bytes asked for a byte of the records of the windows read; each
of n hosts asks for about 1/n. `before` is the order of runs that began before version 2, without the settings of a
bucket that run_pretrain.py makes. `start` is the time from the names of the files to their index. Needs the packages
of the tests.

Example:
  python benchmarks/bucket_feed.py --num_records=100000
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from typing import Any

from absl import flags
import common

from albert_tf.configs import AlbertConfig
from albert_tf.planning.chips import CHIPS
from albert_tf.planning.estimate import StepShape, estimate_step
from albert_tf.records import PretrainingSpec
from albert_tf.startup import read_buckets_in_extents

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests"))

_NUM_RECORDS = flags.DEFINE_integer("num_records", 100_000, "Records in the bucket.", lower_bound=40_000)
_LATENCY_MS = flags.DEFINE_float("latency_ms", 20.0, "Added to each request.")
_CHILD = flags.DEFINE_string("child", "", "What this process does; for the benchmark itself.")
_SPEC, _BATCH, _SHARDS = PretrainingSpec(512, 20), 512, 4
_CORPUS, _CORPUS_SHARDS = 360_000_000, 5000  # For what is extrapolated.
_HEAD = re.compile(r"records/train-")


def consumed_by_v3_8() -> float:
  """Examples of base at length 512 that a v3-8 uses in a second, 8 a core and step, by the planner."""
  shape = StepShape(per_core_batch_size=8, max_predictions_per_seq=_SPEC.max_predictions_per_seq)
  cycles = estimate_step(AlbertConfig.from_name("base"), shape, CHIPS["v3"]).cycles
  return 8 * 8 / (cycles / CHIPS["v3"].clock_hz)


def child(order: dict[str, Any]) -> dict[str, float]:
  """In a process of its own, which sees the bucket: a start, then batches."""
  if order["long_reads"]:
    read_buckets_in_extents()
  from albert_tf.pipelines.batches import HostShard, training_batches
  from albert_tf.pipelines.record_index import build_record_index
  from albert_tf.records.parse import parse_pretraining_batch

  began = time.perf_counter()
  index = build_record_index(order["paths"], write=order["write"])
  started = time.perf_counter() - began
  shard = HostShard(num_replicas=order["hosts"], num_hosts=order["hosts"], host=order["host"])
  dataset = training_batches(
    index,
    lambda serialized: parse_pretraining_batch(serialized, _SPEC),
    seed=1,
    global_batch_size=_BATCH,
    shard=shard,
    order_version=order["version"],
  )
  batches, seconds = order["batches"], 0.0
  if batches:
    iterator = iter(dataset)
    began = time.perf_counter()  # The first window counts, too.
    for _ in range(batches):
      next(iterator)
    seconds = time.perf_counter() - began
  return {"start": started, "seconds": seconds, "record_bytes": index.num_bytes / index.num_records}


def run_child(bucket: Any, **order: Any) -> dict[str, float]:
  """What the child measured, and what the proxy saw of it."""
  bucket.proxy.exchanges.clear()
  plan = {"hosts": 1, "host": 0, "version": 2, "batches": 0, "write": False, "long_reads": True, **order}
  plan["paths"] = [bucket.url(f"records/train-{shard}.tfrecord") for shard in range(_SHARDS)]
  done = subprocess.run(
    [sys.executable, *sys.argv, f"--child={json.dumps(plan)}"],
    env=bucket.environment(TF_CPP_MIN_LOG_LEVEL="3"),
    stdout=subprocess.PIPE,
    check=True,
  )
  found = json.loads(done.stdout)
  reads = [each for each in bucket.proxy.exchanges if each.kind == "read" and _HEAD.search(each.object)]
  reads = [each for each in reads if "/index/" not in each.object]
  found["requests"] = len(reads)
  found["asked"] = sum(each.received for each in reads)
  found["extents"] = sum(each.requested > 1 << 16 for each in reads)
  found["start_asked"] = sum(each.received for each in bucket.proxy.exchanges if "/index/" in each.object)
  return found


def records_of_windows(count: int, num_records: int) -> int:
  """Records of the first windows of the stream."""
  from albert_tf.pipelines.lane_order import LANE_RECORDS, LANES

  full, rest = divmod(num_records, LANES * LANE_RECORDS)
  sizes = [LANES * LANE_RECORDS] * full + [rest] * bool(rest)
  return sum(sizes[window % len(sizes)] for window in range(count))


def fill(bucket: Any, folder: str) -> None:
  """The records, without indexes."""
  import record_reading

  source = os.path.join(folder, "records.tfrecord")
  record_reading.write_random_records(source, _SPEC, _NUM_RECORDS.value // _SHARDS)
  data = pathlib.Path(source).read_bytes()
  for shard in range(_SHARDS):  # The order does not look inside.
    bucket.put(f"records/train-{shard}.tfrecord", data)


def measure(bucket: Any) -> dict[str, Any]:
  """All sides, one after the other."""
  from albert_tf.pipelines.lane_order import LANES

  num_records = _NUM_RECORDS.value // _SHARDS * _SHARDS
  walk = run_child(bucket, write=True)
  index = run_child(bucket)
  batches = 2 * num_records // _BATCH
  after = run_child(bucket, batches=batches)
  before = run_child(bucket, batches=1, version=1, long_reads=False)
  by_hosts = {
    hosts: [
      run_child(bucket, batches=num_records // _BATCH, hosts=hosts, host=host)["asked"]
      for host in range(hosts)
    ]
    for hosts in (1, 2, 4)
  }
  whole = num_records * after["record_bytes"]
  used = records_of_windows(int(after["extents"] // LANES), num_records) * after["record_bytes"]
  rate, needed = batches * _BATCH / after["seconds"], consumed_by_v3_8()
  files = -(-_CORPUS_SHARDS // 32)  # One after the other in each of the threads.
  return {
    "examples_per_second": rate,
    "v3_8_consumes": needed,
    "ratio": rate / needed,
    "claim": 3.0,
    "asked_over_used": after["asked"] / used,
    "requests_per_1000_examples": after["requests"] / (batches * _BATCH) * 1000,
    "before": {  # Each request is for 64 records of one block.
      "asked_over_used": before["asked"] / (before["requests"] * 64 * before["record_bytes"]),
      "requests_per_1000_examples": 1000 / 64,
    },
    "asked_of_an_epoch_by_host": {
      hosts: [asked / whole for asked in each] for hosts, each in by_hosts.items()
    },
    "start_seconds": {"walking": walk["start"], "index": index["start"]},
    "start_bytes": {"walking": walk["asked"], "index": index["start_asked"]},
    "start_extrapolated": {
      "what": f"{_CORPUS:,} records in {_CORPUS_SHARDS:,} files, 32 at a time; not run",
      "walking_hours": walk["start"] * _CORPUS / num_records / 3600,
      "index_seconds": index["start"] / -(-_SHARDS // 32) * files,
      "index_megabytes": index["start_asked"] * _CORPUS / num_records / 1e6,
    },
  }


def benchmark() -> dict[str, Any]:
  if _CHILD.value:
    return child(json.loads(_CHILD.value))
  from support.bucket.fake_bucket import FakeBucket
  from support.bucket.gcs_proxy import Faults

  with tempfile.TemporaryDirectory() as folder, FakeBucket(folder) as bucket:
    fill(bucket, folder)
    bucket.faults = Faults(latency=_LATENCY_MS.value / 1000)
    head = {"records": _NUM_RECORDS.value, "latency_ms": _LATENCY_MS.value}
    return {**head, **measure(bucket)}


if __name__ == "__main__":
  common.run(benchmark)
