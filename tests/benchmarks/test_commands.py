"""Benchmarks parse their flags, and run to their printed line with tiny sizes; those figures mean nothing."""

import ast
import csv
import dataclasses
import importlib.util
import json
import shutil
import subprocess

import pytest
from support.commands.forked_commands import ROOT
from support.commands.script_runs import run_command
from support.goldens import SPM_MODEL
from support.stacks import needs_host_xla
from support.tiny_finetuning import QUICK, made_up_texts, tiny_start, tiny_task
from support.tiny_step import EAGER_INPUT, eagerly

from albert_tf.finetuning.run import fine_tune

COMMANDS = sorted(
  path.relative_to(ROOT).as_posix()
  for path in (ROOT / "benchmarks").rglob("*.py")
  if '__name__ == "__main__"' in path.read_text(encoding="utf-8")
)
HAS_COMPILER = bool(importlib.util.find_spec("libtpu") and importlib.util.find_spec("jax"))
slow = pytest.mark.slow
nightly = pytest.mark.nightly
needs_compiler = pytest.mark.skipif(not HAS_COMPILER, reason="needs the extra tpu-compile")


def printed_line(*command):
  """The JSON line that a benchmark prints at its end."""
  done = run_command(*command)
  assert done.returncode == 0, done.stderr[-3000:]
  *_, line = done.stdout.splitlines()
  return json.loads(line)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_benchmark_describes_its_flags(command):
  done = run_command(command, "--help")
  assert done.returncode in (0, 1), done.stderr  # absl ends every help with status 1.
  docstring = ast.get_docstring(ast.parse((ROOT / command).read_text(encoding="utf-8")))
  assert "Example:" in docstring
  assert done.stdout.startswith("usage:") or docstring.splitlines()[0] in done.stdout


@slow
def test_data_creation(tmp_path):
  text = tmp_path / "text.txt"
  text.write_text("The sky is blue.\nGrass is green.\n\n" * 50, encoding="utf-8")
  flags = ("--megabytes=0.01", "--worker_megabytes=0.01", "--rounds=1", "--dupe_factor=1")
  figures = printed_line(
    "benchmarks/data_creation.py", *flags, f"--input={text}", f"--spm_model_file={SPM_MODEL}"
  )
  assert figures["ours_per_cpu_second"] > 0
  assert figures["original_restated_per_cpu_second"] > 0
  assert figures["workers_0.01_mb"]["two_workers_seconds"] > 0


@slow
def test_record_reading():
  flags = ("--random_records=8", "--batch_size=4", "--rounds=1")
  figures = printed_line("benchmarks/record_reading.py", *flags)
  assert figures["records"] == 8
  assert set(figures["examples_per_second"]) == {"plain", "ours", "training", "fresh"}


@slow
def test_train_step():
  sizes = ("--size=tiny", "--batch_size=2", "--max_seq_length=8", "--max_predictions_per_seq=2")
  figures = printed_line("benchmarks/train_step.py", *sizes, "--rounds=1", "--only=albert_tf")
  steps = figures["float32"]["steps"]
  assert set(steps) == {"floor", "albert_tf"}
  assert steps["albert_tf"]["first_loss"] > 0
  assert set(figures["float32"]["cpu_s"]["over_floor"]) == {"albert_tf"}


@pytest.mark.parametrize(
  ("script", "flag", "received"),
  [
    ("train_step", "--dtype=float16", "float16"),
    ("gpu_step", "--step=base,512", "'base,512'"),
    ("gpu_step", "--lower_only=", "TensorFlow sees none"),
  ],
)
def test_what_cannot_be_measured_is_refused(script, flag, received):
  done = run_command(f"benchmarks/{script}.py", flag)
  assert done.returncode == 2
  assert received in done.stderr


@nightly
def test_docstring_tasks(tmp_path):
  counts = printed_line("benchmarks/docstring_tasks.py", f"--output_dir={tmp_path}", "--rows=10")[
    "rows"
  ]
  for task in ("section", "package"):
    for split in ("train", "eval"):
      with open(tmp_path / task / f"{split}.csv", encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
      assert len(rows) == counts[task][split] > 0
      assert len({row["label"] for row in rows}) >= 7


@nightly
def test_scipy_sections(tmp_path):
  table = tmp_path / "sections.csv"
  rows = printed_line("benchmarks/scipy_sections.py", f"--output={table}")["rows"]
  with open(table, encoding="utf-8", newline="") as stream:
    names = [row["sections"] for row in csv.DictReader(stream)]
  assert len(names) == rows
  assert {"", "Returns,Examples"} < set(names)  # None, one or several.


@slow
@pytest.mark.filterwarnings(EAGER_INPUT)
def test_early_exit_runs(tmp_path):
  examples = made_up_texts(33, seed=6)
  task = tiny_task({"train": examples, "eval": examples})
  settings = dataclasses.replace(QUICK, num_train_steps=2)
  with eagerly():
    for folder, depths in (("section", (1, 2)), ("section.plain", ())):
      run = tmp_path / "runs" / folder / "seed_1"
      trained = dataclasses.replace(settings, train_depths=depths)
      fine_tune(task, trained, start=tiny_start(), output_dir=str(run))
  (tmp_path / "tasks/section").mkdir(parents=True)
  with open(tmp_path / "tasks/section/eval.csv", "w", encoding="utf-8", newline="") as stream:
    writer = csv.writer(stream)
    writer.writerow(("text", "label"))
    writer.writerows((example.text, example.label) for example in examples)

  figures = printed_line(
    "benchmarks/early_exit_runs.py",
    "--tasks=section",
    f"--data_dir={tmp_path / 'tasks'}",
    f"--runs_dir={tmp_path / 'runs'}",
    f"--output_dir={tmp_path / 'out'}",
    "--rounds=1",
    "--timed_texts=32",
  )["tasks"]["section"]

  results = json.loads((tmp_path / "runs/section/seed_1/results.json").read_text())
  assert figures["full depth"]["accuracies"] == [round(results["accuracy"], 4)]
  assert figures["1 layers"]["mean_layers"] == 1
  assert figures["trained at full depth"]["mean_layers"] == 2
  assert 1 <= figures["early, 2 points"]["mean_layers"] <= 2
  assert set(figures["cut to 1"]["milliseconds"]) == {"1", "8", "32"}
  assert "| full depth |" in (tmp_path / "out/early_exit.md").read_text()
  assert (tmp_path / "out/early_exit.png").stat().st_size > 0


@nightly
def test_keras_predict():
  figures = printed_line(
    "benchmarks/keras_predict.py", "--size=tiny", "--rounds=1", "--sentences=9"
  )
  for texts in ("alike", "with_one_long_text"):
    assert set(figures[texts]["texts_per_second"]) == {"by_length", "padded"}


@slow
def test_history(tmp_path):
  """The speeds of a tag beside those of the files that follow it; a benchmark that one side lacks is named."""
  benchmarks = tmp_path / "benchmarks"
  benchmarks.mkdir()
  for name in ("history.py", "measuring.py"):
    shutil.copy(ROOT / "benchmarks" / name, benchmarks)
  git = ("git", "-c", "user.name=a", "-c", "user.email=a@b.c")

  def write_benchmark(rate):
    line = json.dumps({"ours_per_cpu_second": rate})
    (benchmarks / "data_creation.py").write_text(f"print('{line}')\n")

  write_benchmark(100)
  for command in (("init", "--quiet"), ("add", "."), ("commit", "--quiet", "-m", "first")):
    subprocess.run([*git, *command], cwd=tmp_path, check=True)
  assert printed_line(benchmarks / "history.py")["release"] is None

  subprocess.run([*git, "tag", "v0.0.1"], cwd=tmp_path, check=True)
  write_benchmark(150)
  figures = printed_line(benchmarks / "history.py", "--only=data,reading", "--rounds=1")
  assert figures["release"] == "v0.0.1"
  assert figures["speeds"]["data"] == {"then": 100.0, "now": 150.0, "times_as_fast": 1.5}
  assert "record_reading.py" in figures["speeds"]["reading"]["now"]


@nightly
def test_early_exit():
  figures = printed_line("benchmarks/early_exit.py", "--size=tiny", "--rounds=1", "--tokens=8")
  half = figures["batches"]["32"]["share_of_early_rows"]["0.5"]
  assert (half["mean_layers"], half["ideal"]) == (7.0, 1.71)


@slow
@needs_host_xla
@needs_compiler
def test_tpu_bound(tmp_path):
  sizes = ("--size=tiny", "--per_core_batch_size=1", "--max_seq_length=8")
  figures = printed_line(
    "benchmarks/tpu_bound.py",
    *sizes,
    "--max_predictions_per_seq=2",
    f"--csv={tmp_path / 'instructions.csv'}",
  )["topologies"]["v3:2x2"]
  assert figures["million_cycles"] > 0
  assert figures["formula_million_cycles"] > 0
  assert "convolution" in (tmp_path / "instructions.csv").read_text()
