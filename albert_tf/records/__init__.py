"""Pretraining records: names and shapes, writing, reading, manifest. Parsing (TensorFlow) is in `records.parse`."""

from albert_tf.records.encode import encode_example
from albert_tf.records.encode import encode_packed
from albert_tf.records.encode import pack_varints
from albert_tf.records.features import PretrainingSpec
from albert_tf.records.manifest import Baseline
from albert_tf.records.manifest import Manifest
from albert_tf.records.manifest import RecordFile
from albert_tf.records.manifest import find_manifest
from albert_tf.records.tfrecord import TFRecordWriter
from albert_tf.records.tfrecord import frame_record
from albert_tf.records.tfrecord import masked_crc32c
from albert_tf.records.tfrecord import read_records
from albert_tf.records.tfrecord import scan_record_offsets

__all__ = [
  "Baseline",
  "Manifest",
  "PretrainingSpec",
  "RecordFile",
  "TFRecordWriter",
  "encode_example",
  "encode_packed",
  "find_manifest",
  "frame_record",
  "masked_crc32c",
  "pack_varints",
  "read_records",
  "scan_record_offsets",
]
