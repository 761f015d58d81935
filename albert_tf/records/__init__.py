"""Pretraining records: features, file format, manifest. Only `records.parse` needs TensorFlow."""

from albert_tf.records.features import PretrainingSpec, RecordRules
from albert_tf.records.manifest import Baseline, Manifest, RecordFile, find_manifests, missing_files
from albert_tf.records.tfrecord import frame_record, read_records

__all__ = [
  "Baseline",
  "Manifest",
  "PretrainingSpec",
  "RecordFile",
  "RecordRules",
  "find_manifests",
  "frame_record",
  "missing_files",
  "read_records",
]
