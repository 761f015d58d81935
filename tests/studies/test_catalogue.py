"""The catalogue against the paper's tables, and every study's recipes against the commands that read them."""

import pathlib
import shlex

import pytest
from support.commands.script_runs import flag_values, read_flags

from albert_tf import json_files
from albert_tf.cli.commands import expand_flag_files
from albert_tf.configs import AlbertConfig, ModelChoice
from albert_tf.settings import fields_of
from albert_tf.studies.catalogue import SCALES, STUDIES
from albert_tf.studies.plan import StudyPlan

ROOT = pathlib.Path(__file__).parents[2]
RECIPES = ROOT / "recipes/studies"


def paper_models(name, folder):
  """Arm → the model it trains at the paper's scale, of 30,000 pieces."""
  recipe = expand_flag_files([f"--flagfile={find_recipe(name, 'paper.flags')}"])
  plan = StudyPlan(
    study=name,
    scale="paper",
    output_dir=str(folder / name),
    input="a",
    train_flags=shlex.join(recipe),
  )
  (folder / name / "models").mkdir(parents=True)
  for path, fields in plan.model_files().items():
    json_files.write(path, fields)
  models = {}
  for command in plan.commands():
    if command.name.startswith("pretraining/"):
      values = flag_values(command.words[1:])
      chosen = {field.name: values.get(field.name) for field in fields_of(ModelChoice)}
      layers = chosen.pop("num_hidden_layers")
      choice = ModelChoice(**chosen, num_hidden_layers=int(layers) if layers else None)
      models[command.name.split("/")[1]] = choice.config(30_000)
  return models


def find_recipe(study, name):
  return next(path for path in (RECIPES / study / name, RECIPES / name) if path.exists())


def test_parameters_are_those_that_the_paper_prints(tmp_path):
  compared = 0
  for name in ("sizes", "embedding", "sharing", "depth", "width"):
    models = paper_models(name, tmp_path)
    for arm in STUDIES[name].arms_at("paper"):
      model = models[arm.name]
      if "parameters" in arm.paper:
        printed = int(str(arm.paper["parameters"]).removesuffix("M"))
        # The paper counts xxlarge higher than its architecture has.
        assert model.param_count() / 1e6 == pytest.approx(printed, rel=0.06), (name, arm.name)
        compared += 1
  assert compared == 7 + 8 + 8 + 6 + 4


@pytest.mark.parametrize(
  ("module", "ending"), [("run_pretrain", ""), ("create_pretraining_data", "_data")]
)
def test_recipes_and_arms_are_understood_by_their_command(module, ending):
  # What either command needs.
  always = ["--input_file=a"] if module == "run_pretrain" else ["--input=a", "--spm_model_file=c"]
  always.append("--output_dir=b")
  lists = []
  for name, study in STUDIES.items():
    for scale in SCALES:
      shared = [*always, f"--flagfile={find_recipe(name, f'{scale}{ending}.flags')}"]
      lists.append(shared)
      if not ending:
        lists += [[*shared, *arm.flags_at(scale)] for arm in study.arms_at(scale)]
  assert len(read_flags(module, lists)) == len(lists)
  assert len(lists) > 20


def test_every_arm_of_a_laptop_is_a_model(tmp_path):
  """The study's file with the arm's fields in it is complete and consistent."""
  count = 0
  for name in STUDIES:
    recipe = expand_flag_files([f"--flagfile={find_recipe(name, 'laptop.flags')}"])
    plan = StudyPlan(study=name, output_dir=str(tmp_path), train_flags=shlex.join(recipe))
    for path, fields in plan.model_files().items():
      AlbertConfig.from_dict({"vocab_size": 4000, **fields}, source=path)
      count += 1
  assert count > 20
