"""All steps from text to answers give the same bytes in a bucket, with failing requests, kills and lost credentials."""

import os
import pathlib
import random
import shutil
import signal
import time

import pytest
from support.bucket.gcs_proxy import Faults
from support.bucket.story import (
  comparable,
  pretraining,
  run_to_its_end,
  steps,
  write_inputs,
)
from support.commands.forked_commands import ForkedCommands
from support.made_records import contents

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

KILLS = 10
LONG = {
  "num_train_steps": 24
}  # Of the run that is killed: were each life to save once, there is still something to do.


@pytest.fixture(scope="module")
def local(tmp_path_factory):
  """The same steps in a folder, with the run that is killed in the bucket."""
  folder = tmp_path_factory.mktemp("local") / "story"
  write_inputs(folder)
  shutil.copytree(folder, folder.parent / "inputs")

  def place(name: str) -> str:
    return str(folder / name)

  with ForkedCommands() as commands:
    for step in steps(place, folder.parent / "work").values():
      run_to_its_end(commands, step, starts=1)
    run_to_its_end(commands, pretraining(place, output_dir=place("killed"), **LONG), starts=1)
  return folder


@pytest.fixture(scope="module")
def expected(local):
  return comparable(contents(local))


def below(contents, folder):
  return {name: value for name, value in contents.items() if name.startswith(f"{folder}/")}


def equal(found, wanted):
  """Asserts that files are equal, and names those that differ."""
  assert sorted(found) == sorted(wanted)
  assert [name for name in wanted if found[name] != wanted[name]] == []


def test_the_story_in_a_bucket(bucket, commands, local, expected, tmp_path):
  bucket.put_folder(local.parent / "inputs", "story")
  bucket.faults = Faults(rate=0.02, seed=5)
  answers = None
  for name, step in steps(lambda name: bucket.url(f"story/{name}"), tmp_path / "work").items():
    done, said = run_to_its_end(commands, step, starts=5)
    # Where the client itself gives up on a fault, the command says what failed, and the next one goes on.
    assert all(message.splitlines()[-1].startswith("error: ") for message in said), (
      f"{name}: {said}"
    )
    answers = done.stdout
  assert "[MASK] 1:" in answers
  bucket.faults = Faults()
  found = comparable(bucket.snapshot("story"))
  equal(found, {name: value for name, value in expected.items() if not name.startswith("killed/")})
  assert any("checkpoints/model.ckpt-6.data" in name for name in found)
  assert any("fill_mask/1/variables/variables.data" in name for name in found)
  counts = bucket.proxy.counts()
  print(dict(sorted(counts.items())))
  assert sum(count for name, count in counts.items() if name.startswith("fault:")) >= 10
  assert (
    "bucket" not in counts
  )  # To ask for the bucket itself needs more than the right to its objects.


class Killer:
  """Kills processes of a run, in turn at a random moment and during the upload of a checkpoint."""

  def __init__(self, bucket, commands):
    self._bucket, self._commands = bucket, commands
    self._random = random.Random(11)
    self._until_an_upload = 4.0  # Seconds; learned from the lives that reach one.
    self.made = self.in_uploads = 0

  def _uploads(self) -> int:
    return sum(
      exchange.kind == "upload_start" and "/checkpoints/model.ckpt" in exchange.object
      for exchange in self._bucket.proxy.exchanges
    )

  def live(self, step) -> bool:
    """Runs one process; returns whether it finished."""
    life = self._commands.start(step.script, **step.flags)
    begin, before = time.monotonic(), self._uploads()
    in_upload = self.made % 2 == 1
    moment = self._random.uniform(0.0, 1.2) * self._until_an_upload
    while not (self._uploads() > before if in_upload else time.monotonic() - begin > moment):
      if self._commands.ended(life):
        # A fault that the client gave up on ends a life too.
        assert life.status == 0 or life.stderr.splitlines()[-1].startswith("error: "), life.stderr[
          -3000:
        ]
        return life.status == 0
      time.sleep(0.002)
    if in_upload:
      self._until_an_upload = time.monotonic() - begin
      time.sleep(self._random.uniform(0.0, 0.05))
    os.kill(life.pid, signal.SIGKILL)
    self._commands.wait(life)
    self.made += 1
    self.in_uploads += in_upload
    return False


def put_records(bucket, local: pathlib.Path) -> None:
  bucket.put_folder(local / "records", "records")
  bucket.put("albert_config.json", (local / "albert_config.json").read_bytes())


@pytest.mark.timeout(600)  # Eleven lives.
def test_ten_kills(bucket, commands, local, expected):
  put_records(bucket, local)
  bucket.faults = Faults(rate=0.02, seed=6)
  step = pretraining(bucket.url, output_dir=bucket.url("killed"), **LONG)
  killer = Killer(bucket, commands)
  while killer.made < KILLS:
    assert not killer.live(step), f"the run ended after {killer.made} kills"
  run_to_its_end(commands, step, starts=5)
  print({"kills": killer.made, "in uploads": killer.in_uploads, **bucket.proxy.counts()})
  bucket.faults = Faults()
  found = {f"killed/{name}": value for name, value in comparable(bucket.snapshot("killed")).items()}
  equal(found, below(expected, "killed"))


def test_a_token_that_expires_in_the_middle(bucket, commands, local, expected):
  put_records(bucket, local)
  step = pretraining(bucket.url, output_dir=bucket.url("expired"))
  life = commands.start(step.script, **step.flags)
  while not bucket.names("expired/checkpoints/model.ckpt-2.index"):
    assert not commands.ended(life), life.stderr[-3000:]
    time.sleep(0.01)
  bucket.faults = Faults(refuse=(("", 401),))
  commands.wait(life)
  assert life.status == 2, life.stderr[-3000:]
  assert "the credentials are missing or have expired (HTTP 401)" in life.stderr.splitlines()[-1]
  assert "Traceback" not in life.stderr
  bucket.faults = Faults()
  run_to_its_end(commands, step, starts=1)
  found = {f"run/{name}": value for name, value in comparable(bucket.snapshot("expired")).items()}
  equal(found, below(expected, "run"))
