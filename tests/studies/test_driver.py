"""The loop of a study with commands that only leave what the real ones leave: order, resumption, tables, refusals."""

import csv
import json

import pytest
from support.study_commands import Commands, make_plan, run

from albert_tf.errors import UserError
from albert_tf.studies.catalogue import find_study
from albert_tf.studies.driver import check_directory
from albert_tf.studies.memory import check_memory
from albert_tf.studies.report import write_curves, write_report
from albert_tf.studies.study import flag_values


def test_killed_at_every_command_no_stage_is_done_twice(tmp_path):
  plan = make_plan(tmp_path)
  finished = []
  for _ in range(50):
    commands = Commands(die_at=2)  # One command a life.
    try:
      run(plan, commands)
    except KeyboardInterrupt:
      finished += commands.finished
    else:
      finished += commands.finished
      break
  titles = [title for title, _ in finished]
  assert titles == [stage.name for stage in plan.stages()]  # In order, each once.
  assert len(titles) == 1 + 3 + 2 * 4 * 2
  run(plan, Commands(die_at=1))  # Nothing is left.
  run(make_plan(tmp_path, seeds=(1, 2, 3)), more := Commands())
  assert [title.split("/")[-1] for title, _ in more.finished] == ["seed-3"] * 8


def test_side_by_side_no_command_runs_before_what_it_takes(tmp_path):
  run(make_plan(tmp_path), commands := Commands(), at_once=2)
  assert [len(each) for each in commands.rounds] == [1] * 4 + [2] * 8
  seen = set()
  for titles in commands.rounds:
    runs = {title.replace("probe/", "pretraining/") for title in titles if title.startswith("probe/")}
    assert runs <= seen
    seen |= set(titles)

  arms = find_study("depth").arms_at("laptop")
  plan = make_plan(tmp_path / "depth", "depth", arms=arms, seeds=(1, 2))
  run(plan, commands := Commands(), at_once=4)
  trained = [titles for titles in commands.rounds if titles[0].startswith("pretraining/")]
  # Of each seed one depth at a time, as each starts from the one before.
  assert [[title.split("/")[1] for title in titles] for titles in trained] == [[arm.name] * 2 for arm in arms]


def test_arms_share_documents_and_vocabulary_and_differ_in_the_pair(tmp_path):
  run(make_plan(tmp_path), commands := Commands())
  made = [flag_values(command) for title, command in commands.finished if title.startswith("records")]
  assert {each["sentence_pair"] for each in made} == {"ordered", "nsp", "sop"}
  same = [
    {name: value for name, value in each.items() if name not in ("sentence_pair", "output_dir")}
    for each in made
  ]
  assert same[0] == same[1] == same[2]


def test_table_and_plot_of_what_was_measured(tmp_path):
  plan, said = make_plan(tmp_path), []
  run(plan, Commands(), said)
  text = write_report(plan)
  rows = [line for line in text.splitlines() if line.startswith(("| SOP", "| NSP"))]
  assert "| 52.0 ± 0.0 % |" in rows[0]
  assert "| 54.0 | 78.9 | 86.5 | 80.1 |" in rows[1]
  assert "| 40 ± 0 |" in rows[1]  # The first report, with the compilation, does not count.
  assert "Left out: scores of tasks, as --data_dir names no folder of them." in text
  table = json.loads((tmp_path / "lab/table.json").read_text())
  figure = table["rows"][3]["figures"]["masked_lm_loss"]
  assert figure["values"] == pytest.approx([5.1, 5.2])
  assert figure["standard_deviation"] == pytest.approx(0.0707, abs=1e-3)
  lines = list(csv.DictReader((tmp_path / "lab/table.csv").read_text().splitlines()))
  assert float(lines[2]["sentence_order_accuracy@sop"]) == pytest.approx(0.52)
  assert lines[2]["paper SOP"] == "52.0"
  assert (tmp_path / "lab/sentence_loss.png").read_bytes()[:4] == b"\x89PNG"
  assert "commands left: 0:00:0" in said[-1]
  assert "pretraining" in said[0]


def test_tasks_that_have_no_folder_are_named(tmp_path):
  plan = make_plan(tmp_path, data_dir=str(tmp_path), seeds=(1,))
  run(plan, Commands())
  text = write_report(plan)
  assert "| 70.0 |" in text
  assert "Left out: race, no folder." in text


def test_an_arm_starts_from_the_depth_before_and_another_takes_the_same_time(tmp_path):
  depth = make_plan(tmp_path / "depth", "depth", seeds=(3,))
  run(depth, commands := Commands())
  starts = {title: flag_values(command).get("init_checkpoint") for title, command in commands.finished}
  assert starts["pretraining/layers_4/seed-3"] == depth.path("runs", "layers_2", "seed-3")
  assert starts["pretraining/layers_1/seed-3"] is None
  paper = make_plan(tmp_path / "paper", scale="paper", arms=find_study("sentence_loss").arms_at("paper"))
  trained = [flag_values(stage.command) for stage in paper.stages() if stage.kind == "pretraining"]
  assert not any("init_checkpoint" in values for values in trained)  # The common start is a laptop's.

  timed = make_plan(tmp_path / "time", "equal_time", seeds=(1,))
  run(timed, commands := Commands())
  values = flag_values(commands.finished[-1][1])
  # One hour of updates and half an hour beside them, 40 examples a second, 8 examples an update.
  assert (values["max_train_hours"], values["num_train_steps"]) == ("1.500000", str(3600 * 40 // 8))
  assert [title for title, _ in commands.finished if title.startswith("speed")] == ["speed/xxlarge/turn-0"]
  assert "eval_input_file" not in flag_values(commands.finished[1][1])
  assert not (tmp_path / "time/lab/speed/xxlarge/turn-0/checkpoints").exists()
  text = write_report(timed)
  assert "| 34 |" in text


def test_more_data_has_one_held_out_set(tmp_path):
  run(make_plan(tmp_path, "more_data", seeds=(1,)), commands := Commands())
  by_title = {title: flag_values(command) for title, command in commands.finished}
  half, whole = (by_title[f"pretraining/{arm}/seed-1"] for arm in ("half", "all"))
  assert half["eval_input_file"] == whole["eval_input_file"]
  assert half["input_file"] != whole["input_file"]
  assert by_title["records/half"]["input"].endswith("docs-0000[01]-of-00004.txt")
  (tmp_path / "one.txt").write_text("One.\n")
  with pytest.raises(UserError, match="there must be two"):
    run(make_plan(tmp_path / "b", "more_data", input=str(tmp_path / "one.txt")), Commands())


def test_sizes_are_timed_beside_bert_large(tmp_path):
  plan = make_plan(tmp_path, "sizes", seeds=(1,))
  run(plan, commands := Commands())
  timed = [title for title, _ in commands.finished if title.startswith("speed")]
  assert [title.split("/")[1] for title in timed[:6]] == [arm.name for arm in plan.arms]  # In turns.
  assert len(timed) == 12
  sizes = {flag_values(command)["size"] for title, command in commands.finished if title.startswith("speed")}
  assert "xxlarge_v1" in sizes
  text = write_report(plan)
  headings, *rows = (
    [cell.strip() for cell in line.split("|")] for line in text.splitlines() if line[:1] == "|"
  )
  base = dict(zip(headings, next(row for row in rows if row[1] == "ALBERT base"), strict=True))
  assert (base["speed, measured"], base["speed, TPU v3"], base["paper: speed"]) == (
    "1.00 ± 0.00",
    "2.00",
    "5.6",
  )


def test_sizes_are_timed_with_a_batch_that_the_devices_take(tmp_path):
  trained = ("--size=base_v1", "--train_batch_size=4096", "--gradient_accumulation_steps=8")
  found = {}
  for scale in ("laptop", "paper"):
    plan = make_plan(tmp_path, "sizes", scale=scale, train_flags=trained)
    values = [flag_values(stage.command) for stage in plan.stages() if stage.kind == "speed"]
    found[scale] = {(each["train_batch_size"], each["gradient_accumulation_steps"]) for each in values}
  assert found == {"laptop": {("2", "1")}, "paper": {("4096", "8")}}


def test_of_two_models_for_all_arms_the_later_one_counts(tmp_path):
  recipe = "--albert_config_file=recipes/studies/laptop_albert_config.json"
  for given in ((recipe, "--size=tiny"), ("--size=base", recipe), ("--size=base",)):
    plan = make_plan(tmp_path, "dropout", train_flags=given)
    named = [flag for flag in plan.training_flags(plan.arms[0]) if flag.startswith(("--size", "--albert"))]
    assert named == [given[-1]]
  sizes = make_plan(tmp_path, "sizes", train_flags=(recipe,))
  assert "--size=bert_base" in sizes.training_flags(sizes.arms[0], "paper")
  assert recipe not in sizes.training_flags(sizes.arms[0], "paper")


def test_a_directory_of_something_else(tmp_path):
  run(make_plan(tmp_path, seeds=(1,)), Commands())
  for change, told in (
    ({"study": "dropout"}, "study sentence_loss → dropout"),
    ({"scale": "paper"}, "scale laptop → paper"),
    ({"input": "other.txt"}, "text .*installed documentation.* → other.txt"),
    ({"train_flags": ("--size=tiny", "--num_train_steps=7")}, "--num_train_steps=7"),
  ):
    with pytest.raises(UserError, match=told):
      check_directory(make_plan(tmp_path, **change))
  foreign = tmp_path / "foreign/lab"
  foreign.mkdir(parents=True)
  (foreign / "thesis.txt").write_text("years of work")
  with pytest.raises(UserError, match=r"holds thesis\.txt and no study\.json"):
    check_directory(make_plan(tmp_path / "foreign"))


def test_records_of_another_vocabulary(tmp_path):
  with pytest.raises(UserError, match="SHA-256 begins with abcdef"):
    run(make_plan(tmp_path), commands := Commands(vocab_sha256="abcdef"))
  assert not [title for title, _ in commands.finished if title.startswith("pretraining")]


def test_a_scale_that_does_not_fit_is_refused_before_the_first_arm(tmp_path):
  plan = make_plan(tmp_path, "sizes", train_flags=("--train_batch_size=4096",), scale="paper")
  with pytest.raises(UserError, match=r"23\.0 GiB free, .*bert_large [\d,.]+ GiB"):
    check_memory(plan, 23 << 30)
  check_memory(make_plan(tmp_path), 23 << 30)
  true_sizes = make_plan(tmp_path, "sizes", train_flags=("--size=tiny", "--train_batch_size=32"))
  check_memory(true_sizes, 23 << 30)  # BERT-large is timed too, with two examples.
  check_memory(
    make_plan(tmp_path, "sizes", train_flags=("--train_batch_size=4096",), device_flags=("--tpu=local",)), 1
  )


def test_curves_of_any_runs(tmp_path):
  for name in ("a", "b"):
    Commands().run_pretrain({"output_dir": str(tmp_path / name / "run")})
  with (tmp_path / "b/run/metrics.jsonl").open(
    "a"
  ) as stream:  # It trains on: a loss that was not finite, half a line.
    stream.write(
      '{"step": 150, "split": "train", "examples_per_second": 9, "masked_lm_accuracy": null}\n{"st'
    )
  study = find_study("learning_curves")
  text = write_curves(study, [str(tmp_path / "a/run"), str(tmp_path / "b/run")], str(tmp_path / "out"))
  assert "| a/run |" in text
  assert (tmp_path / "out/learning_curves.png").stat().st_size > 10_000
  (tmp_path / "lab").mkdir()
  (tmp_path / "lab/study.json").write_text("{}")
  with pytest.raises(UserError, match="holds another study"):
    write_curves(study, [str(tmp_path / "a/run")], str(tmp_path / "lab"))
  with pytest.raises(UserError, match="which does not"):
    write_curves(study, [str(tmp_path)], str(tmp_path / "out"))
  with pytest.raises(UserError, match="no --runs"):
    write_curves(study, [], str(tmp_path / "out"))
