"""run_study.py with the real commands: a study killed in the middle of a run and continued, and what it refuses."""

import json
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from support.commands.child_processes import ending_with_this
from support.commands.script_runs import run_script
from support.goldens import SPM_MODEL

# The study's model without these fields is a laptop's.
MODEL = {
  "embedding_size": 8, "hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 32, "num_hidden_layers": 1,
}  # fmt: skip
STEPS = (
  "--num_train_steps=600 --num_warmup_steps=2 --iterations_per_loop=100 --save_checkpoints_steps=300 "
  "--train_batch_size=4 --eval_batch_size=4 --max_eval_steps=1"
)


def write_text(folder: pathlib.Path) -> str:
  sentences = [
    f"The {noun} of the {place} returns."
    for noun in ("value", "path", "name")
    for place in ("file", "sky")
  ]
  for number in range(2):
    documents = ["\n".join(sentences[i % 4 :]) for i in range(number, 40 + number)]
    (folder / f"text-{number}.txt").write_text("\n\n".join(documents) + "\n")
  return f"{folder}/text-*.txt"


def run_study(*arguments: str) -> subprocess.Popen:
  root = pathlib.Path(__file__).parents[2]
  words = ending_with_this([sys.executable, str(root / "tpu_scripts/run_study.py"), *arguments])
  return subprocess.Popen(
    words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=root
  )


@pytest.mark.slow
@pytest.mark.nightly
def test_stopped_in_the_middle_of_a_run_it_goes_on_there(tmp_path):
  arguments = [
    "--study=dropout", "--arms=with", f"--output_dir={tmp_path}/lab", f"--input={write_text(tmp_path)}", "--seeds=1",
    f"--spm_model_file={SPM_MODEL}", f"--train_flags=--albert_config_file={tmp_path}/model.json {STEPS}",
  ]  # fmt: skip
  (tmp_path / "model.json").write_text(json.dumps(MODEL))
  first = run_study(*arguments)
  reports = tmp_path / "lab/runs/with/seed-1/metrics.jsonl"
  for _ in range(2000):
    if reports.exists() or first.poll() is not None:
      break
    time.sleep(0.1)
  first.send_signal(signal.SIGTERM)  # Passed on: the run saves what it has.
  output = first.communicate(timeout=120)[0]
  assert first.returncode == 143, output
  assert "the same command continues" in output
  before = reports.read_bytes()
  assert json.loads(before.splitlines()[-1])["step"] < 600

  second = run_study(*arguments)
  output = second.communicate(timeout=200)[0]
  assert second.returncode == 0, output
  assert "\n[records" not in output
  assert [line for line in output.splitlines() if line.startswith("[")] == [
    "[pretraining/with/seed-1]"
  ]
  assert reports.read_bytes().startswith(before)
  assert json.loads(reports.read_bytes().splitlines()[-1])["step"] == 600
  assert "| with dropout, 0.1 |" in (tmp_path / "lab/table.md").read_text()
  assert (tmp_path / "lab/dropout.png").exists()
  trained = json.loads((tmp_path / "lab/runs/with/seed-1/albert_config.json").read_text())
  assert trained.items() >= {**MODEL, "hidden_dropout_prob": 0.1}.items()


def test_what_cannot_be_run_is_refused_and_nothing_is_written(tmp_path):
  output = f"--output_dir={tmp_path}/lab"
  cases = {
    "--input": ["--study=dropout", "--scale=paper", output],
    f"Received: {tmp_path}/none,": ["--study=dropout", f"--data_dir={tmp_path}/none", output],
    "--arms=half": ["--study=dropout", "--arms=half", output],
  }
  runs = run_script("run_study", list(cases.values()))
  for received, run in zip(cases, runs, strict=True):
    assert run.status == 2, run
    assert received in run.stderr
  assert not (tmp_path / "lab").exists()


def test_a_directory_of_something_else_is_refused(tmp_path):
  (tmp_path / "thesis").mkdir()
  (tmp_path / "thesis/thesis.txt").write_text("years of work")
  (tmp_path / "other").mkdir()
  (tmp_path / "other/study.json").write_text('{"study": "sizes", "scale": "laptop"}')
  commands = [
    ["--study=dropout", f"--output_dir={tmp_path}/{name}"] for name in ("thesis", "other")
  ]
  foreign, other = run_script("run_study", commands)
  assert f"Received: {tmp_path}/thesis" in foreign.stderr
  assert "study sizes → dropout" in other.stderr
