"""`predict.py` as a user runs it."""

import json
import os
import pathlib
import signal
import time
from typing import Any

import numpy as np
import pytest
from support import tiny_run
from support.commands.forked_commands import ForkedCommands
from support.tiny_run import WORDS

from albert_tf.keras_api.tasks import open_model

_ROWS = 40_000


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory: pytest.TempPathFactory) -> str:
  folder = tmp_path_factory.mktemp("predict")
  run = tiny_run.write_pretrained(folder / "run")
  open_model("encoder", run).export(str(folder / "saved_model/1"))
  return str(folder / "saved_model")


@pytest.fixture(scope="module")
def commands() -> Any:
  with ForkedCommands() as commands:
    yield commands


def write_table(path: pathlib.Path, count: int, *more_lines: str) -> str:
  lines = ["review"] + [" ".join(WORDS[: 1 + number % 17]) for number in range(count)]
  path.write_text("".join(line + "\n" for line in [*lines, *more_lines]))
  return str(path)


@pytest.mark.slow
def test_answers_and_what_is_printed(
  saved_model: str, commands: ForkedCommands, tmp_path: pathlib.Path
) -> None:
  write_table(tmp_path / "a.csv", 3)
  write_table(tmp_path / "b.csv", 2, '"no end')
  flags = {
    "saved_model": saved_model,
    "input": f"{tmp_path}/*.csv",
    "text_columns": "review",
    "outputs": "mean_output",
    "output": tmp_path / "new/out.jsonl",
  }
  done = commands.run("tpu_scripts/predict.py", **flags)
  assert done.status == 0, done.stderr
  assert done.stdout.startswith(f"Answered 6 rows in {tmp_path}/new/out.jsonl")
  assert "warning: 1 of the rows" in done.stderr
  assert f"{tmp_path}/b.csv:4: " in done.stderr
  rows = [json.loads(line) for line in (tmp_path / "new/out.jsonl").read_text().splitlines()]
  assert [row["id"] for row in rows] == list("012345")
  assert rows[0]["mean_output"] == rows[3]["mean_output"] != rows[1]["mean_output"]
  assert rows[5]["mean_output"] is None
  again = commands.run("tpu_scripts/predict.py", **flags)
  assert (again.status, "which is there" in again.stderr) == (2, True)


@pytest.mark.slow
def test_a_killed_run_continues_to_the_same_bytes(
  saved_model: str, commands: ForkedCommands, tmp_path: pathlib.Path
) -> None:
  flags = {
    "saved_model": saved_model,
    "input": write_table(tmp_path / "a.csv", _ROWS),
    "text_columns": "review",
    "outputs": "mean_output",
  }
  whole = commands.run("tpu_scripts/predict.py", **flags, output=tmp_path / "whole.npy")
  assert whole.status == 0, whole.stderr
  output = tmp_path / "killed.npy"
  life = commands.start("tpu_scripts/predict.py", **flags, output=output)
  # A part later than the first.
  while not (tmp_path / "killed.npy.partial/part-000005").exists():
    assert not commands.ended(life), life.stderr
    time.sleep(0.01)
  os.kill(life.pid, signal.SIGKILL)
  assert commands.wait(life).status == -signal.SIGKILL
  last = commands.run("tpu_scripts/predict.py", **flags, output=output)
  assert last.status == 0, last.stderr
  continued = last.stdout.splitlines()[0].split()
  assert continued[:2] == ["Continued", "after"]
  assert 5 * 1024 <= int(continued[2].replace(",", "")) < _ROWS
  assert output.read_bytes() == (tmp_path / "whole.npy").read_bytes()
  assert np.load(output).shape == (_ROWS, 12)
