"""compile_for_tpu.py: its answers by formula, bad input, one real compile; and the range of times."""

import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest
from support.commands.script_runs import run_script

from albert_tf.configs import AlbertConfig
from albert_tf.planning import plan
from albert_tf.planning.chips import parse_topology
from albert_tf.planning.estimate import StepShape
from albert_tf.planning.flops import training_flops_per_example
from albert_tf.planning.tpu_compiler import CompiledStep

BASE, V3 = AlbertConfig.from_name("base"), parse_topology("v3:2x2")
SHAPE = StepShape(per_core_batch_size=8)
BATCH = ["--size=base", "--topology=v3:2x2", "--per_core_batch_size=8"]


def run_command(repository_dir, *arguments):
  command = [sys.executable, "tpu_scripts/compile_for_tpu.py", *arguments]
  return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=repository_dir)


def test_a_time_is_a_bound_and_a_range():
  """The range is what published runs reach of the chips' peak, and never below the bound."""
  time = plan.plan_run(BASE, SHAPE, V3, usd_per_chip_hour=2.0, num_train_steps=1000)["time"]
  flops = 8 * training_flops_per_example(BASE, max_seq_length=512, max_predictions_per_seq=20)
  assert time["step_seconds_likely"] == pytest.approx([flops / 61.5e12 / 0.65, flops / 61.5e12 / 0.43])
  assert time["step_seconds_at_least"] < time["step_seconds_likely"][0]
  assert time["hours_likely"][1] == pytest.approx(1000 * time["step_seconds_likely"][1] / 3600)
  assert time["usd_likely"][1] == pytest.approx(2 * 4 * time["hours_likely"][1])
  slow = plan.plan_run(BASE, SHAPE, parse_topology("v6e:1x1"))[
    "time"
  ]  # Its schedules are below 65 % of the peak.
  assert slow["step_seconds_likely"][0] == slow["step_seconds_at_least"]


def test_whether_it_fits_is_the_compilers_word():
  compiled = CompiledStep(fits=False, required_bytes=17 << 30, missing_bytes=2 << 30)
  answer = plan.plan_run(BASE, SHAPE, V3, compiled=compiled)
  assert (answer["fits"], answer["memory"]["by"], answer["time"]) == (False, "compiler", None)
  assert "It does NOT fit: 17.00 GiB of 15.48 GiB a core" in plan.describe(answer)
  assert "It fits: 1.00 GiB of 15.48 GiB a core [compiler]" in plan.describe(
    plan.plan_run(BASE, SHAPE, V3, compiled=CompiledStep(fits=True, required_bytes=1 << 30))
  )


def test_what_fits_instead(repository_dir, tmp_path):
  large = ["--flagfile=recipes/albert_base_v1.flags", "--topology=v3:2x2", "--estimate_only"]
  done = run_command(repository_dir, *large)
  assert done.returncode == 0, done.stderr
  assert "It does NOT fit: 79.51 GiB ± 16% of 15.48 GiB a core" in done.stdout
  assert "with --gradient_accumulation_steps=8: 10.14 GiB, fits" in done.stdout
  path = tmp_path / "plan.json"
  done = run_command(repository_dir, *large, "--gradient_accumulation_steps=0", f"--output_json={path}")
  answer = json.loads(path.read_text())
  assert answer["step"]["gradient_accumulation_steps"] == 8
  assert answer["fits"]
  assert "125,000 steps: at least" in done.stdout


def test_every_recipe_is_understood(repository_dir):
  paths = pathlib.Path(repository_dir, "recipes").glob("*.flags")
  recipes = [path for path in paths if "run_pretrain.py" in path.read_text()]
  assert len(recipes) >= 10
  path = next(path for path in recipes if path.name == "albert_xxlarge_v1.flags")
  done = run_command(
    repository_dir, f"--flagfile={path}", "--remat", "--topology=v3:16x16", "--estimate_only"
  )
  assert "1,500,000 steps" in done.stdout
  runs = run_script("compile_for_tpu", [[f"--flagfile={path}", "--only_check_args"] for path in recipes])
  for path, run in zip(recipes, runs, strict=True):
    assert run.status == 0, (path, run)


def test_bad_input():
  cases = {
    "v3:16x16": ["--size=base", "--topology=v3:3x3", "--per_core_batch_size=8"],
    "v6e:2x2": ["--size=base", "--topology=v9:2x2", "--per_core_batch_size=8"],
    "--size": ["--topology=v3:2x2", "--per_core_batch_size=8"],
    "Use 8 or 16": ["--size=base", "--topology=v3:2x2", "--train_batch_size=9"],
    "at least 1": ["--size=base", "--topology=v3:2x2", "--per_core_batch_size=0"],
    "max_position": [*BATCH, "--max_seq_length=1024"],
    "must be a file": [*BATCH, "--output_json=."],
  }
  runs = run_script("compile_for_tpu", [["--estimate_only", *arguments] for arguments in cases.values()])
  for message, run in zip(cases, runs, strict=True):
    assert (run.status, message in run.stderr) == (2, True), run


@pytest.mark.slow
@pytest.mark.skipif(
  importlib.util.find_spec("libtpu") is None or importlib.util.find_spec("jax") is None,
  reason="needs jax and libtpu: the extra tpu-compile",
)
def test_a_real_compile(repository_dir, tmp_path):
  config = AlbertConfig(vocab_size=96, embedding_size=16, hidden_size=32, num_hidden_layers=2,
                        num_attention_heads=2, intermediate_size=64, max_position_embeddings=32)  # fmt: skip
  (tmp_path / "config.json").write_text(config.to_json_string())
  path = tmp_path / "plan.json"
  done = run_command(
    repository_dir, f"--albert_config_file={tmp_path / 'config.json'}", "--topology=v3:2x2", "--per_core_batch_size=2",
    "--max_seq_length=16", "--max_predictions_per_seq=4", f"--output_json={path}",
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  answer = json.loads(path.read_text())
  assert answer["fits"]
  assert answer["memory"]["by"] == "compiler"
  assert answer["compile_seconds"] > 0
