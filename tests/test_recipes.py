"""Every recipe is a flag file that its command understands, with the published settings."""

import json
import pathlib
import re
import subprocess
import sys

import pytest

from albert_tf.configs import AlbertConfig
from albert_tf.finetuning.glue import TASKS
from albert_tf.training.watch import schedule_warnings

FOLDER = pathlib.Path(__file__).parent.parent / "recipes"
# command → its recipes; all others are pretraining's.
FINETUNING = {
  "run_squad": sorted(FOLDER.glob("squad*.flags")),
  "run_race": sorted(FOLDER.glob("race*.flags")),
  "run_glue": sorted(FOLDER.glob("glue/*.flags")),
}
RECIPES = sorted(set(FOLDER.glob("*.flags")) - {path for paths in FINETUNING.values() for path in paths})

# In a process of its own: flags of two commands must not meet. Prints the values each recipe gives.
READ_FLAGS = """
import json, sys
sys.path.insert(0, sys.argv[1] + "/tpu_scripts")
from absl import flags
import run_pretrain
values = {}
for recipe in sys.argv[2:]:
  names = recipe.split("+")
  flags.FLAGS.unparse_flags()
  for name in flags.FLAGS:
    flags.FLAGS[name].unparse()
  flags.FLAGS(["run_pretrain", *(f"--flagfile={n}" for n in names), "--input_file=a", "--output_dir=b"])
  values[recipe] = {name: value for name, value in flags.FLAGS.flag_values_dict().items()
                    if isinstance(value, (int, float, str, type(None)))}
print(json.dumps(values))
"""


# The same for a fine-tuning command, whose flags have defaults but for --output_dir.
READ_FINETUNING_FLAGS = """
import importlib, json, sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/tpu_scripts"]
from absl import flags
importlib.import_module(sys.argv[2])
values = {}
for recipe in sys.argv[3:]:
  flags.FLAGS.unparse_flags()
  for name in flags.FLAGS:
    flags.FLAGS[name].unparse()
  flags.FLAGS([sys.argv[2], f"--flagfile={recipe}", "--output_dir=b"])
  values[recipe] = {name: value for name, value in flags.FLAGS.flag_values_dict().items()
                    if isinstance(value, (int, float, str, type(None)))}
print(json.dumps(values))
"""


def read_finetuning_recipes(repository_dir, command):
  """Stem of each recipe of a fine-tuning command → the flags' values."""
  recipes = [str(path) for path in FINETUNING[command]]
  done = subprocess.run(
    [sys.executable, "-c", READ_FINETUNING_FLAGS, str(repository_dir), command, *recipes],
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  return {pathlib.Path(key).stem: value for key, value in json.loads(done.stdout).items()}


def read_recipes(repository_dir, recipes):
  done = subprocess.run([sys.executable, "-c", READ_FLAGS, str(repository_dir), *recipes],
                        capture_output=True, text=True, check=False)  # fmt: skip
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout)


@pytest.fixture(scope="module")
def values(repository_dir):
  paths = [str(path) for path in RECIPES if not path.stem.startswith("two_phase")]
  base = str(repository_dir / "recipes" / "albert_base_v1.flags")
  phases = [f"{base}+{path}" for path in RECIPES if path.stem.startswith("two_phase")]
  read = read_recipes(repository_dir, [*paths, *phases])
  return {pathlib.Path(key.split("+")[-1]).stem: value for key, value in read.items()}


def test_every_paper_size_has_its_recipe(values):
  for size in ("base", "large", "xlarge", "xxlarge"):
    for version in ("v1", "v2"):
      recipe = values[f"albert_{size}_{version}"]
      assert recipe["size"] == f"{size}_{version}"
      assert (recipe["learning_rate"], recipe["train_batch_size"]) == (0.00176, 4096)  # Section 4.1.
      assert (recipe["optimizer"], recipe["max_seq_length"]) == ("lamb", 512)


def test_the_published_lengths_of_the_runs(values):
  steps = {name: value["num_train_steps"] for name, value in values.items() if name.startswith("albert_")}
  assert {steps[f"albert_{size}_v1"] for size in ("base", "large", "xlarge")} == {125_000}
  assert steps["albert_xxlarge_v1"] == 1_500_000
  assert steps["albert_base_v2"] == 10_000_000
  assert {steps[f"albert_{size}_v2"] for size in ("large", "xlarge", "xxlarge")} == {3_000_000}


def test_two_phases_split_the_run(values):
  first, second = values["two_phase_1_length_128"], values["two_phase_2_length_512"]
  assert first["num_train_steps"] + second["num_train_steps"] == 125_000
  assert (first["max_seq_length"], second["max_seq_length"]) == (128, 512)


def test_small_recipes_cause_no_warning(values, repository_dir):
  for name in ("demo", "laptop"):
    recipe = values[name]
    assert 0 < recipe["num_warmup_steps"] < recipe["num_train_steps"] / 4
    file, size = recipe["albert_config_file"], recipe["size"]
    config = AlbertConfig.from_name(size) if size else AlbertConfig.from_json_file(str(repository_dir / file))
    assert not schedule_warnings(
      optimizer=recipe["optimizer"],
      learning_rate=recipe["learning_rate"],
      batch_size=recipe["train_batch_size"],
      num_train_steps=recipe["num_train_steps"],
      num_warmup_steps=recipe["num_warmup_steps"],
      hidden_size=config.hidden_size,
    )


# The table of hyper-parameters in the paper's appendix.
TABLE_14 = (
  "learning_rate",
  "train_batch_size",
  "albert_dropout",
  "classifier_dropout",
  "num_train_steps",
  "num_warmup_steps",
  "max_seq_length",
)


def test_squad_has_the_papers_settings(repository_dir):
  """The table of hyper-parameters in the appendix: rate, batch, steps, warm-up, length, both dropouts."""
  names = (
    "learning_rate",
    "train_batch_size",
    "num_train_steps",
    "num_warmup_steps",
    "max_seq_length",
    "albert_dropout",
    "classifier_dropout",
    "version",
  )
  read = read_finetuning_recipes(repository_dir, "run_squad")
  assert {recipe: tuple(values[name] for name in names) for recipe, values in read.items()} == {
    "squad1": (5e-5, 48, 3649, 365, 384, 0.0, 0.1, "1.1"),
    "squad2": (3e-5, 48, 8144, 814, 512, 0.0, 0.1, "2.0"),
  }
  assert all(values["do_train"] and values["selection_split"] == "train" for values in read.values())


def test_glue_has_the_papers_settings(repository_dir):
  read = read_finetuning_recipes(repository_dir, "run_glue")
  assert {recipe: tuple(values[name] for name in TABLE_14) for recipe, values in read.items()} == {
    "cola": (1e-5, 16, 0.0, 0.1, 5336, 320, 512),
    "sts-b": (2e-5, 16, 0.0, 0.1, 3598, 214, 512),
    "sst-2": (1e-5, 32, 0.0, 0.1, 20935, 1256, 512),
    "mnli": (3e-5, 128, 0.0, 0.1, 10000, 1000, 512),
    "qnli": (1e-5, 32, 0.0, 0.1, 33112, 1986, 512),
    "qqp": (5e-5, 128, 0.1, 0.1, 14000, 1000, 512),
    "rte": (3e-5, 32, 0.1, 0.1, 800, 200, 512),
    "mrpc": (2e-5, 32, 0.0, 0.1, 800, 200, 512),
    "wnli": (2e-5, 16, 0.1, 0.1, 2000, 250, 512),
  }
  assert all(values["task_name"] == recipe for recipe, values in read.items())
  assert set(read) == set(TASKS) - {"ax"}  # The diagnostic set is predicted with MNLI's model.


def test_race_has_the_papers_settings(repository_dir):
  read = read_finetuning_recipes(repository_dir, "run_race")
  assert {recipe: tuple(values[name] for name in TABLE_14) for recipe, values in read.items()} == {
    "race": (2e-5, 32, 0.1, 0.1, 12000, 1000, 512),
    "race_v2": (1e-5, 32, 0.0, 0.1, 12000, 1000, 512),
  }
  assert {(values["task_name"], values["max_qa_length"]) for values in read.values()} == {("race", 128)}


# `--tpu=local` in a recipe's example is a v3-8, a name is a v3-512; docs/tpu.md has a row for each machine.
_COMMAND = re.compile(r"run_pretrain\.py ((?:.*\\\n#? +)*.*)")
_ROW = re.compile(
  r"^\| \S+ \| (v\S+) \| (\d+) \| ([\d.]+) (days|hours) \| (\d+) \| ([\d.]+) (days|hours) \|$", re.MULTILINE
)


def examples(repository_dir):
  """Flags of the planner for each command that names a machine, and the days the text promises (None: nothing)."""
  for path in RECIPES:
    for command in _COMMAND.findall(path.read_text()):
      if "--tpu" in command:
        flags = re.findall(r"--(?:flagfile|gradient_accumulation_steps)=\S+", command)
        yield [*flags, f"--topology={'v3:2x2' if '--tpu=local' in command else 'v3:16x16'}"], None
  for topology, *columns in _ROW.findall((repository_dir / "docs" / "tpu.md").read_text()):
    for size, (steps, time, unit) in zip(("base", "large"), (columns[:3], columns[3:]), strict=True):
      flags = [f"--size={size}_v1", "--train_batch_size=4096", "--max_predictions_per_seq=20"]
      days = float(time) / (24 if unit == "hours" else 1)
      yield [*flags, f"--gradient_accumulation_steps={steps}", f"--topology={topology}"], days


def test_every_command_fits_the_machine_it_names(repository_dir):
  planner = str(repository_dir / "tpu_scripts" / "compile_for_tpu.py")
  count = {True: 0, False: 0}
  for flags, days in examples(repository_dir):
    command = [sys.executable, planner, *flags, "--estimate_only", "--num_train_steps=125000"]
    done = subprocess.run(command, cwd=repository_dir, capture_output=True, text=True, check=False)
    assert "\nIt fits: " in done.stdout, (flags, done.stdout, done.stderr)
    time, unit = re.search(r"steps: ([\d.]+) (days|hours)", done.stdout).groups()
    if days is not None:
      assert float(time) / (24 if unit == "hours" else 1) == pytest.approx(days, rel=0.1), (flags, time, unit)
    count[days is None] += 1
  assert count == {True: 10, False: 16}
