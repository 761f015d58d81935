"""The catalogue against the paper's tables, and every study's recipes against the commands that read them."""

import dataclasses
import pathlib

import pytest
from support.commands.script_runs import flag_values, read_flags

from albert_tf.cli.commands import expand_flag_files
from albert_tf.configs import AlbertConfig
from albert_tf.studies.catalogue import SCALES, STUDIES
from albert_tf.studies.plan import last_of_each

ROOT = pathlib.Path(__file__).parents[2]
RECIPES = ROOT / "recipes/studies"


def model_of(flags, *, vocab_size):
  """The model that run_pretrain.py makes of these flags."""
  values = flag_values(last_of_each(flags))
  kinds = {field.name: field.type for field in dataclasses.fields(AlbertConfig)}
  changes = {
    name: kinds[name](value) for name, value in values.items() if kinds.get(name) in (int, float)
  }
  changes |= {"sharing": values["sharing"]} if "sharing" in values else {}
  if "albert_config_file" in values:
    model = AlbertConfig.from_json_file(values["albert_config_file"], vocab_size=vocab_size)
  else:
    model = AlbertConfig.from_name(values["size"], vocab_size=vocab_size)
  return model.resized(**changes)


def paper_models(name):
  """Arm → the model it trains at the paper's scale, of 30,000 pieces; recipes named by `--flagfile` are followed."""
  shared = expand_flag_files([f"--flagfile={find_recipe(name, 'paper.flags')}"])
  return {
    arm.name: model_of([*shared, *arm.flags_at("paper")], vocab_size=30000)
    for arm in STUDIES[name].arms_at("paper")
  }


def find_recipe(study, name):
  return next(path for path in (RECIPES / study / name, RECIPES / name) if path.exists())


def test_parameters_are_those_that_the_paper_prints():
  compared = 0
  for name in ("sizes", "embedding", "sharing", "depth", "width"):
    for arm, model in zip(STUDIES[name].arms_at("paper"), paper_models(name).values(), strict=True):
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
