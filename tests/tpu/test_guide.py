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

_PAGE = pathlib.Path(__file__).parents[2] / "docs/tpu.md"
_NOTHING = {
  "services": [],
  "buckets": {},
  "objects": [],
  "machines": {},
  "queued": {},
  "preempted": False,
  "refusals": 0,
}
_CODE = re.compile(
  r"^```bash\n(.*?)^```$|(?<!`)`(gcloud [^`\n]*\$[^`\n]*)`", re.DOTALL | re.MULTILINE
)
_SSH = "gcloud compute tpus tpu-vm ssh $TPU --zone=$ZONE"


def _script(page, *, queued):
  """Yields the page's commands: of the two ways to a machine one; blocks for another shell run in a subshell."""
  for block, sentence in _CODE.findall(page):
    if (
      "for attempt" not in block
      and ("tpu-vm create" if queued else "queued-resources create") in block
    ):
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


def _follow(page, directory, *, queued=False, refusals=0):
  """Runs the page's commands with stand-ins; returns the remaining resources and the finished process."""
  programs, state = directory / "bin", directory / "state.json"
  for path in (programs, directory / "records", directory / "vocabulary"):
    path.mkdir()
  for name in ("records/train-00000.tfrecord", "vocabulary/spm.model"):
    (directory / name).touch()
  for name, line in {
    "gcloud": f'exec {sys.executable} -I -S {gcloud.__file__} "$@"',
    **dict.fromkeys(("python", "pip", "nproc"), "exit 0"),
    "sleep": f"echo $1 >> {directory}/pauses",
  }.items():
    (programs / name).write_text(f"#!/bin/sh\n{line}\n")
    (programs / name).chmod(0o755)
  state.write_text(json.dumps(_NOTHING | {"refusals": refusals}))
  environment = {
    "PATH": f"{programs}{os.pathsep}/usr/bin{os.pathsep}/bin",
    "GCLOUD_STATE": str(state),
  }
  done = subprocess.run(
    ["bash", "-euo", "pipefail", "-c", "\n".join(_script(page, queued=queued))],
    cwd=directory,
    env=environment,
    capture_output=True,
    text=True,
    timeout=100,
  )
  return json.loads(state.read_text()), done


@pytest.mark.parametrize("queued", [False, True])
def test_every_command_finds_what_it_names_and_nothing_is_left(tmp_path, queued):
  left, done = _follow(_PAGE.read_text(encoding="utf-8"), tmp_path, queued=queued)
  assert done.returncode == 0, done.stderr
  assert left == _NOTHING | {"services": left["services"], "preempted": True}


@pytest.mark.parametrize(("refusals", "status"), [(5, 0), (1000, 1)])
def test_the_loop_for_spot_machines_waits_for_capacity_and_ends_loudly(tmp_path, refusals, status):
  left, done = _follow(_PAGE.read_text(encoding="utf-8"), tmp_path, refusals=refusals)
  assert done.returncode == status
  pauses = (tmp_path / "pauses").read_text().split()
  assert len(pauses) == refusals - left["refusals"]  # One after each creation that failed.
  assert min(map(int, pauses)) >= 60
  assert ("no machine" in done.stderr) == bool(status)
