"""What tests start does not outlive them."""

import os
import pathlib
import subprocess
import sys
import time

import pytest

_PARENT = """
import subprocess, sys
from support.commands.child_processes import ending_with_this
sleeper = subprocess.Popen(ending_with_this([sys.executable, "-c", "print('there', flush=True); input()"]),
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
print(sleeper.stdout.readline().strip(), sleeper.pid, flush=True)
sys.stdin.read()
"""


def _runs(pid: int) -> bool:
  stat = pathlib.Path(f"/proc/{pid}/stat")
  try:
    return stat.read_text().rpartition(")")[2].split()[0] != "Z"  # Nobody may have taken its status.
  except (FileNotFoundError, ProcessLookupError):
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone can tie a process to its parent")
def test_a_child_of_a_killed_process_ends():
  environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parent)}
  pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
  with subprocess.Popen([sys.executable, "-c", _PARENT], **pipes) as parent:
    said, pid = parent.stdout.readline().split()
    assert said == "there"
    # The pipe to the child is held here too, through /proc: only the signal can end it.
    with open(f"/proc/{pid}/fd/0", "wb"):
      parent.kill()
      parent.wait()
      until = time.monotonic() + 30
      while _runs(int(pid)) and time.monotonic() < until:
        time.sleep(0.01)
      assert not _runs(int(pid))
