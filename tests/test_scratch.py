"""What a killed upload leaves below TMPDIR is removed by the next process that needs room there."""

import os
import pathlib
import subprocess
import sys

from albert_tf import files

_KILLED = """
import os, signal
from albert_tf.files import scratch_folder
with scratch_folder() as folder:
  open(f"{folder}/model.ckpt-5", "w").close()
  os.utime(folder, (0, 0))
  os.kill(os.getpid(), signal.SIGKILL)
"""
_NEXT = "from albert_tf.files import scratch_folder\nwith scratch_folder(): pass"


def test_the_next_process_removes_what_a_killed_one_left_and_nothing_else(tmp_path, monkeypatch):
  root = str(pathlib.Path(files.__file__).parents[1])
  environment = {**os.environ, "PYTHONPATH": root, "TMPDIR": str(tmp_path)}
  monkeypatch.setattr(files.tempfile, "tempdir", str(tmp_path))
  (tmp_path / "albert_tf-notes").write_text("mine")
  assert subprocess.run([sys.executable, "-c", _KILLED], env=environment, timeout=60).returncode == -9
  (left,) = [path for path in tmp_path.iterdir() if path.is_dir()]
  files._remove_abandoned.cache_clear()
  with files.scratch_folder() as mine:
    os.utime(mine, (0, 0))
    assert not left.exists()
    subprocess.run([sys.executable, "-c", _NEXT], env=environment, timeout=60, check=True)
    assert os.path.isdir(mine)  # In use, however old it is.
  assert [path.name for path in tmp_path.iterdir()] == ["albert_tf-notes"]
