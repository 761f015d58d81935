"""Two runs in one directory: real processes, one of which is refused, killed or stopped for too long."""

import errno
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

from albert_tf import files, json_files
from albert_tf import lock as locks
from albert_tf.errors import UserError
from albert_tf.lock import DirectoryLock

_HOLDER = """
import sys
from albert_tf.errors import UserError
from albert_tf.lock import DirectoryLock
lock = DirectoryLock(sys.argv[1])
try:
  lock.acquire()
  print("took", flush=True)
except UserError as error:
  sys.exit(str(error))
sys.stdin.read()
lock.release()
"""


def hold(directory):
  """A process that takes the lock and keeps it until its standard input ends."""
  root = str(pathlib.Path(locks.__file__).parents[1])
  pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
  command = [sys.executable, "-c", _HOLDER, str(directory)]
  return subprocess.Popen(command, env=os.environ | {"PYTHONPATH": root}, text=True, **pipes)


def content(directory):
  return json.loads((directory / "lock.json").read_text())


def host_of_this_process(directory):
  """As a lock records it."""
  lock = DirectoryLock(str(directory))
  lock.acquire()
  lock.release()
  return content(directory)["host"]


def test_a_full_disk_is_told_with_the_path(tmp_path, monkeypatch):
  def full(descriptor, data):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  monkeypatch.setattr(locks.os, "write", full)
  with pytest.raises(files.StoreError, match=r"Received: .*/lock\.json: no space left "):
    DirectoryLock(str(tmp_path)).acquire()


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
  def unknown(descriptor, operation):
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

  monkeypatch.setattr(locks.fcntl, "flock", unknown)
  with pytest.raises(UserError, match=r"must have locks.*for .*/lock\.json.*--output_dir"):
    DirectoryLock(str(tmp_path)).acquire()


def test_a_live_process_is_respected_and_a_dead_one_is_not_waited_for(tmp_path):
  holder = hold(tmp_path)
  assert holder.stdout.readline() == "took\n"
  mine = DirectoryLock(str(tmp_path))
  for attempt in (mine.refuse_others, mine.acquire):
    message = rf"Received: {tmp_path}, .*process {holder.pid} on .*--output_dir"
    with pytest.raises(UserError, match=message):
      attempt()
  mine.release()  # Not his: it stays.
  assert content(tmp_path)["pid"] == holder.pid
  holder.send_signal(signal.SIGKILL)
  holder.wait()
  holder.communicate()
  mine.acquire()
  assert content(tmp_path)["pid"] == os.getpid()
  mine.check()
  mine.release()
  DirectoryLock(str(tmp_path)).acquire()


def test_of_many_that_start_together_one_trains(tmp_path):
  (tmp_path / "lock.json").write_text("a killed run's")
  holders = [hold(tmp_path) for _ in range(5)]
  while sum(holder.poll() is None for holder in holders) > 1:  # Those that are refused end at once.
    time.sleep(0.01)
  ends = [(*holder.communicate(), holder.returncode) for holder in holders]
  assert sorted(code for _, _, code in ends) == [0, 1, 1, 1, 1], ends
  assert all("One process at a time" in err for _, err, code in ends if code)


BUCKET = "ram://run_lock"


@pytest.fixture
def bucket():
  """A directory of a store, and what writes another machine's record there."""

  def write(**changes):
    record = {"id": "1", "host": "elsewhere", "pid": 7, "held": True, "expires": time.time() + 50}
    json_files.write(f"{BUCKET}/lock.json.1", record | changes)

  files.makedirs(BUCKET)
  yield write
  files.remove(BUCKET)


def test_in_a_bucket_another_machine_is_waited_for_until_its_lock_expires(bucket):
  bucket()
  lock = DirectoryLock(BUCKET)
  message = r"Received: .* process 7 on elsewhere\. .* \d\d s"
  with pytest.raises(UserError, match=message):
    lock.acquire()
  bucket(expires=time.time() - 5)
  lock.acquire()
  lock.release()


def test_in_a_bucket_the_lock_of_a_dead_process_of_this_machine_is_not_waited_for(bucket, tmp_path):
  ended = subprocess.Popen([sys.executable, "-c", ""])
  ended.wait()
  here = host_of_this_process(tmp_path)
  lock = DirectoryLock(BUCKET)
  bucket(host=here, pid=os.getppid())
  with pytest.raises(UserError, match=r"process \d+ on .* \d\d s"):
    lock.refuse_others()
  bucket(host=here, pid=ended.pid)
  lock.acquire()
  lock.release()
  assert files.listdir(BUCKET) == ["lock.json.1"]
  # Another boot of the kernel: the number tells nothing.
  name, _, namespace = here.split(" ")
  bucket(host=f"{name} another-boot {namespace}", pid=ended.pid)
  with pytest.raises(UserError, match=r"process \d+ on .* \d\d s"):
    lock.acquire()


def own_record():
  """The record of this process's lock in the bucket, beside that of another machine."""
  (name,) = set(files.listdir(BUCKET)) - {"lock.json.1"}
  return json_files.read(f"{BUCKET}/{name}")


def test_in_a_bucket_the_owner_renews_its_lock(bucket, monkeypatch):
  monkeypatch.setattr(locks, "RENEWAL_SECONDS", 0.02)
  lock = DirectoryLock(BUCKET)
  lock.acquire()
  first, deadline = own_record()["expires"], time.monotonic() + 10
  while own_record()["expires"] == first:
    assert time.monotonic() < deadline
    time.sleep(0.01)
  bucket(held=False)  # It asks, and will withdraw.
  lock.check()
  lock.release()


def test_in_a_bucket_the_owner_notices_that_it_lost_the_lock(bucket, monkeypatch):
  monkeypatch.setattr(locks, "RENEWAL_SECONDS", 0.02)
  lock = DirectoryLock(BUCKET)
  lock.acquire()
  bucket()

  def check_for_seconds():
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
      lock.check()
      time.sleep(0.01)

  with pytest.raises(UserError, match="process 7 on elsewhere"):
    check_for_seconds()
  lock.release()
  assert files.listdir(BUCKET) == ["lock.json.1"]


def test_in_a_bucket_a_process_that_was_suspended_looks_before_it_writes(bucket, monkeypatch):
  lock = DirectoryLock(BUCKET)
  lock.acquire()
  first, second = (time.time() + factor * locks.LEASE_SECONDS for factor in (2, 4))
  monkeypatch.setattr(locks.time, "time", lambda: first)
  lock.check()  # Nobody came meanwhile.
  assert own_record()["expires"] > first + 100
  bucket(expires=second + 100)
  monkeypatch.setattr(locks.time, "time", lambda: second)
  with pytest.raises(UserError, match="process 7 on elsewhere"):
    lock.check()
  lock.release()


@pytest.mark.parametrize("delays", [(0, 0, 0), (0.3, 0, 0), (0, 0.6, 0.3), (0.6, 0.6, 0)])
def test_in_a_bucket_one_of_several_has_the_lock_however_long_an_upload_takes(
  bucket, monkeypatch, delays
):
  all_have_looked, refused = threading.Barrier(3), []
  taken = [DirectoryLock(BUCKET) for _ in delays]
  write = json_files.write
  delay_of_thread = threading.local()

  def slow(path, record):
    if not record["held"]:
      all_have_looked.wait()
      time.sleep(delay_of_thread.seconds)
    write(path, record)

  def acquire(lock, seconds):
    delay_of_thread.seconds = seconds
    try:
      lock.acquire()
    except UserError as error:
      refused.append((lock, str(error)))

  monkeypatch.setattr(json_files, "write", slow)
  threads = [
    threading.Thread(target=acquire, args=pair) for pair in zip(taken, delays, strict=True)
  ]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  monkeypatch.undo()
  (holder,) = set(taken) - {lock for lock, _ in refused}
  assert all(f"Received: {BUCKET}" in message for _, message in refused)
  assert len(files.listdir(BUCKET)) == 1
  assert own_record()["held"]
  holder.release()
  refused[0][0].acquire()
  refused[0][0].release()
