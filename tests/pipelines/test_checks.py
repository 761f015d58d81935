"""A damaged or missing record file is named, with the byte, from what TensorFlow's reader says."""

import pathlib

import pytest
from support.tiny_records import SPEC, random_examples, write_records
import tensorflow as tf

from albert_tf.pipelines.batches import training_batches
from albert_tf.pipelines.checks import find_fault
from albert_tf.pipelines.record_index import build_record_index
from albert_tf.records.parse import parse_pretraining_batch


@pytest.mark.parametrize("byte", [271 * 70 + 2, 271 * 70 + 60], ids=["length", "data"])
def test_damage_is_found_at_its_byte_in_its_file(tmp_path, byte):
  paths = [write_records(tmp_path / f"t-{n}", random_examples(100, seed=n)) for n in range(3)]
  index = build_record_index(paths)
  data = bytearray(pathlib.Path(paths[1]).read_bytes())
  data[byte] ^= 0xFF
  pathlib.Path(paths[1]).write_bytes(bytes(data))
  batches = training_batches(
    index, lambda records: parse_pretraining_batch(records, SPEC), seed=1, global_batch_size=100
  )
  with pytest.raises(tf.errors.OpError) as caught:
    list(batches.take(3))
  found = find_fault(paths, caught.value.message)
  assert "damaged one at byte" in found
  assert "t-1." in found
  pathlib.Path(paths[2]).unlink()
  assert "t-2, which is gone" in find_fault(paths, "")
