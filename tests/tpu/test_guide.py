"""The `gcloud` commands of docs/tpu.md, in the page's order, name existing resources and delete them at the end."""

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest
from support.tpu import gcloud

_PAGE = (pathlib.Path(__file__).parents[2] / "docs/tpu.md").read_text(encoding="utf-8")
_NOTHING = {"services": [], "buckets": {}, "objects": [], "machines": {}, "queued": {}}
_CODE = re.compile(
  r"^```bash\n(.*?)^```$|(?<!`)`(gcloud [^`\n]*\$[^`\n]*)`", re.DOTALL | re.MULTILINE
)
_SSH = "gcloud compute tpus tpu-vm ssh $TPU --zone=$ZONE"


def _script(page, *, queued):
  """Yields the page's commands: of the two ways to a machine one; blocks for another shell run in a subshell."""
  other_way = "tpu-vm create" if queued else "queued-resources create"
  for block, sentence in _CODE.findall(page):
    if other_way in block and "for attempt" not in block:
      continue
    alone = block.startswith("# In another shell")
    yield "(" if alone else ""
    for line in (block or f"{sentence}\n").replace("\\\n", " ").splitlines():
      command = line.removeprefix("tpu$ ")
      if command != line and not command.startswith("#"):
        yield f"{_SSH} --on-tpu={shlex.quote(command)}"
      elif command == line and (queued or "# if you asked for one" not in line):
        yield line
    yield ")" if alone else ""


def _follow(page, directory, *, queued, refusals):
  """Runs the page's commands with stand-ins.

  Returns the remaining resources, the seconds of each pause, and the finished process.
  """
  programs, state, pauses = directory / "bin", directory / "state.json", directory / "pauses"
  for path in (programs, directory / "records", directory / "vocabulary"):
    path.mkdir()
  for name in ("records/train-00000.tfrecord", "vocabulary/spm.model"):
    (directory / name).touch()
  stand_ins = dict.fromkeys(("python", "pip", "nproc"), "exit 0")
  stand_ins["gcloud"] = f'exec {sys.executable} -I -S {gcloud.__file__} "$@"'
  stand_ins["sleep"] = f"echo $1 >> {pauses}"
  for name, line in stand_ins.items():
    (programs / name).write_text(f"#!/bin/sh\n{line}\n")
    (programs / name).chmod(0o755)
  state.write_text(json.dumps({**_NOTHING, "preempted": False, "refusals": refusals}))
  path = os.pathsep.join([str(programs), "/usr/bin", "/bin"])
  done = subprocess.run(
    ["bash", "-euo", "pipefail", "-c", "\n".join(_script(page, queued=queued))],
    cwd=directory,
    env={"PATH": path, "GCLOUD_STATE": str(state)},
    capture_output=True,
    text=True,
    timeout=100,
  )
  return json.loads(state.read_text()), [*map(int, pauses.read_text().split())], done


@pytest.mark.parametrize("queued", [False, True])
def test_every_command_finds_what_it_names_and_nothing_is_left(tmp_path, queued):
  """The loop for spot machines waits for capacity: it pauses after each creation that failed."""
  left, pauses, done = _follow(_PAGE, tmp_path, queued=queued, refusals=2)
  assert done.returncode == 0, done.stderr
  assert left == {**_NOTHING, "services": left["services"], "preempted": True, "refusals": 0}
  assert len(pauses) == 2
  assert min(pauses) >= 60


def test_the_loop_for_spot_machines_ends_loudly(tmp_path):
  attempts = "$(seq 48)"
  assert attempts in _PAGE
  page = _PAGE.replace(attempts, "$(seq 3)")
  left, pauses, done = _follow(page, tmp_path, queued=False, refusals=10)
  assert done.returncode == 1
  assert "no machine" in done.stderr
  assert len(pauses) == 3 == 10 - left["refusals"]
