"""Pretraining records: features, file format, manifest. Only `records.parse` needs TensorFlow."""

from albert_tf.records.encode import encode_example, encode_packed, pack_varint_rows
from albert_tf.records.features import PretrainingSpec
from albert_tf.records.manifest import Baseline, Manifest, RecordFile, find_manifests, missing_files
from albert_tf.records.shard_index import ShardIndexer, scan_shard
from albert_tf.records.tfrecord import frame_record, read_records

__all__ = [
  "Baseline",
  "Manifest",
  "PretrainingSpec",
  "RecordFile",
  "ShardIndexer",
  "encode_example",
  "encode_packed",
  "find_manifests",
  "frame_record",
  "missing_files",
  "pack_varint_rows",
  "read_records",
  "scan_shard",
]
