"""A study with commands that only leave what the real ones leave: order and table."""

import pathlib

import pytest
from support.study_commands import Commands, make_plan

from albert_tf.errors import UserError
from albert_tf.studies.report import write_report


def test_seeds_one_after_the_other(tmp_path):
  names = [command.name for command in make_plan(tmp_path).commands()]
  assert len(names) == 1 + 3 + 2 * 4 * 2
  assert [name.split("/")[-1] for name in names[4:]] == ["seed-1"] * 8 + ["seed-2"] * 8


def test_arms_share_documents_and_vocabulary_and_differ_in_the_pair(tmp_path):
  commands = Commands().run(make_plan(tmp_path))
  made = [values for name, values in commands.finished if name.startswith("records")]
  assert {each["sentence_pair"] for each in made} == {"ordered", "nsp", "sop"}
  same = [
    {name: value for name, value in each.items() if name not in ("sentence_pair", "output_dir")}
    for each in made
  ]
  assert same[0] == same[1] == same[2]


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


def test_the_average_is_the_papers(tmp_path):
  for name in ("squad1", "squad2", "mnli", "sst-2"):
    (tmp_path / "tasks" / name).mkdir(parents=True)
  plan = make_plan(tmp_path, "dropout", arms=("with",), seeds=(1,), data_dir=str(tmp_path / "tasks"))
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


def test_more_data_has_one_held_out_set(tmp_path):
  by_name = dict(Commands().run(make_plan(tmp_path, "more_data", seeds=(1,))).finished)
  half, whole = (by_name[f"pretraining/{arm}/seed-1"] for arm in ("half", "all"))
  assert half["eval_input_file"] == whole["eval_input_file"]
  assert half["input_file"] != whole["input_file"]
  assert [pathlib.Path(file).name for file in by_name["records/half"]["input"].split(",")] == [
    "docs-00000-of-00004.txt",
    "docs-00001-of-00004.txt",
  ]
  (tmp_path / "one.txt").write_text("One.\n")
  with pytest.raises(UserError, match="at least two text files"):
    Commands().run(make_plan(tmp_path / "b", "more_data", input=str(tmp_path / "one.txt")))
