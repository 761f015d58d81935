"""Every second since the first start belongs to one category, over kills and restarts."""

import json
import signal
import time

import pytest
from support.commands.command_runs import end, start, write_inputs

from albert_tf.training.metrics_log import read_metrics
from albert_tf.training.reporting import goodput
from albert_tf.training.reporting.goodput import CATEGORIES, PREFIX, Goodput


class Clock:
  """Stands in for the module `time`."""

  def __init__(self):
    self.now = 1000.0

  def time(self):
    return self.now

  def monotonic(self):
    return self.now - 900


@pytest.fixture
def clock(monkeypatch):
  clock = Clock()
  monkeypatch.setattr(goodput, "time", clock)
  return clock


def life(path, clock, *, at_checkpoint, marks):
  """A life that begins now; every mark is (category, seconds, of them waiting for input)."""
  ledger = Goodput(str(path), began=clock.now, at_checkpoint=at_checkpoint)
  for category, seconds, waited in marks:
    clock.now += seconds
    ledger.mark(category, waited=waited)
  return ledger


def test_what_was_done_beyond_the_checkpoint_is_lost_and_the_time_between_lives_is_down(tmp_path, clock):
  path = tmp_path / "goodput.json"
  first = life(path, clock, at_checkpoint={}, marks=[("restart", 5, 0), ("compile", 7, 0), ("step", 20, 2)])
  at_checkpoint = first.fields()
  clock.now += 3
  first.mark("checkpoint")
  clock.now += 10
  first.mark("step", waited=1)
  first.write(now=True)
  clock.now += 40  # Killed after 4 more seconds that nobody knows of.
  second = life(path, clock, at_checkpoint=at_checkpoint, marks=[("restart", 6, 0), ("step", 9, 0)])
  assert second.seconds == {
    **dict.fromkeys(CATEGORIES, 0.0),
    "restart": 11, "compile": 7, "step": 18 + 9, "input": 2, "checkpoint": 3, "lost": 10, "down": 40,
  }  # fmt: skip
  assert sum(second.seconds.values()) == clock.now - 1000
  fields = second.fields()
  assert fields["goodput"] == pytest.approx(27 / 100)
  assert second.running == 60
  table = second.table().splitlines()
  assert table[0] == "0:01:40 since the first start, in 2 lives:"
  assert table[1].split()[:3] == ["down", "0:00:40", "40.0%"]


def test_the_record_is_written_now_and_then(tmp_path, clock):
  path = tmp_path / "goodput.json"
  ledger = life(path, clock, at_checkpoint={}, marks=[("step", 20, 0)])
  ledger.write()
  before = path.read_text()
  clock.now += 1
  ledger.mark("step")
  ledger.write()
  assert path.read_text() == before
  clock.now += 10
  ledger.mark("step")
  ledger.write()
  assert json.loads(path.read_text())["seconds"]["step"] == 31


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_lives_of_the_command_account_for_all_of_their_time(tmp_path):
  run = tmp_path / "run"
  flags = {
    **write_inputs(tmp_path),
    "output_dir": run,
    "train_batch_size": 8,
    "eval_batch_size": 4,
    "num_train_steps": 4000,
    "num_warmup_steps": 4,
    "iterations_per_loop": 20,
    "save_checkpoints_steps": 400,
  }
  began = time.time()
  first = start(flags)
  while not list(run.glob("checkpoints/model.ckpt-*.index")) and first.poll() is None:
    time.sleep(0.01)
  time.sleep(0.5)  # Updates beyond the checkpoint.
  first.send_signal(signal.SIGKILL)
  status, stderr = end(first)
  assert status == -signal.SIGKILL, stderr[-2000:]
  second = start(flags)
  while read_metrics(f"{run}/metrics.jsonl")[-1]["step"] < 1200 and second.poll() is None:
    time.sleep(0.05)
  second.send_signal(signal.SIGTERM)
  status, stderr = end(second)
  ended = time.time()
  assert status == 143, stderr[-2000:]
  record = json.loads((run / "goodput.json").read_text())
  assert record["lives"] == 2
  accounted = sum(record["seconds"].values())
  assert accounted == pytest.approx(record["updated"] - record["started"], abs=0.5)
  assert began < record["started"] < record["updated"] < ended  # The first import is nobody's.
  last = [report for report in read_metrics(f"{run}/metrics.jsonl") if report["split"] == "train"][-1]
  assert last["goodput"] == pytest.approx(
    last["seconds_step"] / sum(last[PREFIX + name] for name in CATEGORIES), rel=1e-3
  )
  assert 0 <= last["input_share"] < 1
  assert record["seconds"]["down"] > 0.5  # The second import.
  assert record["seconds"]["restart"] > 0.5
  assert "since the first start, in 2 lives:" in stderr
