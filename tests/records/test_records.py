"""Records: bytes equal protobuf's, damage is named, offsets and manifest are true."""

import json
import subprocess
import sys

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from albert_tf.errors import UserError
from albert_tf.records import (
  Baseline,
  Manifest,
  PretrainingSpec,
  RecordFile,
  encode_example,
  frame_record,
  pack_varint_rows,
  pack_varints,
  read_records,
  scan_shard,
)
from albert_tf.records import features as names


def _features(spec: PretrainingSpec, seed: int) -> dict[str, np.ndarray]:
  rng = np.random.default_rng(seed)
  values = {
    name: rng.integers(0, 2, spec.length(name))
    for name in names.ALL_FEATURES
    if name not in names.FLOAT_FEATURES
  }
  values[names.INPUT_IDS] = rng.integers(0, 3_000_000, spec.max_seq_length)
  values[names.MASKED_LM_IDS] = rng.integers(0, 30_000, spec.max_predictions_per_seq)
  values[names.MASKED_LM_WEIGHTS] = rng.integers(0, 2, spec.max_predictions_per_seq).astype(np.float32)
  return values


def _write(path, payloads):
  with open(path, "wb") as stream:
    for payload in payloads:
      stream.write(frame_record(payload))


def test_bytes_equal_protobuf_and_parse_back():
  import tensorflow as tf

  from albert_tf.records.parse import parse_pretraining_batch

  spec = PretrainingSpec(max_seq_length=37, max_predictions_per_seq=5)
  all_features = [_features(spec, seed) for seed in range(3)]
  serialized = [encode_example(features) for features in all_features]
  for features, data in zip(all_features, serialized, strict=True):
    message = tf.train.Example()
    for name, values in features.items():
      kind = "float_list" if name in names.FLOAT_FEATURES else "int64_list"
      getattr(message.features.feature[name], kind).value.extend(values.tolist())
    assert data == message.SerializeToString(deterministic=True)
  batch = parse_pretraining_batch(tf.constant(serialized), spec)
  assert batch[names.SENTENCE_ORDER_LABELS].shape == (3,)
  for row, features in enumerate(all_features):
    for name in set(features) - {names.TOKEN_BOUNDARY}:
      values = features[name]
      key = names.SENTENCE_ORDER_LABELS if name == names.SENTENCE_ORDER_LABELS_FEATURE else name
      np.testing.assert_array_equal(np.ravel(batch[key][row].numpy()), values)


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**31 - 1), max_size=40))
def test_packed_varints(values):
  expected = b""
  for value in values:
    while value > 127:
      expected += bytes([value & 127 | 128])
      value >>= 7
    expected += bytes([value])
  assert pack_varints(np.array(values, np.int64)) == expected


@settings(deadline=None)
@given(st.integers(0, 5), st.integers(1, 90), st.integers(1, 31), st.integers(0, 2**32))
def test_packed_rows_are_those_of_each_row(rows, columns, bits, seed):
  values = np.random.default_rng(seed).integers(0, 2**bits, (rows, columns)) >> np.arange(columns) % bits
  assert pack_varint_rows(values) == [pack_varints(row) for row in values]


def test_wrong_values_are_refused():
  spec = PretrainingSpec(8, 2)
  features = _features(spec, 0)
  with pytest.raises(ValueError, match="negative"):
    encode_example({**features, names.INPUT_IDS: np.full(8, -1)})
  with pytest.raises(UserError, match="max_predictions_per_seq"):
    PretrainingSpec(8, 9)


def test_tensorflow_reads_our_file_and_offsets_are_exact(tmp_path):
  import tensorflow as tf

  payloads = [bytes([index]) * (index * 100) for index in range(7)]  # The first is empty.
  path = str(tmp_path / "a.tfrecord")
  _write(path, payloads)
  assert [record.numpy() for record in tf.data.TFRecordDataset(path)] == payloads
  assert list(read_records(path)) == payloads


@pytest.mark.parametrize("cut", [3, 14, 130])
def test_truncated_file_names_file_and_record(tmp_path, cut):
  path = tmp_path / "a.tfrecord"
  _write(path, [b"x" * 100, b"y" * 100])
  path.write_bytes(path.read_bytes()[:-cut] if cut < 120 else path.read_bytes()[:5])
  record = 0 if cut > 120 else 1
  for read in (lambda: list(read_records(str(path))), lambda: scan_shard(str(path))):
    with pytest.raises(UserError, match=rf"a\.tfrecord, record {record} "):
      read()


def test_flipped_bit_is_found(tmp_path):
  path = tmp_path / "a.tfrecord"
  _write(path, [b"x" * 100, b"y" * 100, b"z" * 100])
  raw = bytearray(path.read_bytes())
  raw[116 + 12 + 50] ^= 1
  path.write_bytes(bytes(raw))
  with pytest.raises(UserError, match=r"record 1 \(byte 116\): the checksum of the data"):
    list(read_records(str(path)))
  raw[116] ^= 1
  path.write_bytes(bytes(raw))
  with pytest.raises(UserError, match=r"record 1 \(byte 116\): the checksum of the length"):
    scan_shard(str(path))


def test_manifest_round_trip_and_check(tmp_path):
  manifest = Manifest(
    vocab_size=8000,
    vocab_sha256="ab",
    max_seq_length=128,
    max_predictions_per_seq=20,
    sentence_pair="sop",
    random_seed=1,
    files=(RecordFile("train-0", "train", 7, 100, "00"), RecordFile("eval-0", "eval", 2, 30, "01")),
    baseline=Baseline(13, "▁the", 0.04, 0.05),
    settings={"ngram": 3},
  )
  manifest.save(str(tmp_path))
  loaded = Manifest.load(str(tmp_path))
  assert loaded == manifest
  assert loaded.num_records("train") == 7
  assert loaded.spec == PretrainingSpec(128, 20)
  loaded.check(vocab_size=8000, max_seq_length=128)
  with pytest.raises(UserError, match="vocab_size: records 8000, asked 30000"):
    loaded.check(vocab_size=30000)
  (tmp_path / "manifest.json").write_text(json.dumps({"files": []}))
  with pytest.raises(UserError, match=r"manifest\.json must be one"):
    Manifest.load(str(tmp_path))
  manifest.save(str(tmp_path))
  newer = json.loads((tmp_path / "manifest.json").read_text()) | {"format_version": 2}
  (tmp_path / "manifest.json").write_text(json.dumps(newer))
  with pytest.raises(UserError, match="format_version 2 and not 1"):
    Manifest.load(str(tmp_path))
  with pytest.raises(UserError, match="which has none"):
    Manifest.load(str(tmp_path / "none"))


def test_import_does_not_load_tensorflow():
  code = "import sys, albert_tf.records; sys.exit('tensorflow' in sys.modules)"
  assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
