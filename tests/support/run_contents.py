"""Tables whose rows say which table they are of, and a look at what a fine-tuned run's directory says of itself."""

import json

import numpy as np
import pytest
from support.tiny_finetuning import made_up_texts, tiny_task


def made_up_table(name, count, *, seed, labelled=True):
  """Made-up texts with the ids NAME-0, NAME-1, …"""
  texts = made_up_texts(count, seed=seed, labelled=labelled)
  return [example._replace(id=f"{name}-{example.id}") for example in texts]


def task_of_tables(**tables):
  """A task whose splits are made-up tables; each has its name as its file."""
  task = tiny_task(tables)
  task.sources = {split: _name(examples[0].id) for split, examples in tables.items()}
  return task


def _name(example_id):
  return example_id.partition("-")[0]


def check_run(folder):
  """The results.json of one seed, of whose tables the predictions beside it must be."""
  results = json.loads((folder / "results.json").read_text())
  for path in folder.glob("predictions_*.tsv"):
    split = path.stem.removeprefix("predictions_")
    entry = results["data"][split]
    rows = [line.split("\t") for line in path.read_text().splitlines()[1:]]
    assert {_name(row[0]) for row in rows} == {entry["file"]}, split
    assert len(rows) == entry["examples"], split
    # The metric is that of these predictions, if all have labels.
    name = "accuracy" if split == "eval" else f"{split}_accuracy"
    assert (name in results) == all(row[2] for row in rows), split
    if name in results:
      assert results[name] == pytest.approx(np.mean([row[1] == row[2] for row in rows])), split
    with np.load(folder / f"scores_{split}.npz") as stored:
      predicted = [f"c{number}" for number in stored["scores"].argmax(axis=-1)]
    assert [row[1] for row in rows] == predicted, split
  return results


def check_directory(folder):
  """The results.json of one seed or of several, which must be all that the directory shows."""
  if (folder / "run.json").exists():
    return check_run(folder)
  results = json.loads((folder / "results.json").read_text())
  of_all = {f"seed_{seed}" for seed in results["seeds"]}
  of_seeds = {name: check_run(folder / name) for name in of_all}
  names = {path.name for path in folder.iterdir() if not path.name.startswith("seed_")}
  assert names <= {"lock.json", "results.json", "saved_model"}
  metric = results["best_metric"]
  if metric in results:
    scores = {name: of_seed[metric] for name, of_seed in of_seeds.items()}
    assert scores[results["best_run"]] == max(scores.values()) == results[metric]
  assert results["data"].get("eval") == of_seeds[results["best_run"]]["data"].get("eval")
  tests = {str(of_seed["data"].get("test")) for of_seed in of_seeds.values()}
  assert ("test" in results["data"]) == (len(tests) == 1 and tests != {"None"})
  assert ("test_accuracy" in results["median"]) <= ("test" in results["data"])
  return results
