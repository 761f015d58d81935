"""The demo at a small size: every command reads the output of the one before."""

import importlib
import pathlib
import re

import pytest
from support.commands.script_runs import SCRIPT_FOLDERS, run_command

RECIPE = """
--size=tiny
--train_batch_size=16
--eval_batch_size=16
--num_train_steps=20
--masked_lm_only_steps=10
--num_warmup_steps=2
--iterations_per_loop=10
--save_checkpoints_steps=10
"""


@pytest.mark.slow
@pytest.mark.nightly
def test_from_text_to_words(tmp_path: pathlib.Path, monkeypatch, capfd) -> None:
  monkeypatch.syspath_prepend(SCRIPT_FOLDERS[0])
  demo = importlib.import_module("demo")
  (tmp_path / "recipe.flags").write_text(RECIPE)
  work = tmp_path / "work"
  command = demo.Command(output_dir=str(work), max_megabytes=0.4, vocab_size=1000)
  demo.run(command, recipe=f"{tmp_path}/recipe.flags")
  output = capfd.readouterr().out
  assert re.findall(r"^\[(\d)/6\] ", output, re.MULTILINE) == list("123456")
  rows = ["masked-LM accuracy", "always the most frequent token", "sentence-order accuracy"]
  rows += ["always the more frequent label", "time in all"]
  for row in rows:
    assert f"\n| {row} | " in output
  assert output.count("  [MASK] 1: ") == 3
  assert (work / "run/curves.png").exists()


@pytest.mark.slow
def test_what_ends_it(tmp_path: pathlib.Path) -> None:
  """A folder that is not empty, and a stage that fails, end the demo."""
  (tmp_path / "thesis.txt").write_text("years of work")
  done = run_command("tpu_scripts/demo.py", f"--output_dir={tmp_path}")
  assert (done.returncode, "The output must not exist yet" in done.stderr) == (2, True)
  flags = [f"--output_dir={tmp_path}/demo", "--max_megabytes=0.01", "--vocab_size=100000"]
  done = run_command("tpu_scripts/demo.py", *flags)
  assert done.returncode == 2
  assert "from [2/6] Vocabulary" in done.stderr
  assert "Traceback" not in done.stderr
  assert "[3/6]" not in done.stdout
