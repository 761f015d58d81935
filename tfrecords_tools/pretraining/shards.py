"""Final files: written, indexed, and noted when whole."""

from collections.abc import Iterable
import dataclasses
import json
import os

import google_crc32c

from albert_tf import files
from albert_tf.records import RecordFile, ShardIndexer
from tfrecords_tools.corpus import Checksum

KEY_SPACE = 1 << 64  # Every record has a random key below it; a final file takes those of one range.


def write_shard(path: str, split: str, chunks: Iterable[bytes], *, plan: str) -> RecordFile:
  """Writes a final file, its index, and last the note by which a later run of the same plan knows that it is whole."""
  crc = 0
  indexer = ShardIndexer(path)
  with files.atomic_writer(path) as stream:
    for chunk in chunks:
      stream.write(chunk)
      indexer.feed(chunk)
      crc = google_crc32c.extend(crc, chunk)
  index = indexer.finish()
  index.save(path)
  kind, _, source = split.partition("-")
  written = RecordFile(
    os.path.basename(path), kind, index.num_records, index.num_bytes, f"{crc:08x}", source=source
  )
  with files.atomic_writer(f"{path}.json", "w") as stream:
    json.dump({"plan": plan, "file": dataclasses.asdict(written)}, stream)
  return written


def read_note(path: str, *, plan: str) -> RecordFile | None:
  """What the note of `write_shard` says; None without one, or with one of another plan."""
  if not files.exists(f"{path}.json"):
    return None
  note = json.loads(files.read_bytes(f"{path}.json"))
  return RecordFile(**note["file"]) if note.get("plan") == plan else None


def size_and_crc32c(path: str) -> tuple[int, str]:
  """Size of a file, and its CRC32C in hexadecimal."""
  checksum = Checksum()
  with files.open_binary(path) as stream:
    while checksum.add(stream.read(1 << 20)):
      pass
  return checksum.num_bytes, checksum.crc32c
