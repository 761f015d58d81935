"""Commands of any order leave results, predictions and exports that are of the same seed and the same tables."""

import dataclasses
import importlib
import json
import os
import pathlib
import sys
import tempfile
import types
from typing import Any

from absl import logging
from fuzz.fuzzing import fuzz
from hypothesis import strategies as st
import pytest
from support import tiny_run
from support.commands.script_runs import SCRIPT_FOLDERS
from support.run_contents import check_directory, made_up_table, task_of_tables
from support.tiny_finetuning import QUICK
from support.tiny_step import EAGER_INPUT, eagerly

from albert_tf.checkpoints.checkpoint import find_checkpoint
from albert_tf.configs.task import TaskSpec, best_run
from albert_tf.errors import UserError
from albert_tf.keras_api import tasks

SETTINGS = dataclasses.replace(
  QUICK, num_train_steps=1, train_batch_size=4, save_checkpoints_steps=0
)
TABLES = {
  "train": made_up_table("train", 4, seed=5),
  "dev": made_up_table("dev", 9, seed=6),
  "other": made_up_table("other", 8, seed=7),
  "first": made_up_table("first", 5, seed=8),
  "second": made_up_table("second", 4, seed=9, labelled=False),
}


COMMANDS = st.fixed_dictionaries(
  {
    "seeds": st.sampled_from([(1,), (1, 2), (2, 3), (3, 1, 2)]),
    "does": st.sampled_from(["train", "train predict", "eval", "predict", "eval predict"]),
    "eval": st.sampled_from(["dev", "dev", "dev", "other"]),
    "test": st.sampled_from(["first", "second"]),
    "num_hidden_layers": st.sampled_from([None, None, None, 1]),
    "export": st.booleans(),
    "precision": st.sampled_from(["float32", "float32", "bfloat16"]),
    "folder": st.sampled_from(["run", "run", "run", "new"]),
  }
)


@pytest.fixture(scope="module")
def finetune_command() -> Any:
  sys.path[:0] = SCRIPT_FOLDERS
  verbosity = logging.get_verbosity()
  yield importlib.import_module("finetune_command")
  # An export hides warnings until the command ends; here the other tests follow.
  logging.set_verbosity(verbosity)
  del sys.path[: len(SCRIPT_FOLDERS)]


@pytest.fixture
def quick_exports(monkeypatch: pytest.MonkeyPatch) -> None:
  """An export is a file with the name of its weights."""

  def opened(kind: str, path: str) -> Any:
    def export(folder: str, precision: str = "float32", **options: Any) -> None:
      pathlib.Path(folder, "assets.extra").mkdir(parents=True)
      pathlib.Path(folder, "weights").write_text(find_checkpoint(path))
      if precision != "float32":
        report = json.dumps({"precision": precision})
        pathlib.Path(folder, "assets.extra/precision.json").write_text(report)

    return types.SimpleNamespace(export=export)

  monkeypatch.setattr(tasks, "open_model", opened)


def run(finetune_command: Any, root: pathlib.Path, command: dict[str, Any]) -> None:
  """A command as `run_glue.py` with a metric that differs from seed to seed."""
  does = {f"do_{name}": name in command["does"] for name in ("train", "eval", "predict")}
  if command["folder"] == "new" and not does["do_train"]:
    command = {**command, "seeds": (1,)}  # Weights of another run have no seeds.
  numbers = {name: command[name] for name in ("seeds", "num_hidden_layers")}
  settings = dataclasses.replace(SETTINGS, **does, **numbers)
  weights, trained = "", None
  if not settings.do_train:
    weights = str(root / "run") if command["folder"] == "new" else ""
    trained = TaskSpec.find(best_run(weights or str(root / "run")))
  if settings.do_train:
    weights = str(root / "pretrained")
    if not os.path.exists(weights):
      tiny_run.write_pretrained(pathlib.Path(weights), max_position_embeddings=40)
  splits = {"eval": command["eval"], "test": command["test"]}
  if settings.do_train:
    splits["train"] = "train"
  task = task_of_tables(**{split: TABLES[name] for split, name in splits.items()})
  task.best_metric = "loss"  # Accuracies of few examples would be equal.
  request = finetune_command.Request(
    settings=settings,
    trained=trained,
    changed_flags={},
    flags_text="",
    init_checkpoint=weights,
    output_dir=str(root / command["folder"]),
    export=command["export"],
    precision=command["precision"],
  )
  finetune_command.run(task, request, finetune_command.read_start(request))


def files_of(folder: pathlib.Path) -> dict[str, bytes]:
  paths = [path for path in folder.rglob("*") if path.is_file() and path.name != "lock.json"]
  return {str(path): path.read_bytes() for path in paths}


def command(seeds: tuple[int, ...], does: str, **changes: Any) -> dict[str, Any]:
  usual = {"eval": "dev", "test": "first", "num_hidden_layers": None, "export": True}
  usual["precision"] = "float32"
  return {"seeds": seeds, "does": does, "folder": "run", **usual, **changes}


@pytest.mark.slow
@pytest.mark.filterwarnings(EAGER_INPUT)
def test_the_export_follows_the_best_seed(
  finetune_command: Any, quick_exports: None, tmp_path: pathlib.Path, capsys: Any
) -> None:
  folder = tmp_path / "run"
  best_seeds = []
  with eagerly():
    run(finetune_command, tmp_path, command((3, 1, 2), "train", export=False))
    best = check_directory(folder)["best_seed"]
    others = tuple({1, 2, 3} - {best})
    for seeds in (others, (3, 1, 2), (3, 1, 2)):
      run(finetune_command, tmp_path, command(seeds, "train"))
      results = check_directory(folder)
      check_export(folder, results, is_exported=True)
      best_seeds.append(results["best_seed"])
      versions = [path.name for path in folder.glob("saved_model/*")]
      # The first command again leaves it as it is.
      assert len(versions) == len(set(best_seeds))
    assert best_seeds[1:] == [best, best]
    capsys.readouterr()
    run(finetune_command, tmp_path, command(others, "train", export=False))
  assert "saved_model/2 has other weights; --export" in capsys.readouterr().out
  assert "saved_model_version" not in check_directory(folder)


@pytest.mark.slow
@pytest.mark.filterwarnings(EAGER_INPUT)
def test_another_precision_is_another_version(
  finetune_command: Any, quick_exports: None, tmp_path: pathlib.Path, capsys: Any
) -> None:
  with eagerly():
    for precision in ("float32", "bfloat16", "bfloat16"):
      run(finetune_command, tmp_path, command((1,), "train", precision=precision))
    assert len(list(tmp_path.glob("run/saved_model/*"))) == 2
    capsys.readouterr()
    run(finetune_command, tmp_path, command((1,), "train", export=False))
  assert "saved_model/2 has other numbers, bfloat16; --export" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.filterwarnings(EAGER_INPUT)
@fuzz(commands=st.lists(COMMANDS, min_size=2, max_size=6), cost=20)
def test_commands(finetune_command: Any, quick_exports: None, commands: list[Any]) -> None:
  with tempfile.TemporaryDirectory() as name, eagerly():
    root = pathlib.Path(name)
    for number, each in enumerate(commands):
      # Something must be trained first.
      if number == 0:
        each = {**each, "does": f"train {each['does']}", "folder": "run"}
      before = files_of(root / each["folder"])
      try:
        run(finetune_command, root, each)
      except UserError:
        assert files_of(root / each["folder"]) == before
        continue
      results = check_directory(root / each["folder"])
      check_export(
        root / each["folder"], results, is_exported=each["export"] and "train" in each["does"]
      )


def check_export(folder: pathlib.Path, results: dict[str, Any], *, is_exported: bool) -> None:
  """The newest version has the weights of the results, or they do not name a version."""
  versions = sorted(int(path.name) for path in folder.glob("saved_model/*"))
  version = results.get("saved_model_version")
  assert not is_exported or version == versions[-1]
  if version is not None:
    weights = (folder / f"saved_model/{version}/weights").read_text()
    assert weights == find_checkpoint(str(folder))
