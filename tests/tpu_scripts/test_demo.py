"""The whole road, smaller: every command on what the one before it wrote."""

import pathlib
import re
import subprocess
import sys

import pytest

RECIPE = """
--size=tiny
--train_batch_size=16
--eval_batch_size=16
--num_train_steps=20
--num_warmup_steps=2
--iterations_per_loop=10
--save_checkpoints_steps=10
"""


def run_demo(repository_dir: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
  command = [sys.executable, "tpu_scripts/demo.py", *arguments]
  return subprocess.run(command, cwd=repository_dir, capture_output=True, text=True, timeout=280, check=False)


@pytest.mark.slow
@pytest.mark.nightly
def test_from_text_to_words(repository_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
  (tmp_path / "recipe.flags").write_text(RECIPE)
  work = tmp_path / "work"
  flags = ("--max_megabytes=0.4", "--vocab_size=1000", "--min_ratio=0")
  done = run_demo(repository_dir, f"--output_dir={work}", f"--recipe={tmp_path}/recipe.flags", *flags)
  assert done.returncode == 0, done.stdout + done.stderr
  titles = ["Text", "Vocabulary", "TFRecords", "Pretraining", "SavedModel", "Fill-mask"]
  assert re.findall(r"^\[\d/6\] ([\w-]+)", done.stdout, re.MULTILINE) == titles
  rows = ("masked-LM accuracy", "always the most frequent token", "sentence-order accuracy", "files written")
  for row in rows:
    assert f"\n{row} " in done.stdout
  assert done.stdout.count("  [MASK] 1: ") == 3
  for name in (
    "checkpoints",
    "metrics.jsonl",
    "curves.png",
    "albert_config.json",
    "spm.model",
    "saved_model/1",
  ):
    assert (work / "run" / name).exists(), name


def test_a_folder_of_something_else_is_left_alone(
  repository_dir: pathlib.Path, tmp_path: pathlib.Path
) -> None:
  (tmp_path / "thesis.txt").write_text("years of work")
  done = run_demo(repository_dir, f"--output_dir={tmp_path}")
  assert done.returncode == 2
  assert "Choose another --output_dir" in done.stderr
  assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_an_earlier_model_is_moved_aside_and_the_first_failure_ends_it(
  repository_dir: pathlib.Path, tmp_path: pathlib.Path
) -> None:
  work, earlier = tmp_path / "demo", tmp_path / "demo.previous"
  for folder, content in ((work, "the last"), (earlier, "the one before")):
    (folder / "run").mkdir(parents=True)
    (folder / "made_by_make_demo").touch()
    (folder / "run/model").write_text(content)
  done = run_demo(repository_dir, f"--output_dir={work}", "--max_megabytes=0.01", "--vocab_size=100000")
  assert "The earlier demo is now in" in done.stdout
  assert (earlier / "run/model").read_text() == "the last"
  assert not (work / "run").exists()
  assert done.returncode == 2
  assert "from [2/6] Vocabulary" in done.stderr
  assert "Traceback" not in done.stderr
  assert "[3/6]" not in done.stdout
