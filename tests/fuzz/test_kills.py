"""Data creation that is killed several times at random moments leaves the files of an undisturbed command."""

import os
import shutil
import signal
import time
from typing import Any

from fuzz.fuzzing import fuzz
from hypothesis import strategies as st
import pytest
from support import tiny_corpus
from support.commands.child_processes import flags_of
from support.commands.forked_commands import ForkedCommands
from support.made_records import contents


@pytest.fixture(scope="module")
def making(tmp_path_factory: pytest.TempPathFactory) -> Any:
  """A folder, a function that starts the command, and the seconds that it takes."""
  folder = tmp_path_factory.mktemp("making")
  for number in range(3):
    tiny_corpus.write_documents(folder / f"{number}.txt", 600, seed=number)
  model = tiny_corpus.train_model(str(folder / "tiny.model"))
  flags = flags_of(f"""
    --input={folder}/*.txt --input_format=lines --spm_model_file={model} --max_seq_length=64 --dupe_factor=2
    --max_predictions_per_seq=8 --num_shards=3
  """)
  with ForkedCommands(preload="tfrecords_tools.pretraining.create") as commands:

    def start(name: str, workers: int = 1) -> Any:
      own = {"output_dir": folder / name, "num_workers": workers}
      return commands.start("tfrecords_tools/create_pretraining_data.py", **flags, **own)

    begun = time.monotonic()
    assert commands.wait(start("whole")).status == 0
    yield folder, start, commands, time.monotonic() - begun


@pytest.mark.slow
@fuzz(
  moments=st.lists(st.floats(0, 1.1), min_size=1, max_size=4), workers=st.integers(1, 2), cost=20
)
def test_killed_data_creation(making: Any, moments: list[float], workers: int) -> None:
  folder, start, commands, seconds = making
  shutil.rmtree(folder / "killed", ignore_errors=True)
  for moment in moments:
    life = start("killed", workers)
    time.sleep(moment * seconds)
    if not commands.ended(life):
      os.kill(life.pid, signal.SIGKILL)
    assert commands.wait(life).status in (0, -signal.SIGKILL), life.stderr
  last = commands.wait(start("killed", workers))
  assert last.status == 0, last.stderr
  assert contents(folder / "killed") == contents(folder / "whole")
