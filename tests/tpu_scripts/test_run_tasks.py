"""run_tasks.py: the paper's average, what is run and what is left out, and a table that is interrupted."""

import json
import pathlib
import subprocess
import sys
import time

import psutil
import pytest
from support import tiny_run
from support.commands.child_processes import ending_with_this
from support.commands.script_runs import run_script
from support.task_files import write_squad

from albert_tf.finetuning.five_tasks import TASKS, metrics_of

# ALBERT, table 2: SQuAD 1.1 and 2.0 (F1, EM), MNLI, SST-2, RACE, average.
TABLE_2 = """
90.4 83.2 80.4 77.6 84.5 92.8 68.2 82.3
92.2 85.5 85.0 82.2 86.6 93.0 73.9 85.2
89.3 82.3 80.0 77.1 81.6 90.3 64.0 80.1
90.6 83.9 82.3 79.4 83.5 91.7 68.5 82.4
92.5 86.1 86.1 83.1 86.4 92.4 74.8 85.5
94.1 88.3 88.1 85.1 88.0 95.2 82.3 88.7
"""
PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1])
import run_tasks
{body}
"""
LABELS = ("contradiction", "entailment", "neutral")


def program(repository_dir, body, *arguments):
  command = [sys.executable, "-c", PROGRAM.format(body=body), str(repository_dir / "tpu_scripts"), *arguments]
  return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_the_average_is_the_papers(repository_dir):
  rows = [list(map(float, line.split())) for line in TABLE_2.strip().splitlines()]
  body = """
averages = []
for row in json.loads(sys.argv[2]):
  values = iter(row)
  records = {name: {"metrics": {key: next(values) for key in task.metrics}} for name, task in run_tasks.TASKS.items()}
  averages.append(run_tasks.five_tasks.summary(records, {})["average"])
print(json.dumps(averages))
"""
  averages = program(repository_dir, body, json.dumps(rows))
  assert averages == pytest.approx([row[-1] for row in rows], abs=0.0501)  # As far as it is printed.


def test_of_several_seeds_the_median_counts(tmp_path):
  results = {"accuracy": 0.9, "median": {"accuracy": 0.7}, "seeds": {}}
  (tmp_path / "results.json").write_text(json.dumps(results))
  assert metrics_of(TASKS["mnli"], str(tmp_path)) == {"accuracy": pytest.approx(70)}


def test_flags_given_win_over_the_recipe_and_a_length_goes_where_it_is_known(repository_dir):
  body = """
run_tasks.flags.FLAGS(["run_tasks", *sys.argv[2:]])
print(json.dumps({name: run_tasks.training_flags(task) for name, task in run_tasks.TASKS.items()}))
"""
  own = ("--data_dir=a", "--output_dir=b", "--init_checkpoint=c")
  plain = program(repository_dir, body, *own)
  assert plain["mnli"][-1] == "--noexport"
  assert "--num_train_steps=10000" in plain["mnli"]
  given = program(
    repository_dir,
    body,
    *own,
    "--num_train_epochs=2",
    "--max_query_length=8",
    "--seeds=1,2",
    "--max_seq_length=32",
  )
  for name, values in given.items():
    read = dict(value.lstrip("-").split("=", 1) for value in values if "=" in value)  # The last one counts.
    assert (read["num_train_steps"], read["num_warmup_steps"], read["num_train_epochs"]) == (
      "0",
      "-1",
      "2.0",
    ), name
    assert (read["seeds"], read["max_seq_length"]) == ("1,2", "32")
    assert ("max_query_length" in read) == name.startswith("squad")
    assert "data_dir" not in read


def test_every_task_has_a_command_that_its_script_takes(repository_dir):
  body = """
run_tasks.flags.FLAGS(["run_tasks", *sys.argv[2:]])
print(json.dumps([run_tasks.command_line(task, "folder", "out") for task in run_tasks.TASKS.values()]))
"""
  lines = program(
    repository_dir,
    body,
    "--data_dir=a",
    "--output_dir=b",
    "--init_checkpoint=c",
    "--tpu=local",
    "--max_seq_length=64",
  )
  for line in (lines[1], *lines[3:]):  # SQuAD 1.1's and MNLI's differ from these in values alone.
    done = subprocess.run(
      [sys.executable, *line, "--only_check_args"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """A tiny pretrained run, and two of the five tasks under the names that they are distributed with."""
  path = tmp_path_factory.mktemp("tasks")
  tokenizer = tiny_run.train_tokenizer(path)
  tiny_run.write_run(path / "run", tiny_run.tiny_model(tokenizer.vocab_size), tokenizer)
  data = path / "data"  # Without SQuAD 1.1, SST-2 and RACE.
  (data / "squad2").mkdir(parents=True)
  write_squad(data / "squad2/train-v2.0.json", articles=8)
  write_squad(data / "squad2/dev-v2.0.json", seed=1)
  (data / "MNLI").mkdir()
  rows = [f"the sky\t{'blue grass' if i % 2 else 'small birds'}\t{LABELS[i % 3]}" for i in range(24)]
  for name in ("train", "dev_matched"):
    (data / f"MNLI/{name}.tsv").write_text("\n".join(["sentence1\tsentence2\tgold_label", *rows]) + "\n")
  return path


def flags_for(folder, output, *more):
  return [
    f"--init_checkpoint={folder}/run", f"--data_dir={folder}/data", f"--output_dir={folder}/{output}", *more,
  ]  # fmt: skip


def test_mistakes_are_said_before_anything_is_run(folder):
  (folder / "half/squad1").mkdir(parents=True)
  (folder / "half/squad1/train-v1.1.json").touch()
  elsewhere = [f"--init_checkpoint={folder}/run", f"--output_dir={folder}/x"]
  wrong = {
    "Received: cola": flags_for(folder, "x", "--tasks=mnli,cola"),
    "with none of them": [*elsewhere, f"--data_dir={folder}"],
    "without dev-v1.1.json": [*elsewhere, f"--data_dir={folder}/half"],
    "which holds none": [f"--init_checkpoint={folder}/data", *flags_for(folder, "x")[1:]],
  }
  for message, run in zip(wrong, run_script("run_tasks", list(wrong.values())), strict=True):
    assert (run.status, message in run.stderr) == (2, True), (message, run)
  assert not (folder / "x").exists()


def test_sigterm_ends_the_command_that_runs_too(repository_dir, tmp_path):
  script, pid = tmp_path / "child.py", tmp_path / "pid"
  script.write_text(f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(60)")
  body = f"""
from absl import flags
run_tasks.five_tasks.choose_folders = lambda *_: ({{"mnli": "folder"}}, {{}})
run_tasks.five_tasks.weights_digest = run_tasks.five_tasks.data_digest = lambda *_: ""
run_tasks.command_line = lambda *_: [{str(script)!r}]
flags.FLAGS(["run_tasks", "--data_dir=a", "--output_dir={tmp_path}/out", "--init_checkpoint=c"])
sys.exit(run_tasks.main(["run_tasks"]))
"""
  command = [sys.executable, "-c", PROGRAM.format(body=body), str(repository_dir / "tpu_scripts")]
  parent = subprocess.Popen(ending_with_this(command), stderr=subprocess.PIPE, text=True)
  deadline = time.monotonic() + 30
  while not (pid.exists() and pid.read_text()):
    assert parent.poll() is None
    assert time.monotonic() < deadline
    time.sleep(0.05)
  child = psutil.Process(int(pid.read_text()))
  parent.terminate()
  said = parent.communicate(timeout=30)[1]
  running = child.is_running() and child.status() != psutil.STATUS_ZOMBIE
  if running:
    child.kill()
  assert (running, parent.returncode) == (False, 143)
  assert "the same command continues" in said


QUICK = (
  "--max_seq_length=32", "--max_query_length=8", "--max_qa_length=10", "--num_train_steps=2", "--train_batch_size=8",
  "--seeds=1", "--noprogress", "--distribution=one_device",
)  # fmt: skip


@pytest.mark.slow
def test_a_table_is_made_goes_on_and_stays_one_table(folder):
  command = [sys.executable, str(pathlib.Path(__file__).parents[2] / "tpu_scripts/run_tasks.py"), *QUICK]

  def run(*more, status=0):
    done = subprocess.run(
      [*command, *flags_for(folder, "table", *more)], capture_output=True, text=True, check=False
    )
    assert done.returncode == status, (done.stdout, done.stderr)
    return done

  # Killed, or as here ended by a mistake, between two tasks: no table yet, and nothing is lost.
  dev = folder / "data/squad2/dev-v2.0.json"
  kept = dev.read_text()
  dev.write_text(kept[:300])
  assert "status 2 from squad2" in run("--tasks=squad2", status=2).stderr
  dev.write_text(kept)
  assert not (folder / "table/tasks.json").exists()
  run("--tasks=mnli")
  first = json.loads((folder / "table/tasks.json").read_text())
  (folder / "table/tasks.json").unlink()
  weights = (folder / "table/mnli/results.json").stat().st_mtime_ns
  out = run().stdout
  results = json.loads((folder / "table/tasks.json").read_text())
  assert (folder / "table/mnli/results.json").stat().st_mtime_ns == weights  # Not done again.
  assert "[2/2] mnli: finished earlier" in out
  assert results["left_out"].keys() == {"squad1", "sst-2", "race"}
  assert list(results["scores"]) == results["average_of"] == ["squad2", "mnli"]
  assert results["scores"]["mnli"] == first["scores"]["mnli"]
  squad = json.loads((folder / "table/squad2/results.json").read_text())
  assert results["scores"]["squad2"] == pytest.approx((squad["f1"] + squad["exact"]) / 2)
  mnli = json.loads((folder / "table/mnli/results.json").read_text())
  assert results["scores"]["mnli"] == pytest.approx(100 * mnli["accuracy"])
  assert results["average"] == pytest.approx(sum(results["scores"].values()) / 2)
  assert f"average of 2 tasks: {results['average']:.1f}" in out

  assert "other flags" in run("--learning_rate=0.1", status=2).stderr
  (folder / "run/checkpoints/model.ckpt-20.index").write_bytes(b"The run has gone on.")
  assert "other weights" in run(status=2).stderr
