"""Pretraining records: features, file format, manifest. Only `records.parse` needs TensorFlow."""

from albert_tf.records.encode import encode_example as encode_example
from albert_tf.records.encode import encode_packed as encode_packed
from albert_tf.records.encode import pack_varint_rows as pack_varint_rows
from albert_tf.records.features import PretrainingSpec as PretrainingSpec
from albert_tf.records.manifest import Baseline as Baseline
from albert_tf.records.manifest import Manifest as Manifest
from albert_tf.records.manifest import RecordFile as RecordFile
from albert_tf.records.manifest import find_manifests as find_manifests
from albert_tf.records.manifest import missing_files as missing_files
from albert_tf.records.shard_index import ShardIndexer as ShardIndexer
from albert_tf.records.shard_index import scan_shard as scan_shard
from albert_tf.records.tfrecord import frame_record as frame_record
from albert_tf.records.tfrecord import read_records as read_records
