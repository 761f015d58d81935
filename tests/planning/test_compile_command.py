"""The command compile_for_tpu.py: its answers by formula, bad input, and one real compile."""

import importlib.util
import json
import pathlib
import re
import subprocess
import sys

import pytest

from albert_tf.configs import AlbertConfig
from albert_tf.planning.step_compiler import ALL_CORES, FORMULA


def run_command(repository_dir, *arguments):
  command = [sys.executable, str(repository_dir / "tpu_scripts" / "compile_for_tpu.py"), *arguments]
  return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_command_by_formula(repository_dir, tmp_path):
  recipe = repository_dir / "recipes" / "albert_xxlarge_v1.flags"
  path = tmp_path / "plan.json"
  done = run_command(
    repository_dir, f"--flagfile={recipe}", "--remat", "--topology=v3:16x16", "--estimate_only",
    f"--output_json={path}",
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  answer = json.loads(path.read_text())
  assert answer["step"]["per_core_batch_size"] == 8
  assert answer["time"]["num_train_steps"] == 1_500_000
  assert answer["step"]["remat"]
  assert answer["memory"]["source"] == FORMULA
  assert "It fits" in done.stdout
  assert "days" in done.stdout


def test_the_command_sweeps(repository_dir, tmp_path):
  path = tmp_path / "sweep.json"
  done = run_command(
    repository_dir, "--sweep", "--estimate_only", "--per_core_batch_size=8", f"--output_json={path}"
  )
  assert done.returncode == 0, done.stderr
  assert len(json.loads(path.read_text())) == 20
  assert "[20/20] xxlarge on v6e:16x16" in done.stdout
  assert "| base | v3:16x16 | 8 | yes |" in done.stdout
  done = run_command(
    repository_dir, "--sweep", "--estimate_only", "--train_batch_size=4096", "--size=base",
    "--gradient_accumulation_steps=0", "--topology=v3:2x2,v3:16x16",
  )  # fmt: skip
  assert "| base | v3:2x2 | 64 x 8 | yes |" in done.stdout
  assert "| base | v3:16x16 | 8 | yes |" in done.stdout


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["--size=base", "--topology=v3:3x3", "--per_core_batch_size=8"], "v3:16x16"),
    (["--size=base", "--topology=v9:2x2", "--per_core_batch_size=8"], "v6e:2x2"),
    (["--size=base", "--per_core_batch_size=8"], "v5p:2x2x1"),
    (["--size=huge", "--topology=v3:2x2", "--per_core_batch_size=8"], "xxlarge"),
    (["--topology=v3:2x2", "--per_core_batch_size=8"], "exactly one of --size"),
    (["--size=base", "--topology=v3:2x2", "--train_batch_size=9"], "Use 8 or 16"),
    (["--size=base", "--topology=v3:2x2", "--per_core_batch_size=0"], "at least 1"),
    (["--size=base", "--topology=v3:2x2", "--per_core_batch_size=8", "--max_seq_length=1024"], "max_position"),
    (["--size=base", "--topology=v3:2x2", "--per_core_batch_size=8", "--bach=3"], "Received: --bach=3"),
    (["--size=base", "--topology=v3:2x2", "--per_core_batch_size=8", "--compiler_python=/no/such"], "interpreter"),
    (["--size=base", "--topology=v3:2x2", "--per_core_batch_size=8", "--output_json=."], "must be a file"),
  ],
)  # fmt: skip
def test_bad_input_of_the_command(repository_dir, arguments, message):
  done = run_command(repository_dir, "--cache_dir=", *arguments)
  assert done.returncode == 2
  assert done.stderr.startswith("error: ")
  assert "Traceback" not in done.stderr
  assert message in done.stderr


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is not None, reason="libtpu is installed here")
def test_without_the_compiler_the_extra_is_named(repository_dir):
  done = run_command(repository_dir, "--size=base", "--topology=v3:2x2", "--per_core_batch_size=8")
  assert done.returncode == 2
  assert "albert-tf[tpu-compile]" in done.stderr
  assert "--estimate_only" in done.stderr


def test_recipes_have_only_flags_the_command_understands(repository_dir):
  source = (repository_dir / "tpu_scripts" / "compile_for_tpu.py").read_text()
  known = set(re.findall(r'DEFINE_\w+\(\s*"(\w+)"', source))
  known |= set(re.search(r'NOT_USED = frozenset\(\s*("[^.]*")\.split', source)[1].replace('"', " ").split())
  known.add("flagfile")
  folder = pathlib.Path(repository_dir, "recipes")
  texts = [path.read_text() for path in folder.glob("*.flags")]
  recipes = [text for text in texts if "run_pretrain.py" in text]
  recipes.append((folder / "common" / "pretraining.flags").read_text())
  assert len(recipes) >= 10
  for recipe in recipes:
    assert set(re.findall(r"^--(\w+)", recipe, re.MULTILINE)) <= known, recipe


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
    repository_dir, f"--albert_config_file={tmp_path / 'config.json'}", "--topology=v3:2x2",
    "--per_core_batch_size=2", "--max_seq_length=16", "--max_predictions_per_seq=4", "--max_compiles=1",
    f"--cache_dir={tmp_path / 'cache'}", f"--output_json={path}",
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  answer = json.loads(path.read_text())
  assert answer["fits"]
  assert answer["memory"]["source"] == answer["time"]["source"] == ALL_CORES
  time = answer["time"]
  assert time["cycles_by"] == "final schedule"
  assert 0.1 * time["estimated_cycles"] < time["cycles"] < time["estimated_cycles"]
  assert 0 < time["memory_bound_seconds"] < time["compute_seconds"]
  assert "M cycles of the final schedule; estimated before it" in done.stdout
  assert answer["compile_seconds"] > 0
  assert len(list((tmp_path / "cache").glob("*.json"))) == 1
