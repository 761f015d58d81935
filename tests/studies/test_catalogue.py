"""The catalogue against the paper's tables, and every study's recipes against the commands that read them."""

import dataclasses
import pathlib

import pytest
from support.commands.script_runs import read_flags

from albert_tf.cli.commands import expand_flag_files
from albert_tf.configs import AlbertConfig
from albert_tf.studies.catalogue import SCALES, STUDIES
from albert_tf.studies.plan import flag_values, last_of_each

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
    return AlbertConfig.from_json_file(values["albert_config_file"], vocab_size=vocab_size).resized(
      **changes
    )
  return AlbertConfig.from_name(values["size"], vocab_size=vocab_size).resized(**changes)


def paper_models(name):
  """Arm → the model it trains at the paper's scale, of 30,000 pieces; recipes named by `--flagfile` are followed."""
  study = STUDIES[name]
  shared = read_recipe(name, "paper.flags")
  found = {}
  for arm in study.arms_at("paper"):
    found[arm.name] = model_of([*shared, *arm.flags_at("paper")], vocab_size=30000)
  return found


def find_recipe(study, name):
  return next(path for path in (RECIPES / study / name, RECIPES / name) if path.exists())


def read_recipe(study, name):
  return expand_flag_files([f"--flagfile={find_recipe(study, name)}"])


ROWS = {
  "sizes": 7, "embedding": 8, "sharing": 10, "sentence_loss": 3, "equal_time": 2, "more_data": 2, "dropout": 2,
  "depth": 6, "width": 4, "wide_depth": 2, "layer_similarity": 2,
}  # fmt: skip


def test_arms_are_the_papers_rows():
  assert {name: len(study.arms_at("paper")) for name, study in STUDIES.items()} == ROWS


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
  ("module", "ending", "always"),
  [
    ("run_pretrain", "", ["--input_file=a", "--output_dir=b"]),
    ("create_pretraining_data", "_data", ["--input=a", "--output_dir=b", "--spm_model_file=c"]),
  ],
)
def test_recipes_and_arms_are_understood_by_their_command(module, ending, always):
  lists = []
  for name, study in STUDIES.items():
    for scale in SCALES:
      shared = f"--flagfile={find_recipe(name, f'{scale}{ending}.flags')}"
      lists += (
        [[*always, shared, *arm.flags_at(scale)] for arm in study.arms_at(scale)]
        if not ending
        else []
      )
      lists.append([*always, shared])
  assert len(read_flags(module, lists)) == len(lists)
  assert len(lists) > 20
