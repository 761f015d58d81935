"""Commands side by side: the one that failed is named, not the one that was ended because of it."""

import json
import subprocess
import sys

PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1] + "/tpu_scripts")
from child_commands import run_children
import tempfile
saves_first = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)); time.sleep(60)"
fails = "import sys, time; time.sleep(1); print('why'); sys.exit(3)"
with tempfile.TemporaryFile() as output:
  found = run_children([["-c", saves_first], ["-c", fails]], quiet=[output])
  output.seek(0)
  print(json.dumps([*found, output.read().decode(), *run_children([["-c", ""], ["-c", ""]], quiet=[output])]))
"""


def test_what_failed_is_told_from_what_was_ended(repository_dir):
  words = [sys.executable, "-c", PROGRAM, str(repository_dir)]
  done = subprocess.run(words, capture_output=True, text=True, timeout=50, check=True)
  assert json.loads(done.stdout) == [1, 3, "why\n", 0, 0]
