"""Manifests of several directories are compared, checked and combined into the settings of a run."""

import dataclasses
import json
import os
import re
import shutil

import pytest

from albert_tf.errors import UserError
from albert_tf.pipelines.record_index import build_record_index
from albert_tf.pretraining.from_records import describe_records
from albert_tf.pretraining.settings import TrainingRecords
from albert_tf.records import (
  Baseline,
  Manifest,
  PretrainingSpec,
  RecordFile,
  find_manifests,
  frame_record,
)

_TRAIN = [f"train-0000{n}-of-00003" for n in range(3)]
_MANIFEST = Manifest(
  vocab_size=8000,
  vocab_sha256="ab",
  max_seq_length=128,
  max_predictions_per_seq=20,
  sentence_pair="sop",
  random_seed=1,
  files=(
    *(RecordFile(name, "train", 7, 1, "00") for name in _TRAIN),
    RecordFile("eval-0", "eval", 2, 1, "01"),
  ),
  baseline=Baseline(13, "▁the", 0.04, 0.05),
  settings={"ngram": 3, "tokenizer": {"do_lower_case": True, "sha256": "ab"}},
)


def _directory(folder, name, **changes):
  """A directory of empty record files; returns the paths of those to train on and of the held-out one."""
  manifest = dataclasses.replace(_MANIFEST, **changes)
  (folder / name).mkdir()
  for file in manifest.files:
    (folder / name / file.name).touch()
  manifest.save(str(folder / name))
  return [str(folder / name / file) for file in _TRAIN], str(folder / name / "eval-0")


def _describe(paths, eval_paths=()):
  return describe_records(
    TrainingRecords(input_file=",".join(paths), eval_input_file=",".join(eval_paths))
  )


@pytest.mark.parametrize(
  ("change", "received"),
  [
    ({"vocab_sha256": "cd"}, "vocab_sha256 'cd' in {b}, 'ab' in {a}"),
    ({"max_seq_length": 512}, "max_seq_length 512 in {b}, 128 in {a}"),
    ({"sentence_pair": "nsp"}, "sentence_pair 'nsp' in {b}, 'sop' in {a}"),
    ({"settings": {"tokenizer": {"do_lower_case": 0}}}, "do_lower_case 0 in {b}, True in {a}"),
  ],
)
def test_directories_that_contradict_each_other_are_refused(tmp_path, change, received):
  one, one_held_out = _directory(tmp_path, "a")
  other, other_held_out = _directory(tmp_path, "b", **change)
  expected = received.format(a=tmp_path / "a", b=tmp_path / "b")
  for train, held_out in (
    ([*one, *other], []),
    (one, [one_held_out, other_held_out]),
    (one, [other_held_out]),
  ):
    with pytest.raises(UserError, match=re.escape(f"Received: {expected}")):
      _describe(train, held_out)


@pytest.mark.parametrize(
  ("pair", "auto", "on"),
  [
    ("sop", "sentence_order", "sentence_order"),
    ("nsp", "next_sentence", "next_sentence"),
    ("none", "", "sentence_order"),  # As earlier versions trained them.
    ("ordered", "", "sentence_order"),
  ],
)
def test_the_sentence_loss_is_by_the_manifest_unless_told(tmp_path, pair, auto, on):
  paths, _ = _directory(tmp_path, "a", sentence_pair=pair)
  records = _describe(paths)
  assert [records.trained_sentence_task(told) for told in ("auto", "on", "off")] == [auto, on, ""]


def test_a_directory_without_a_manifest_among_others_is_refused(tmp_path):
  paths = _directory(tmp_path, "a")[0] + _directory(tmp_path, "b")[0]
  os.remove(tmp_path / "b" / "manifest.json")
  for order in (paths, paths[::-1]):
    with pytest.raises(UserError, match=f"{tmp_path}/a, .* {tmp_path}/b"):
      find_manifests(order)
  os.remove(tmp_path / "a" / "manifest.json")
  assert find_manifests(paths) == {}  # Records of the original have none anywhere.


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_missing_shards_are_an_error_and_a_part_is_read(tmp_path, scheme):
  paths = [scheme + path for path in _directory(tmp_path, "a")[0]]
  assert list(find_manifests(paths)) == list(find_manifests(paths[:2])) == [f"{scheme}{tmp_path}/a"]
  os.remove(tmp_path / "a" / "eval-0")
  find_manifests(paths)  # A held-out file is not missed where none is read.
  os.remove(tmp_path / "a" / _TRAIN[1])
  with pytest.raises(UserError, match=f"{tmp_path}/a, .* 1 .* train-00001-of-00003"):
    find_manifests([paths[0], paths[2]])


def test_a_shard_that_the_manifest_does_not_list_is_refused(tmp_path):
  """A held-out file under a training file's name would be trained."""
  paths, held_out = _directory(tmp_path, "a")
  extra = str(tmp_path / "a" / "train-00003-of-00003")
  shutil.copy(held_out, extra)
  for train, evaluated in (([*paths, extra], [held_out]), (paths, [extra])):
    with pytest.raises(UserError, match=f"Received: .*{extra}"):
      _describe(train, evaluated)
  assert _describe(paths, [held_out]).max_seq_length == 128


def test_held_out_records_are_not_trained(tmp_path):
  paths, held_out = _directory(tmp_path, "a")
  with pytest.raises(UserError, match=rf"--input_file .*{held_out}.*train-\*"):
    _describe([*paths, held_out], [held_out])


def test_fresh_masks_need_one_rule(tmp_path):
  one, _ = _directory(tmp_path, "a")
  other, _ = _directory(tmp_path, "b", settings={"ngram": 1})
  assert len(_describe(one).masking(None).ngram_probabilities) == 3
  with pytest.raises(UserError, match=rf"Received: ngram 3 in {tmp_path}/a, 1 in {tmp_path}/b"):
    _describe([*one, *other]).masking(None)


@pytest.mark.parametrize(
  ("given", "share", "predictions"),
  [(None, 0.15, 20), (0.15, 0.15, 19), (0.3, 0.3, 38)],  # Of 128 tokens.
)
def test_a_given_share_of_fresh_masks_counts_though_the_records_have_it(
  tmp_path, given, share, predictions
):
  masking = _describe(_directory(tmp_path, "a")[0]).masking(given)
  assert (masking.masked_lm_prob, masking.max_predictions_per_seq) == (share, predictions)


def test_a_manifest_is_read_back_and_compared(tmp_path):
  _directory(tmp_path, "a")
  loaded = Manifest.find(str(tmp_path / "a"))
  assert loaded == _MANIFEST
  assert (loaded.num_records("train"), loaded.spec) == (21, PretrainingSpec(128, 20))
  loaded.check(vocab_size=8000, max_seq_length=128)
  with pytest.raises(UserError, match=r"Received: vocab_size: .* 8000, .* 30000"):
    loaded.check(vocab_size=30000)
  path = tmp_path / "a" / "manifest.json"
  path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": 2}))
  with pytest.raises(UserError, match=r"manifest\.json: format_version .*Received: 2"):
    Manifest.find(str(tmp_path / "a"))
  assert Manifest.find(str(tmp_path / "none")) is None


def test_a_file_that_is_not_the_one_described_is_refused(tmp_path):
  """A copy of another file, or a file that ends after a complete record, is found only by the manifest."""
  shards = [tmp_path / name for name in _TRAIN[:2]]
  records = [frame_record(bytes([number]) * 20) for number in range(4)]
  listed = []
  for shard, count in zip(shards, (3, 4), strict=True):
    shard.write_bytes(b"".join(records[:count]))
    listed.append(RecordFile(shard.name, "train", count, shard.stat().st_size, "00"))
  dataclasses.replace(_MANIFEST, files=tuple(listed)).save(str(tmp_path))
  paths = list(map(str, shards))
  assert build_record_index(paths).num_records == 7
  for damage in (shards[0].read_bytes(), b"".join(records[:2])):
    shards[1].write_bytes(damage)
    with pytest.raises(UserError, match=rf"{_TRAIN[1]} with \d .* bytes, .* 4 in 144"):
      build_record_index(paths)
