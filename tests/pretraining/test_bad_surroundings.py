"""Problems outside the run: damaged or foreign checkpoints, vanishing files, no permission, no TPU."""

import dataclasses
import json
import os
import pathlib
import shutil

import numpy as np
import pytest
from support.commands.command_runs import end, start, write_inputs
from support.made_records import contents
from support.tiny_pretraining import tiny_settings
from support.tiny_records import random_examples, write_records

from albert_tf.checkpoints.bundle import read_bundle, write_bundle
from albert_tf.errors import UserError
from albert_tf.lock import DirectoryLock
from albert_tf.pretraining.reporter import Reporter
from albert_tf.pretraining.run import run_pretraining


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  """A folder with records and a run with checkpoints of steps 4, 8 and 12."""
  folder = tmp_path_factory.mktemp("runs")
  settings = tiny_settings(folder, "whole", eval_input_files=())
  run_pretraining(settings)
  return settings


@pytest.fixture
def copied(finished, tmp_path):
  """The finished run in a folder of its own, asked to go on to step 14."""
  shutil.copytree(finished.output_dir, tmp_path / "run")
  optimizer = dataclasses.replace(finished.optimizer, num_train_steps=14)
  return dataclasses.replace(finished, output_dir=str(tmp_path / "run"), optimizer=optimizer)


@pytest.mark.slow
def test_a_truncated_checkpoint_is_named_and_taking_it_away_continues_from_the_one_before(copied):
  checkpoints = pathlib.Path(copied.output_dir, "checkpoints")
  data = checkpoints / "model.ckpt-12.data-00000-of-00001"
  data.write_bytes(data.read_bytes()[:-500])
  with pytest.raises(
    UserError,
    match=r"undamaged.*model\.ckpt-12 .*Remove these files to continue from the checkpoint before",
  ):
    run_pretraining(copied)
  for path in checkpoints.glob("model.ckpt-12.*"):
    path.unlink()
  assert run_pretraining(copied, check_only=True) is None


def test_a_checkpoint_of_another_model_is_refused(copied, tmp_path):
  checkpoints = tmp_path / "run/checkpoints"
  values = read_bundle(str(checkpoints / "model.ckpt-12"))
  foreign = {name: value for name, value in values.items() if "pooler" not in name}
  foreign["bert/encoder/strange"] = np.zeros(3, np.float32)
  write_bundle(str(checkpoints / "model.ckpt-13"), foreign)
  with pytest.raises(UserError, match=r"model\.ckpt-13, missing: .*bert/pooler/dense/bias"):
    run_pretraining(copied)
  write_bundle(
    str(checkpoints / "model.ckpt-13"), {k: v for k, v in values.items() if "albert_tf/" not in k}
  )
  with pytest.raises(UserError, match=r"position in the data.*ckpt-13, which no run has written"):
    run_pretraining(copied)


def test_a_directory_in_use_is_refused_and_stays_as_it_is(copied, tmp_path):
  lock = DirectoryLock(copied.output_dir)
  lock.acquire()
  before = contents(tmp_path)
  with pytest.raises(
    UserError, match=rf"run, where lock\.json is held by process {os.getpid()} on"
  ):
    run_pretraining(copied)
  assert contents(tmp_path) == before
  lock.release()


def test_a_run_whose_directory_was_taken_over_ends_at_its_next_report_and_writes_no_more(
  finished, tmp_path, monkeypatch
):
  report, taken_over = Reporter.train, []

  def taken_over_at_2(self, step, *args, **kwargs):
    report(self, step, *args, **kwargs)
    taken_over.append(step)

  def check(self):
    if taken_over:
      raise UserError("another process took over")

  monkeypatch.setattr(Reporter, "train", taken_over_at_2)
  monkeypatch.setattr(DirectoryLock, "check", check)
  with pytest.raises(UserError, match="another process took over"):
    run_pretraining(dataclasses.replace(finished, output_dir=str(tmp_path / "run")))
  lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
  assert [json.loads(line)["step"] for line in lines] == taken_over == [2]
  assert not (tmp_path / "run/curves.png").exists()


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["deleted", "shrunk"])
def test_records_that_vanish_or_shrink_during_the_run_are_named(
  finished, tmp_path, monkeypatch, harm
):
  records = tmp_path / "train-0.tfrecord"
  shutil.copy(finished.input_files[0], records)
  optimizer = dataclasses.replace(finished.optimizer, num_train_steps=1000)
  settings = dataclasses.replace(
    finished, input_files=(str(records),), output_dir=str(tmp_path / "run"), optimizer=optimizer
  )
  report = Reporter.train

  def harmed_at_2(self, step, *args, **kwargs):
    report(self, step, *args, **kwargs)
    if step == 2:
      records.unlink() if harm == "deleted" else write_records(records, random_examples(40, seed=1))

  monkeypatch.setattr(Reporter, "train", harmed_at_2)
  with pytest.raises(UserError, match="The same command continues from the last checkpoint"):
    run_pretraining(settings)


@pytest.mark.slow
def test_the_command_says_so_with_status_2_and_writes_nothing(tmp_path):
  flags = {**write_inputs(tmp_path), "output_dir": tmp_path / "run", "train_batch_size": 8}
  status, stderr = end(start({**flags, "tpu": "local"}))
  assert status == 2, stderr[-2000:]
  assert "--tpu=local" in stderr
  assert "\nerror: " in "\n" + stderr  # addons: tensorflow_hub warns before it.
  assert "Traceback" not in stderr
  assert end(start({**flags, "dry_run": True}))[0] == 0
  assert not (tmp_path / "run").exists()
