"""All steps from text to answers give the same bytes in a bucket, with failing requests, kills and lost credentials."""

import pathlib
import re
import shutil
import signal
import time

import pytest
from support.bucket.gcs_proxy import Faults
from support.bucket.story import comparable, pretraining, run_to_its_end, steps, write_inputs
from support.commands.forked_commands import ForkedCommands
from support.commands.kills import Killer
from support.made_records import contents

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

KILLS = 10
# Of the run that is killed: were each life to save once, there is still something to do.
LONG = {"num_train_steps": 24}


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
  for name, step in steps(lambda name: bucket.url(f"story/{name}"), tmp_path / "work").items():
    done, said = run_to_its_end(commands, step, starts=5)
    # Where the client itself gives up on a fault, the command says what failed, and the next one goes on.
    assert all(message.splitlines()[-1].startswith("error: ") for message in said), (
      f"{name}: {said}"
    )
  assert "[MASK] 1:" in done.stdout
  bucket.faults = Faults()
  found = comparable(bucket.snapshot("story"))
  equal(found, {name: value for name, value in expected.items() if not name.startswith("killed/")})
  assert any("checkpoints/model.ckpt-6.data" in name for name in found)
  assert any("fill_mask/1/variables/variables.data" in name for name in found)
  counts = bucket.proxy.counts()
  print(dict(sorted(counts.items())))
  assert sum(count for name, count in counts.items() if name.startswith("fault:")) >= 10
  # To ask for the bucket itself needs more than the right to its objects.
  assert "bucket" not in counts


def put_records(bucket, local: pathlib.Path) -> None:
  bucket.put_folder(local / "records", "records")
  bucket.put("albert_config.json", (local / "albert_config.json").read_bytes())


@pytest.mark.timeout(600)  # Eleven lives.
def test_ten_kills(bucket, commands, local, expected):
  put_records(bucket, local)
  bucket.faults = Faults(rate=0.02, seed=6)
  step = pretraining(bucket.url, output_dir=bucket.url("killed"), **LONG)

  def uploads():
    """Of checkpoints."""
    kinds = [f"{exchange.kind} {exchange.object}" for exchange in [*bucket.proxy.exchanges]]
    return {
      number for number, kind in enumerate(kinds) if re.match("upload_start .*/model.ckpt", kind)
    }

  killer = Killer(11, uploads, until_a_write=4.0, into_a_write=0.05)
  while killer.made < KILLS:
    life = commands.start(step.script, **step.flags)
    killer.kill(life.pid, lambda life=life: commands.ended(life))
    # A fault that the client gave up on ends a life too.
    gave_up = commands.wait(life).status == 2 and life.stderr.splitlines()[-1].startswith("error: ")
    assert gave_up or life.status == -signal.SIGKILL, (life.status, life.stderr[-3000:])
  run_to_its_end(commands, step, starts=5)
  print({"kills": killer.made, "of lives with uploads": killer.in_writes, **bucket.proxy.counts()})
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
