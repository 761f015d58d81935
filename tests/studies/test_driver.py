"""Studies with fake commands that only write the output files: their order, and the table."""

import json
import pathlib

import pytest
from support.commands.script_runs import flag_values
from support.goldens import SPM_MODEL

from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.records.manifest import Baseline, Manifest, RecordFile
from albert_tf.studies.plan import StudyPlan
from albert_tf.studies.report import write_report

CONFIG = AlbertConfig.from_name("tiny", vocab_size=8000)


def make_plan(tmp_path, study="sentence_loss", **changes):
  values = {
    "seeds": (1, 2),
    "output_dir": str(tmp_path / "lab"),
    "spm_model_file": SPM_MODEL,
    "train_flags": "--size=tiny --num_train_steps=100 --train_batch_size=8",
    "data_flags": "--max_seq_length=32 --max_predictions_per_seq=5",
  }
  return StudyPlan(study=study, **{**values, **changes})


class Commands:
  """Runs a plan, and writes the output files of its commands."""

  def run(self, plan):
    self.finished = []
    for command in plan.commands():
      values = flag_values(command.words)
      getattr(self, pathlib.Path(command.words[0]).stem)(values)
      self.finished.append((command.name, values))
    return self

  def extract_installed_docs(self, values):
    folder = pathlib.Path(values["output_dir"])
    folder.mkdir(parents=True)
    for number in range(4):
      (folder / f"docs-0000{number}-of-00004.txt").write_text("A sentence.\n")

  def create_pretraining_data(self, values):
    folder = pathlib.Path(values["output_dir"])
    folder.mkdir(parents=True)
    split, base = (RecordFile("eval-00000", "eval", 400, 0, ""),), Baseline(5, "the", 0.06, 0.05)
    Manifest(8000, "", 32, 5, values["sentence_pair"], 1, split, base).save(str(folder))

  def run_pretrain(self, values):
    folder = pathlib.Path(values["output_dir"])
    folder.mkdir(parents=True)
    (folder / "albert_config.json").write_text(CONFIG.to_json_string())
    loss = 6.0 + 0.1 * int(values.get("seed", 1)) - ("nsp" in str(folder))
    rows, steps = [], int(values["num_train_steps"])
    order = 0.54 if "sop/seed-2" in str(folder) else 0.6  # Of 400 examples chance is 45 to 55 %.
    held_out = values["eval_input_file"].replace("*", "00000")
    settings = {"eval_input_files": [held_out], "eval_batch_size": 64, "max_eval_steps": 100}
    settings["step"] = {"global_batch_size": 8}
    (folder / "run.json").write_text(json.dumps({"settings": settings}))
    for step in (steps // 2, steps):
      common = {"step": step, "masked_lm_loss": loss - step / steps, "masked_lm_accuracy": 0.2}
      rate = 10.0 if step < steps else 40.0
      rows.append({**common, "split": "train", "examples_per_second": rate})
      rows.append({**common, "split": "eval", "sentence_order_accuracy": order})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

  def evaluate(self, values):
    folder = pathlib.Path(values["output_dir"])
    folder.mkdir(parents=True)
    chance = (0.5, 0.5)
    by_arm = {"start": chance, "none": chance, "nsp": (0.52, 0.9), "sop": (0.86, 0.79)}
    sop, nsp = by_arm[folder.parent.name]
    sets = {
      "ordered": {"masked_lm_accuracy": 0.25, "masked_lm_loss": 5.0, "num_examples": 9, "sentence_pair": "ordered"},
      "nsp": {"next_sentence_accuracy": nsp},
      "sop": {"sentence_order_accuracy": sop},
    }  # fmt: skip
    (folder / "eval.json").write_text(json.dumps({"step": 100, "checkpoint": "x", "sets": sets}))

  def write_scores(self, values):
    folder = pathlib.Path(values["output_dir"])
    folder.mkdir(parents=True)
    scores = {"accuracy": 0.6 if folder.name == "race" else 0.7}
    if "squad" in folder.name:
      scores = {"median": {"test_f1": 90.0, "test_exact": 80.0}}
    (folder / "results.json").write_text(json.dumps(scores))

  run_glue = run_squad = run_race = write_scores


def test_arms_share_documents_and_vocabulary_and_differ_in_the_pair(tmp_path):
  commands = Commands().run(make_plan(tmp_path))
  seeds = [name.split("/")[-1] for name, _ in commands.finished[4:]]
  assert seeds == ["seed-1"] * 8 + ["seed-2"] * 8
  made = [values for name, values in commands.finished if name.startswith("records")]
  assert {values.pop("sentence_pair") for values in made} == {"ordered", "nsp", "sop"}
  for values in made:
    del values["output_dir"]
  assert made[0] == made[1] == made[2]


def test_table_and_plot_of_what_was_measured(tmp_path):
  plan = make_plan(tmp_path)
  Commands().run(plan)
  text = write_report(plan)
  rows = [line for line in text.splitlines() if line.startswith(("| SOP", "| NSP"))]
  assert "| 52.0 ± 0.0 % |" in rows[0]
  assert "| 54.0 | 78.9 | 86.5 | 80.1 |" in rows[1]
  assert "| 40 ± 0 |" in rows[1]  # The first report, with the compilation, does not count.
  below = text.split("Not learned, so no result about it:\n\n")[1]
  words = "sentence order is at chance: 54.0% of 400, chance 50 ± 5.0%. Make more updates"
  assert below.startswith(f"- SOP, seed 2: {words}")
  assert below.count("\n- ") == 0
  assert (tmp_path / "lab/sentence_loss.png").read_bytes()[:4] == b"\x89PNG"


def test_hours_leave_out_the_minutes_in_which_the_machine_had_other_work(tmp_path):
  plan = make_plan(tmp_path, "recipe", arms=("start", "paper"), seeds=(1,))
  Commands().run(plan)
  # An hour for each ten updates of eight examples, but ten for the third.
  hours = {10: 1, 20: 1, 30: 10, 40: 1, 50: 1}
  reports = [
    {
      "split": "train",
      "step": step,
      "examples_per_second": 80 / (3600 * taken),
      "masked_lm_loss": 3.0,
    }
    for step, taken in hours.items()
  ]
  path = pathlib.Path(plan.seed_dir("runs", "paper", 1)) / "metrics.jsonl"
  path.write_text("".join(json.dumps(report) + "\n" for report in reports))
  [row] = [line for line in write_report(plan).splitlines() if line.startswith("| the paper's")]
  assert row.startswith("| the paper's: dropout 0.1, masks of 15 % | 50 | 0.02 | 5.00 |")


def test_the_average_is_the_papers(tmp_path):
  for name in ("squad1", "squad2", "mnli", "sst-2"):
    (tmp_path / "tasks" / name).mkdir(parents=True)
  tasks = str(tmp_path / "tasks")
  plan = make_plan(tmp_path, "dropout", arms=("with",), seeds=(1,), data_dir=tasks)
  Commands().run(plan)
  assert "average of tasks" not in write_report(plan)  # RACE is not there.
  (tmp_path / "tasks/race").mkdir()
  Commands().run_race({"output_dir": f"{plan.seed_dir('tasks', 'with', 1)}/race"})
  assert "| 74.0 |" in write_report(plan)  # (85 + 85 + 70 + 70 + 60) / 5


def test_an_arm_starts_from_the_depth_before(tmp_path):
  depth = make_plan(tmp_path / "depth", "depth", seeds=(3,))
  commands = Commands().run(depth)
  starts = {name: values.get("init_checkpoint") for name, values in commands.finished}
  assert starts["pretraining/layers_4/seed-3"] == depth.path("runs", "layers_2", "seed-3")
  assert starts["pretraining/layers_1/seed-3"] is None


def test_an_arm_needs_the_arm_that_it_starts_from(tmp_path):
  with pytest.raises(UserError, match=r"Received: --arms=layers_2\. .*layers_1"):
    make_plan(tmp_path, "depth", arms=("layers_2",)).chosen_arms()


def test_more_data_has_one_held_out_set(tmp_path):
  by_name = dict(Commands().run(make_plan(tmp_path, "more_data", seeds=(1,))).finished)
  half, whole = (by_name[f"pretraining/{arm}/seed-1"] for arm in ("half", "all"))
  assert half["eval_input_file"] == whole["eval_input_file"]
  assert half["input_file"] != whole["input_file"]
  files = [pathlib.Path(file).name for file in by_name["records/half"]["input"].split(",")]
  assert files == ["docs-00000-of-00004.txt", "docs-00001-of-00004.txt"]
  (tmp_path / "one.txt").write_text("One.\n")
  with pytest.raises(UserError, match=r"one\.txt"):
    Commands().run(make_plan(tmp_path / "b", "more_data", input=str(tmp_path / "one.txt")))
