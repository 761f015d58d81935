"""SIGTERM and Control-C ask a run to save; a person is answered at once, whatever the device is doing."""

import os
import signal
import subprocess
import sys
import time

import pytest

from albert_tf.training.interruption import stop_on_signal

# A call that no signal interrupts, as one to a device.
BUSY = """
import ctypes, sys, time
from albert_tf.training.interruption import stop_on_signal
with stop_on_signal() as stop:
  print("ready", flush=True)
  end = time.monotonic() + float(sys.argv[1])
  while (left := end - time.monotonic()) > 0:
    ctypes.CDLL(None).usleep(ctypes.c_uint(int(left * 1e6)))
print("saved" if stop.received else "undisturbed", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_a_request(number, capsys):
  before = signal.getsignal(number)
  with stop_on_signal() as stop:
    assert not stop.received
    os.kill(os.getpid(), number)
    deadline = time.monotonic() + 10
    while not stop.received and time.monotonic() < deadline:
      time.sleep(0.01)
  assert stop.received
  assert signal.getsignal(number) is before
  assert f"{number.name}: saves and stops" in capsys.readouterr().err


def start(seconds):
  process = subprocess.Popen(
    [sys.executable, "-c", BUSY, str(seconds)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
  )
  assert process.stdout.readline() == "ready\n"
  return process


def test_control_c_is_answered_during_a_call_and_twice_ends_it():
  with start(60) as process:
    process.send_signal(signal.SIGINT)
    process.stderr.readline()
    assert "Control-C again ends it without saving" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130


def test_what_is_under_way_is_finished():
  with start(1.5) as process:
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30)[0] == "saved\n"
    assert process.returncode == 0
