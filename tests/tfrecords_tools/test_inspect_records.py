"""inspect_records: every kind of damage is found and named, and sound records are not blamed."""

import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from support import tiny_corpus
from support.commands.forked_commands import ROOT
from support.commands.script_runs import run_command
from support.goldens import SPM_MODEL
from support.made_records import make

from albert_tf.records import PretrainingSpec, read_records
from albert_tf.records import features as names
from albert_tf.records.parse import decode_example
from tfrecords_tools.inspection import Validator, inspect_files
from tfrecords_tools.pretraining.settings import RecordSettings

_COMMAND = "tfrecords_tools/inspect_records.py"
_CHOICES = RecordSettings(max_seq_length=64, max_predictions_per_seq=8, dupe_factor=2, num_shards=2)


def _make(directory, tokenizer, choices=_CHOICES):
  text = tiny_corpus.write_documents(directory / "text.txt", 80, seed=3)
  make([text], directory / "out", tokenizer, settings=choices)
  return directory / "out"


@pytest.fixture(scope="module")
def records(tmp_path_factory, tiny_tokenizer):
  return _make(tmp_path_factory.mktemp("records"), tiny_tokenizer)


@pytest.mark.parametrize("change", [{"sentence_pair": "none"}, {"compatibility": "original"}])
def test_our_own_records_are_valid(tmp_path, tiny_tokenizer, change):
  out = _make(tmp_path, tiny_tokenizer, dataclasses.replace(_CHOICES, **change))
  paths = list(map(str, out.glob("*.tfrecord")))
  found = inspect_files(paths, tiny_tokenizer)
  assert (len(paths), found.problems) == (3, [])


@pytest.mark.slow
def test_the_command_shows_and_validates(records):
  result = run_command(_COMMAND, "--validate", f"{records}/*.tfrecord")
  assert result.returncode == 0, result.stdout + result.stderr
  assert "valid: 3 file(s)" in result.stdout
  assert result.stdout.count("[CLS]") >= 3  # Instances are shown as text.


@pytest.mark.slow
def test_the_originals_records_are_valid(shared_dir):
  flags = ("--validate", f"--spm_model_file={SPM_MODEL}")
  result = run_command(_COMMAND, *flags, shared_dir / "oracle/golden_pretrain_strip.tfrecord")
  assert result.returncode == 0, result.stdout + result.stderr


def _first(records):
  """A record with two segments, a word of several pieces that is masked, and padding."""
  for record in read_records(str(records / "train-00000-of-00002.tfrecord")):
    features = {name: values.copy() for name, values in decode_example(record).items()}
    positions = features[names.MASKED_LM_POSITIONS]
    inside = features[names.TOKEN_BOUNDARY][positions[1:]] == 0
    if features[names.INPUT_MASK].sum() < 60 and ((np.diff(positions) == 1) & inside).any():
      return features
  raise AssertionError


def _unmask_half_a_word(features):
  positions = features[names.MASKED_LM_POSITIONS]
  used = int(features[names.MASKED_LM_WEIGHTS].sum())
  inside = (np.diff(positions) == 1) & (features[names.TOKEN_BOUNDARY][positions[1:]] == 0)
  drop = int(np.flatnonzero(inside)[0]) + 1
  features[names.INPUT_IDS][positions[drop]] = features[names.MASKED_LM_IDS][drop]
  for name in names.PREDICTION_FEATURES:
    features[name][drop : used - 1] = features[name][drop + 1 : used].copy()
    features[name][used - 1] = 0


def _set(name, index, value):
  def change(features):
    features[name][index] = value

  return change


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (_unmask_half_a_word, "a word is masked in part"),
    (lambda features: features.pop(names.TOKEN_BOUNDARY), "the features are"),
    (lambda features: features.update({names.INPUT_IDS: np.zeros(63, int)}), "'input_ids': 63"),
    (_set(names.INPUT_MASK, 3, 0), "input_mask is not ones followed by zeros"),
    (_set(names.SEGMENT_IDS, -1, 1), "segment_ids is not 0 in its padding"),
    (_set(names.SEGMENT_IDS, 1, 1), "segment_ids do not change"),
    (_set(names.INPUT_IDS, 0, 9), r"not \[CLS\]"),
    (_set(names.INPUT_IDS, 2, 999_999), "outside the vocabulary"),
    (_set(names.INPUT_IDS, 1, 3), r"3 \[SEP\] and not 2"),
    (_set(names.MASKED_LM_IDS, 0, 4), "a special token is an answer"),
    (_set(names.MASKED_LM_POSITIONS, 0, 63), "not increasing positions"),
    (_set(names.MASKED_LM_WEIGHTS, 0, 0), "masked_lm_weights is not ones"),
    (_set(names.TOKEN_BOUNDARY, 0, 0), "token_boundary is not where words start"),
    (_set(names.SENTENCE_ORDER_LABELS_FEATURE, 0, 2), "the sentence order label is 2"),
  ],
)
def test_each_wrong_instance_is_named(records, tiny_tokenizer, change, message):
  validator = Validator(tiny_tokenizer, PretrainingSpec(64, 8))
  features = _first(records)
  assert validator.problems(features) == []
  change(features)
  problems = validator.problems(features)
  assert problems
  assert any(re.search(message, problem) for problem in problems), problems


@pytest.mark.slow
def test_damaged_and_lost_files_are_named(records, tmp_path):
  shutil.copytree(records, tmp_path, dirs_exist_ok=True)
  flipped, lost = (tmp_path / f"train-0000{number}-of-00002.tfrecord" for number in (0, 1))
  raw = bytearray(flipped.read_bytes())
  raw[int.from_bytes(raw[:8], "little") + 116] ^= 4
  flipped.write_bytes(bytes(raw))
  lost.unlink()
  cut = tmp_path / "eval-00000-of-00001.tfrecord"
  cut.write_bytes(cut.read_bytes()[:-5])
  result = run_command(_COMMAND, "--validate", "--show=0", f"{tmp_path}/*.tfrecord")
  assert result.returncode == 1
  for message in (
    f"{flipped}: its CRC32C is",
    f"{flipped}: Every record of a TFRecord file must be whole. Received: {flipped}, record 1 (byte",
    f"{cut}: its CRC32C is",
    f"{lost}: it is missing",
  ):
    assert message in result.stdout
  assert "Traceback" not in result.stderr


def test_a_file_that_vanishes_is_a_problem_of_it_alone(records, tiny_tokenizer, tmp_path):
  shutil.copytree(records, tmp_path, dirs_exist_ok=True)
  lost, *others = sorted(map(str, tmp_path.glob("*.tfrecord")))
  pathlib.Path(lost).unlink()
  found = inspect_files([lost, *others], tiny_tokenizer)
  assert found.problems[0].startswith(f"{lost}: A file must be there")
  # The manifest, which lists it, says so too.
  assert found.num_problems == 2


@pytest.mark.slow
def test_mistakes_are_one_message(records, tmp_path):
  other = tiny_corpus.train_model(str(tmp_path / "other.model"), vocab_size=120)
  result = run_command(
    _COMMAND, f"--spm_model_file={other}", records / "train-00000-of-00002.tfrecord"
  )
  assert result.returncode == 2
  assert "vocab_size: records" in result.stderr
  assert run_command(_COMMAND).returncode == 2


@pytest.mark.parametrize("asks", ["instances", "help"])
def test_a_reader_that_ends_first_is_no_error(records, asks):
  words = ["--help"] if asks == "help" else [str(records / "train-00000-of-00002.tfrecord")]
  with subprocess.Popen(
    [sys.executable, ROOT / _COMMAND, *words],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
  ) as process:
    process.stdout.close()
    errors = process.stderr.read()
  assert (process.returncode, errors) == (141, b"")
