"""Problems outside the run: damaged or foreign checkpoints, vanishing files, no permission, no TPU."""

import dataclasses
import os
import pathlib
import shutil

import numpy as np
import pytest
from support.commands.command_runs import end, start, write_inputs
from support.made_records import contents
from support.tiny_pretraining import after_report, newest_values, tiny_settings, with_changes
from support.tiny_step import EAGER_INPUT, eagerly

from albert_tf.checkpoints.bundle import write_bundle
from albert_tf.errors import UserError
from albert_tf.lock import DirectoryLock
from albert_tf.pretraining.run import run_pretraining
from albert_tf.records import frame_record
from albert_tf.records.tfrecord import FOOTER_BYTES, HEADER_BYTES
from albert_tf.runs.metrics_log import read_metrics

pytestmark = pytest.mark.filterwarnings(EAGER_INPUT)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  """A folder with records and a run with checkpoints of steps 2 and 4."""
  folder = tmp_path_factory.mktemp("runs")
  steps = {"num_train_steps": 4, "num_warmup_steps": 1, "save_checkpoints_steps": 2}
  settings = tiny_settings(folder, "whole", eval_input_files=(), **steps)
  with eagerly():
    run_pretraining(settings)
  return settings


@pytest.fixture
def copied(finished, tmp_path):
  """The finished run in a folder of its own, asked to go on to step 6."""
  shutil.copytree(finished.output_dir, tmp_path / "run")
  return with_changes(finished, output_dir=str(tmp_path / "run"), num_train_steps=6)


@pytest.mark.slow
def test_a_truncated_checkpoint_is_named_and_taking_it_away_continues_from_the_one_before(copied):
  checkpoints = pathlib.Path(copied.output_dir, "checkpoints")
  data = checkpoints / "model.ckpt-4.data-00000-of-00001"
  data.write_bytes(data.read_bytes()[:-500])
  with pytest.raises(UserError, match=r"Received: .*model\.ckpt-4 "):
    run_pretraining(copied)
  for path in checkpoints.glob("model.ckpt-4.*"):
    path.unlink()
  assert run_pretraining(copied, check_only=True) is None


@pytest.mark.slow
def test_a_cut_run_json_is_replaced_by_that_of_the_same_command(copied, finished, tmp_path):
  damaged = pathlib.Path(copied.output_dir, "run.json")
  damaged.write_bytes(damaged.read_bytes()[:-20])
  with pytest.raises(UserError, match=rf"{damaged} .*Received: Untermin.*--output_dir"):
    run_pretraining(copied)
  elsewhere = with_changes(finished, output_dir=str(tmp_path / "elsewhere"), num_train_steps=1)
  with eagerly():
    run_pretraining(elsewhere)
    shutil.copy(tmp_path / "elsewhere/run.json", damaged)
    assert run_pretraining(copied).step == 6


@pytest.mark.slow
def test_without_the_line_where_it_was_cut_the_reports_go_on(copied):
  path = pathlib.Path(copied.output_dir, "metrics.jsonl")
  path.write_bytes(path.read_bytes()[:-20])
  with eagerly():
    with pytest.raises(UserError, match=rf"line 2 of {path} .*Received: Untermin"):
      run_pretraining(copied)
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    assert run_pretraining(copied).step == 6
  assert [report["step"] for report in read_metrics(str(path))] == [2, 6]


@pytest.mark.slow
def test_a_run_that_lost_its_checkpoints_does_not_begin_again(copied):
  before = contents(pathlib.Path(copied.output_dir))
  shutil.move(f"{copied.output_dir}/checkpoints", f"{copied.output_dir}/elsewhere")
  with pytest.raises(UserError, match=r"reports up to step 4 .*--output_dir"):
    run_pretraining(copied)
  shutil.move(f"{copied.output_dir}/elsewhere", f"{copied.output_dir}/checkpoints")
  assert contents(pathlib.Path(copied.output_dir)) == before


@pytest.mark.slow
def test_a_checkpoint_of_another_model_is_refused(copied, tmp_path):
  checkpoints = tmp_path / "run/checkpoints"
  values = newest_values(copied.output_dir)
  foreign = {name: value for name, value in values.items() if "pooler" not in name}
  foreign["bert/encoder/strange"] = np.zeros(3, np.float32)
  write_bundle(str(checkpoints / "model.ckpt-5"), foreign)
  with pytest.raises(UserError, match=r"model\.ckpt-5, missing: .*bert/pooler/dense/bias"):
    run_pretraining(copied)
  without_position = {k: v for k, v in values.items() if "albert_tf/" not in k}
  write_bundle(str(checkpoints / "model.ckpt-5"), without_position)
  with pytest.raises(UserError, match=r"Received: .*model\.ckpt-5"):
    run_pretraining(copied)


@pytest.mark.slow
def test_a_directory_in_use_is_refused_and_stays_as_it_is(copied, tmp_path):
  lock = DirectoryLock(copied.output_dir)
  lock.acquire()
  before = contents(tmp_path)
  with pytest.raises(UserError, match=rf"Received: .*/run, .* {os.getpid()} .*"):
    run_pretraining(copied)
  assert contents(tmp_path) == before
  lock.release()


@pytest.mark.slow
def test_a_run_whose_directory_was_taken_over_ends_at_its_next_report_and_writes_no_more(
  finished, tmp_path, monkeypatch
):
  other_owners = []

  def check(self):
    if other_owners:
      raise UserError("another process took over")

  monkeypatch.setattr(DirectoryLock, "check", check)
  taken_over = after_report(2, lambda: other_owners.append("another"))
  with taken_over, pytest.raises(UserError, match="another process took over"):
    run_pretraining(dataclasses.replace(finished, output_dir=str(tmp_path / "run")))
  assert [line["step"] for line in read_metrics(f"{tmp_path}/run/metrics.jsonl")] == [2]
  assert not (tmp_path / "run/curves.png").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
  ("harm", "split"),
  [("deleted", "train"), ("shrunk", "eval"), ("replaced", "train"), ("replaced", "eval")],
)
def test_records_that_change_during_the_run_are_named_and_putting_them_back_continues(
  finished, tmp_path, harm, split
):
  folder = pathlib.Path(finished.input_files[0]).parent
  for name in ("train-0.tfrecord", "eval-0.tfrecord"):
    shutil.copy(folder / name, tmp_path)
  records = tmp_path / f"{split}-0.tfrecord"

  def do_harm():
    if harm == "deleted":
      records.unlink()
    elif harm == "shrunk":
      records.write_bytes(records.read_bytes()[: 271 * 4])
    else:  # Sound records at other places, in a file of the same size.
      records.write_bytes(with_a_longer_record(records.read_bytes()))

  settings = dataclasses.replace(
    with_changes(finished, num_train_steps=1000),
    input_files=(str(tmp_path / "train-0.tfrecord"),),
    eval_input_files=(str(records),) if split == "eval" else (),
    output_dir=str(tmp_path / "run"),
  )
  with after_report(2, do_harm), pytest.raises(UserError, match=f"Received: {records}, "):
    run_pretraining(settings)
  shutil.copy(folder / records.name, records)
  with eagerly():
    assert run_pretraining(settings, check_only=True) is None


def with_a_longer_record(shard: bytes) -> bytes:
  """The records of a file, two in the middle now one, with an unknown field at its end."""
  size = 271  # Of a framed record.
  start = (
    len(shard) * 9 // 10 // size * size
  )  # In 70 records it is 63: one before the second block.
  record = shard[start + HEADER_BYTES : start + size - FOOTER_BYTES]
  field = b"\x7a" + bytes([(size - 3) % 128 + 128, (size - 3) // 128])  # Field 15, its length.
  longer = frame_record(record + field + bytes(size - 3))
  return shard[:start] + longer + shard[start + 2 * size :]


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
