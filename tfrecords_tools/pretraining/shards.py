"""Final files: written, indexed, and described beside when complete."""

from collections.abc import Iterable
import dataclasses
import json
import os

from albert_tf import files
from albert_tf.records import RecordFile, ShardIndexer
from tfrecords_tools.corpus import Checksum


def write_shard(path: str, split: str, records: Iterable[bytes | memoryview], *, plan: str) -> RecordFile:
  """Writes a final file, its index, and last the description by which a later run knows that it is complete.

  Args:
    path: of the file.
    split: train or eval.
    records: framed.
    plan: what a later run must have in common with this one.
  """
  checksum = Checksum()
  indexer = ShardIndexer()
  with files.atomic_writer(path) as stream:
    for record in records:
      data = bytes(record)
      stream.write(checksum.add(data))
      indexer.add(data)
  index = indexer.finish()
  index.save(path)
  written = RecordFile(os.path.basename(path), split, index.num_records, index.num_bytes, checksum.crc32c)
  with files.atomic_writer(f"{path}.json", "w") as stream:
    json.dump({"plan": plan, "file": dataclasses.asdict(written)}, stream)
  return written


def read_description(path: str, *, plan: str) -> RecordFile | None:
  """What `write_shard` wrote beside a file; None where there is nothing, or of another plan."""
  if not files.exists(f"{path}.json"):
    return None
  described = json.loads(files.read_bytes(f"{path}.json"))
  return RecordFile(**described["file"]) if described["plan"] == plan else None
