"""Every recipe, and the command in its comment, has valid flags and the values of the paper."""

import pathlib
import re
import shlex
import subprocess
import sys

import pytest
from support.commands.script_runs import read_flags, run_script

from albert_tf.configs import AlbertConfig
from albert_tf.finetuning.tasks.glue import TASKS

FOLDER = pathlib.Path(__file__).parent.parent / "recipes"
RECIPES = sorted(FOLDER.glob("*.flags")) + sorted(FOLDER.glob("glue/*.flags"))
# ALBERT, appendix A.4, table 14.
TABLE_14 = """
task  learning_rate train_batch_size albert_dropout classifier_dropout num_train_steps num_warmup_steps max_seq_length
cola     1e-5          16               0              0.1                5336            320              512
sts-b    2e-5          16               0              0.1                3598            214              512
sst-2    1e-5          32               0              0.1                20935           1256             512
mnli     3e-5          128              0              0.1                10000           1000             512
qnli     1e-5          32               0              0.1                33112           1986             512
qqp      5e-5          128              0.1            0.1                14000           1000             512
rte      3e-5          32               0.1            0.1                800             200              512
mrpc     2e-5          32               0              0.1                800             200              512
wnli     2e-5          16               0.1            0.1                2000            250              512
squad1   5e-5          48               0              0.1                3649            365              384
squad2   3e-5          48               0              0.1                8144            814              512
race     2e-5          32               0.1            0.1                12000           1000             512
"""


def example_of(path):
  """The command in a recipe's comment: its script, and its arguments; of the demo's, what the demo gives."""
  found = re.search(r"python tpu_scripts/(\w+)\.py ((?:.*\\\n# +)*.*)", path.read_text())
  if found is None:
    return "run_pretrain", [f"--flagfile=recipes/{path.name}", "--input_file=a", "--output_dir=b"]
  return found[1], shlex.split(re.sub(r"\\\n# +", "", found[2]))


@pytest.fixture(scope="module")
def values(repository_dir):
  """Stem of each recipe → the flags' values of the command in its comment."""
  read = {}
  examples = {path: example_of(path) for path in RECIPES}
  for command in {command for command, _ in examples.values()}:
    mine = {path: arguments for path, (name, arguments) in examples.items() if name == command}
    for path, arguments in mine.items():  # Each comment names its own recipe.
      assert f"--flagfile={path.relative_to(repository_dir).as_posix()}" in arguments, path
    stems = [path.stem for path in mine]
    read |= zip(stems, read_flags(command, [*mine.values()]), strict=True)
  return read


@pytest.mark.parametrize("form", ["--flagfile={}", "--flagfile {}"])
def test_recipes_are_read_from_any_working_directory(repository_dir, tmp_path, form):
  recipe = repository_dir / "recipes/glue/mrpc.flags"
  command = [sys.executable, str(repository_dir / "tpu_scripts/run_glue.py"), "--output_dir=b"]
  command += [*form.format(recipe).split(" "), "--only_check_args"]
  done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr


def test_a_flag_file_that_is_missing(tmp_path):
  (tmp_path / "lost.flags").write_text("--flagfile=common/nowhere.flags\n")
  arguments = ["--only_check_args", "--output_dir=b", f"--flagfile={tmp_path}/lost.flags"]
  [run] = run_script("run_glue", [arguments])
  assert "common/nowhere.flags" in f"{run.status} {run.stderr}"


def test_every_paper_size_has_its_recipe(values):
  thousands = {
    "base_v1": 125, "large_v1": 125, "xlarge_v1": 125, "xxlarge_v1": 1500,
    "base_v2": 10_000, "large_v2": 3000, "xlarge_v2": 3000, "xxlarge_v2": 3000,
  }  # fmt: skip
  for size, steps in thousands.items():
    recipe = values[f"albert_{size}"]
    assert recipe["size"] == size
    assert AlbertConfig.from_name(size).max_position_embeddings == recipe["max_seq_length"]
    assert (recipe["learning_rate"], recipe["train_batch_size"]) == (0.00176, 4096)  # Section 4.1.
    assert recipe["num_train_steps"] == 1000 * steps


def test_tasks_have_the_papers_settings(values):
  names, *rows = [line.split() for line in TABLE_14.strip().splitlines()]
  for task, *settings in rows:
    expected = list(map(float, settings))
    assert [values[task][name] for name in names[1:]] == expected, task
  stems = {path.stem for path in FOLDER.glob("glue/*.flags")}
  assert stems == set(TASKS)
  assert all(values[stem]["task_name"] == stem for stem in stems)


def test_the_median_of_five_runs_and_what_starts_from_mnli(values):
  """Section 4.9, and appendix A.3's procedure."""
  tasks = [line.split()[0] for line in TABLE_14.strip().splitlines()[1:]]
  assert {values[task]["seeds"] for task in tasks} == {"1,2,3,4,5"}
  starts = {task for task in TASKS if "=MNLI_RUN" in (FOLDER / f"glue/{task}.flags").read_text()}
  assert starts == {"rte", "sts-b", "mrpc"}


# `--tpu=local` in a recipe's example is a v3-8, a name is a v3-512; docs/planner.md has a row for each machine.
_COMMAND = re.compile(r"run_pretrain\.py ((?:.*\\\n#? +)*.*)")
_TIMES = r" (\d+) \| ([\d.]+) (days|hours) \| [^|]* \|"
_ROW = re.compile(r"^\| \S+ \| (v\S+) \|" + _TIMES + _TIMES + "$", re.MULTILINE)


def examples(repository_dir):
  """Flags of the planner for each command that names a machine, and the days the text promises (None: nothing)."""
  for path in RECIPES:
    for command in _COMMAND.findall(path.read_text()):
      if "--tpu" in command:
        flags = re.findall(r"--(?:flagfile|gradient_accumulation_steps)=\S+", command)
        yield [*flags, f"--topology={'v3:2x2' if '--tpu=local' in command else 'v3:16x16'}"], None
  for topology, *columns in _ROW.findall((repository_dir / "docs" / "planner.md").read_text()):
    for size, (steps, time, unit) in zip(
      ("base", "large"), (columns[:3], columns[3:]), strict=True
    ):
      flags = [f"--size={size}_v1", "--train_batch_size=4096", "--max_predictions_per_seq=20"]
      days = float(time) / (24 if unit == "hours" else 1)
      yield [*flags, f"--gradient_accumulation_steps={steps}", f"--topology={topology}"], days


def test_readme_and_guide_train_alike_on_the_machine_that_is_rented(repository_dir):
  """In the micro-batches that the planner's table has for it."""
  readme = (repository_dir / "README.md").read_text()
  guide = (repository_dir / "docs" / "tpu.md").read_text()
  table = (repository_dir / "docs" / "planner.md").read_text()
  machine = re.search(r"ACCELERATOR=(\S+)", guide)[1].replace("v5litepod", "v5e")
  steps = re.search(rf"^\| {machine} \| \S+ \| (\d+) \|", table, re.MULTILINE)[1]
  expected = {"--flagfile=recipes/albert_base_fast.flags", f"--gradient_accumulation_steps={steps}"}
  for text in (readme, guide):
    commands = [command for command in _COMMAND.findall(text) if "--tpu=local" in command]
    assert commands
    for command in commands:
      assert set(re.findall(r"--(?:flagfile|gradient_accumulation_steps)=\S+", command)) == expected
  assert f"this machine's TPU, a {machine}." in readme
  assert f"On one VM, a {machine} " in guide


def test_reports_of_base_on_one_host_come_as_the_guide_says(repository_dir, values):
  """docs/tpu.md: how many updates of base a v3-8 makes between two reports; the recipes have them too."""
  guide = (repository_dir / "docs" / "tpu.md").read_text()
  [seconds, number] = re.search(
    r"\*\*On a v3-8\*\* an update takes ([\d.]+ to [\d.]+) s: choose (\d+)", guide
  ).groups()
  least, most = map(float, seconds.split(" to "))
  assert int(number) * least >= 10
  assert int(number) * most < 20
  for recipe in ("base_v1", "base_v2", "base_fast"):
    assert values[f"albert_{recipe}"]["iterations_per_loop"] == int(number), recipe


def test_every_command_fits_the_machine_it_names(repository_dir):
  found, count = list(examples(repository_dir)), {True: 0, False: 0}
  planned = ["--estimate_only", "--num_train_steps=125000"]
  runs = run_script("compile_for_tpu", [[*flags, *planned] for flags, _ in found])
  for (flags, days), done in zip(found, runs, strict=True):
    assert "\nIt fits: " in done.stdout, (flags, done.stdout, done.stderr)
    time, unit = re.search(r"steps: at least ([\d.]+) (days|hours)", done.stdout).groups()
    if days is not None:
      planned_days = float(time) / (24 if unit == "hours" else 1)
      assert planned_days == pytest.approx(days, rel=0.1), flags
    count[days is None] += 1
  assert count == {True: 12, False: 16}
