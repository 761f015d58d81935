"""Pretraining records: names, shapes, bytes, manifest. `records.parse` alone needs TensorFlow."""

from albert_tf.records.encode import encode_example, encode_packed, pack_varint_rows, pack_varints
from albert_tf.records.features import PretrainingSpec
from albert_tf.records.manifest import Baseline, Manifest, RecordFile, find_manifests, missing_files
from albert_tf.records.shard_index import ShardIndex, ShardIndexer, scan_shard
from albert_tf.records.tfrecord import frame_record, masked_crc32c, read_records

__all__ = [
  "Baseline",
  "Manifest",
  "PretrainingSpec",
  "RecordFile",
  "ShardIndex",
  "ShardIndexer",
  "encode_example",
  "encode_packed",
  "find_manifests",
  "frame_record",
  "masked_crc32c",
  "missing_files",
  "pack_varint_rows",
  "pack_varints",
  "read_records",
  "scan_shard",
]
