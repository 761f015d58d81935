"""Two runs in one directory: real processes, one of which is refused, killed or stopped for too long."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

from albert_tf.errors import UserError
from albert_tf.training import run_lock
from albert_tf.training.run_lock import RunLock

_HOLDER = """
import sys, time
from albert_tf.training.run_lock import RunLock
from albert_tf.errors import UserError
lock = RunLock(sys.argv[1])
try:
  print("took" + lock.acquire(), flush=True)
except UserError as error:
  sys.exit(str(error))
sys.stdin.read()
lock.release()
"""


def hold(directory):
  """A process that takes the lock and keeps it until its standard input ends."""
  root = str(pathlib.Path(run_lock.__file__).parents[2])
  return subprocess.Popen(
    [sys.executable, "-c", _HOLDER, str(directory)],
    env={**os.environ, "PYTHONPATH": root},
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def content(directory):
  return json.loads((directory / "lock.json").read_text())


def test_a_live_process_is_respected_and_a_dead_one_is_not_waited_for(tmp_path):
  holder = hold(tmp_path)
  assert holder.stdout.readline() == "took\n"
  mine = RunLock(str(tmp_path))
  with pytest.raises(UserError, match=rf"process {holder.pid} on \S+ holds lock.json.*expires at \d\d:\d\d"):
    mine.acquire()
  mine.release()  # Not his: it stays.
  assert content(tmp_path)["pid"] == holder.pid
  holder.send_signal(signal.SIGKILL)
  holder.wait()
  holder.communicate()
  assert mine.acquire() == f"process {holder.pid} on {run_lock._host().split(' ')[0]}, which has ended"
  assert content(tmp_path)["pid"] == os.getpid()
  mine.release()
  assert not (tmp_path / "lock.json").exists()


def test_of_many_that_start_together_one_trains(tmp_path):
  (tmp_path / "lock.json").write_text(json.dumps(other_machine(expires=time.time() - 1)))
  holders = [hold(tmp_path) for _ in range(5)]
  ends = []
  for holder in holders:  # Those that are refused end at once; the one that holds it waits for us.
    while holder.poll() is None and content(tmp_path)["pid"] != holder.pid:
      time.sleep(0.01)
  for holder in holders:
    out, err = holder.communicate()
    ends.append((holder.returncode, out, err))
  assert sorted(code for code, _, _ in ends) == [0, 1, 1, 1, 1], ends
  assert all("One process at a time" in err for code, _, err in ends if code)
  assert next(out for code, out, _ in ends if not code).startswith(
    "tookprocess 7 on elsewhere, which has not renewed"
  )


def other_machine(**changes):
  return {
    "id": "1",
    "host": "elsewhere",
    "pid": 7,
    "process_start": "9",
    "expires": time.time() + 50,
  } | changes


def test_another_machine_is_waited_for_until_its_lock_expires(tmp_path):
  path = tmp_path / "lock.json"
  path.write_text(json.dumps(other_machine()))
  with pytest.raises(UserError, match=r"process 7 on elsewhere holds lock\.json.*in \d\d s"):
    RunLock(str(tmp_path)).refuse_others()
  path.write_text(json.dumps(other_machine(expires=time.time() - 5)))
  lock = RunLock(str(tmp_path))
  assert lock.acquire() == "process 7 on elsewhere, which has not renewed its lock for 125 s"
  lock.release()
  path.write_text("{}")
  with pytest.raises(UserError, match=r"lock\.json is damaged"):
    lock.refuse_others()


def test_a_process_number_given_again_is_another_process(tmp_path):
  again = other_machine(host=run_lock._host(), pid=os.getpid())
  (tmp_path / "lock.json").write_text(json.dumps(again))
  assert "has ended" in RunLock(str(tmp_path)).refuse_others()


def test_the_owner_renews_and_notices_that_it_lost_the_lock(tmp_path, monkeypatch):
  monkeypatch.setattr(run_lock, "_RENEWAL_SECONDS", 0.02)
  lock = RunLock(str(tmp_path))
  lock.acquire()
  first = content(tmp_path)["expires"]
  deadline = time.monotonic() + 10
  while content(tmp_path)["expires"] == first and time.monotonic() < deadline:
    time.sleep(0.01)
  assert content(tmp_path)["expires"] > first
  lock.check()
  (tmp_path / "lock.json").write_text(json.dumps(other_machine()))
  while lock._usurper is None and time.monotonic() < deadline:
    time.sleep(0.01)
  with pytest.raises(UserError, match="process 7 on elsewhere took over"):
    lock.check()
  lock.release()
  assert content(tmp_path)["pid"] == 7


def test_a_process_that_was_suspended_looks_before_it_writes(tmp_path):
  lock = RunLock(str(tmp_path))
  lock.acquire()
  lock._renewed -= 2 * run_lock.LEASE_SECONDS
  lock.check()  # Nobody came meanwhile.
  assert content(tmp_path)["expires"] > time.time() + 100
  lock._renewed -= 2 * run_lock.LEASE_SECONDS
  (tmp_path / "lock.json").write_text(json.dumps(other_machine()))
  with pytest.raises(UserError, match="process 7 on elsewhere took over"):
    lock.check()
  lock.release()


def test_in_a_bucket_the_later_of_two_writers_has_the_lock(monkeypatch):
  monkeypatch.setattr(run_lock, "_SETTLING_SECONDS", 0.3)
  locks, refused = [RunLock("ram://run_lock") for _ in range(2)], []
  both_have_read = threading.Barrier(2)
  write = RunLock._write

  def write_together(self):
    both_have_read.wait()
    write(self)

  def acquire(lock):
    try:
      lock.acquire()
    except UserError:
      refused.append(lock)

  monkeypatch.setattr(RunLock, "_write", write_together)
  threads = [threading.Thread(target=acquire, args=(lock,)) for lock in locks]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  monkeypatch.undo()
  assert len(refused) == 1
  (holder,) = set(locks) - set(refused)
  holder.refuse_others()
  holder.release()
  refused[0].acquire()
  refused[0].release()
