"""Records: bytes equal protobuf's, and what is refused."""

import gzip

import numpy as np
import pytest
from support.tiny_records import encode_example

from albert_tf.errors import UserError
from albert_tf.records import PretrainingSpec, RecordRules
from albert_tf.records import features as names
from albert_tf.records.tfrecord import read_records


def _features(spec: PretrainingSpec, seed: int) -> dict[str, np.ndarray]:
  rng = np.random.default_rng(seed)
  values = {
    name: rng.integers(0, 2, spec.length(name))
    for name in names.ALL_FEATURES
    if name not in names.FLOAT_FEATURES
  }
  values[names.INPUT_IDS] = rng.integers(0, 3_000_000, spec.max_seq_length)
  values[names.MASKED_LM_IDS] = rng.integers(0, 30_000, spec.max_predictions_per_seq)
  values[names.MASKED_LM_WEIGHTS] = rng.integers(0, 2, spec.max_predictions_per_seq).astype(
    np.float32
  )
  return values


def test_bytes_equal_protobuf_and_parse_back():
  import tensorflow as tf

  from albert_tf.records.parse import parse_pretraining_batch

  spec = PretrainingSpec(max_seq_length=37, max_predictions_per_seq=5)
  rules = RecordRules(spec, vocab_size=3_000_000, type_vocab_size=2)
  all_features = [_features(spec, seed) for seed in range(3)]
  serialized = [encode_example(features) for features in all_features]
  for features, data in zip(all_features, serialized, strict=True):
    message = tf.train.Example()
    for name, values in features.items():
      kind = "float_list" if name in names.FLOAT_FEATURES else "int64_list"
      getattr(message.features.feature[name], kind).value.extend(values.tolist())
    assert data == message.SerializeToString(deterministic=True)
  batch = parse_pretraining_batch(tf.constant(serialized), rules)
  assert batch[names.SENTENCE_ORDER_LABELS].shape == (3,)
  for row, features in enumerate(all_features):
    for name in set(features) - {names.TOKEN_BOUNDARY}:
      values = features[name]
      key = names.SENTENCE_ORDER_LABELS if name == names.SENTENCE_ORDER_LABELS_FEATURE else name
      np.testing.assert_array_equal(np.ravel(batch[key][row].numpy()), values)


def test_a_compressed_file_is_named(tmp_path):
  path = tmp_path / "train.tfrecord.gz"
  path.write_bytes(gzip.compress(b"records"))
  with pytest.raises(UserError, match=rf"Received: {path}, record 0.*gzip"):
    next(read_records(str(path)))


def test_wrong_values_are_refused():
  spec = PretrainingSpec(8, 2)
  features = _features(spec, 0)
  with pytest.raises(ValueError, match="Received: -1"):
    encode_example({**features, names.INPUT_IDS: np.full(8, -1)})
  with pytest.raises(UserError, match="max_predictions_per_seq"):
    PretrainingSpec(8, 9)
