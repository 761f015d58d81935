"""Commands killed at any moments, again and again: what they leave is what an undisturbed one leaves."""

import os
import pathlib
import shutil
import signal
import time
from typing import Any

from hypothesis import strategies as st
import numpy as np
import pytest
from support import tiny_corpus
from support.commands.command_runs import write_inputs
from support.commands.forked_commands import ForkedCommands
from support.fuzzing import fuzz
from support.made_records import contents

from albert_tf.checkpoints.bundle import latest_checkpoint, read_bundle

pytestmark = pytest.mark.nightly
MOMENTS = st.lists(st.floats(0, 1.1), min_size=1, max_size=4)  # Parts of an undisturbed command's time.


def run_with_kills(
  commands: ForkedCommands, moments: list[float], seconds: float, script: str, **flags: Any
) -> None:
  """Each life is ended at its moment by a signal that nothing can catch; the last one comes to its end."""
  for moment in moments:
    life = commands.start(script, **flags)
    time.sleep(moment * seconds)
    if not commands.ended(life):
      os.kill(life.pid, signal.SIGKILL)
    assert commands.wait(life).status in (0, -signal.SIGKILL), life.stderr
  last = commands.run(script, **flags)
  assert last.status == 0, last.stderr


def timed(commands: ForkedCommands, script: str, **flags: Any) -> float:
  started = time.monotonic()
  done = commands.run(script, **flags)
  assert done.status == 0, done.stderr
  return time.monotonic() - started


@pytest.fixture(scope="module")
def making(tmp_path_factory: pytest.TempPathFactory) -> Any:
  folder = tmp_path_factory.mktemp("making")
  model = tiny_corpus.train_model(str(folder / "tiny.model"))
  for number in range(3):
    documents = tiny_corpus.documents(np.random.default_rng(number), 600)
    (folder / f"{number}.txt").write_text(tiny_corpus.as_text(documents), encoding="utf-8")
  flags = {"input": f"{folder}/*.txt", "input_format": "lines", "spm_model_file": model, "max_seq_length": 64}
  flags |= {"max_predictions_per_seq": 8, "dupe_factor": 2, "num_shards": 3, "eval_fraction": 0.1}
  script = "tfrecords_tools/create_pretraining_data.py"
  with ForkedCommands(
    preload="numpy,sentencepiece,google_crc32c,tfrecords_tools.pretraining.create"
  ) as commands:
    seconds = timed(commands, script, output_dir=folder / "whole", **flags)
    yield folder, lambda moments, **more: run_with_kills(commands, moments, seconds, script, **flags, **more)


@fuzz(moments=MOMENTS, workers=st.integers(1, 2), cost=20)
def test_data_creation(making: Any, moments: list[float], workers: int) -> None:
  folder, run = making
  shutil.rmtree(folder / "killed", ignore_errors=True)
  run(moments, output_dir=folder / "killed", num_workers=workers)
  assert contents(folder / "killed") == contents(folder / "whole")


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Any:
  folder = tmp_path_factory.mktemp("training")
  flags = {**write_inputs(folder, hidden_dropout_prob=0.1), "train_batch_size": 8, "num_train_steps": 40}
  flags |= {
    "num_warmup_steps": 2,
    "save_checkpoints_steps": 3,
    "iterations_per_loop": 1,
    "eval_batch_size": 4,
  }
  script = "tpu_scripts/run_pretrain.py"
  with ForkedCommands() as commands:
    seconds = timed(commands, script, output_dir=folder / "whole", **flags)
    yield folder, lambda moments, **more: run_with_kills(commands, moments, seconds, script, **flags, **more)


@fuzz(moments=MOMENTS, cost=100)
def test_pretraining(training: Any, moments: list[float]) -> None:
  folder, run = training
  shutil.rmtree(folder / "killed", ignore_errors=True)
  run(moments, output_dir=folder / "killed")
  whole, killed = (
    read_bundle(latest_checkpoint(str(folder / name / "checkpoints"))) for name in ("whole", "killed")
  )
  assert whole.keys() == killed.keys()
  for name, value in whole.items():
    np.testing.assert_array_equal(value, killed[name], err_msg=name)
  assert not [path for path in pathlib.Path(folder / "killed").rglob("*") if ".tmp-" in path.name]
