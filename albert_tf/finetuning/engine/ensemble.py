"""Ensembles of runs, chosen on the evaluation data by the outputs that are stored in run directories."""

from collections.abc import Callable, Mapping, Sequence
import os
from typing import Any

from absl import logging

from albert_tf import __version__, files, json_files
from albert_tf.configs.task import RESULTS_FILE, TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning.engine import run_directory
from albert_tf.finetuning.engine.fit import answered_splits, metrics_of
from albert_tf.finetuning.engine.results import head, scores, shown
from albert_tf.finetuning.tasks.base import FineTuningTask, Outputs


def run_directories(names: Sequence[str]) -> list[str]:
  """The sorted directories of single runs; a run with several seeds has one for each seed.

  Raises:
    UserError: there are fewer than two.
  """
  found: set[str] = set()
  for name in map(files.abspath, names):
    seeds = [os.path.join(name, each) for each in files.listdir(name) if each.startswith("seed_")]
    found |= set(seeds or [name])
  if len(found) < 2:
    raise UserError(
      f"An ensemble needs several runs. Received: --ensemble_of={','.join(names)}, which is {len(found)}. Name more."
    )
  return sorted(found)


def greedy(
  candidates: Sequence[Outputs], score: Callable[[Sequence[Outputs]], float]
) -> tuple[dict[int, float], list[float]]:
  """Forward selection: starts with the best candidate, and adds the best other one while the score rises.

  Args:
    candidates: outputs for the evaluation data; of equal scores the first is taken.
    score: returns the score of an ensemble of some candidates; higher is better.

  Returns:
    The indices of the chosen candidates in order, with the score after each; and the score of each candidate.
  """
  chosen: dict[int, float] = {}
  alone: list[float] = []
  while len(chosen) < len(candidates):
    left = [number for number in range(len(candidates)) if number not in chosen]
    found = {
      number: score([candidates[each] for each in sorted([*chosen, number])]) for number in left
    }
    alone = alone or list(found.values())
    best = max(left, key=found.__getitem__)
    if chosen and not found[best] > max(chosen.values()):
      break
    chosen[best] = found[best]
  return chosen, alone


def combine(
  task: FineTuningTask, directories: Sequence[str], *, output_dir: str, predict: bool = False
) -> dict[str, Any]:
  """Writes an ensemble's directory: results.json with the members, and predictions. No model is run.

  The members are chosen on the evaluation data by `greedy`; without evaluation data all runs are members.

  Args:
    task: the task with its data.
    directories: see `run_directories`; runs of this task, with models of any size.
    output_dir: a new or empty directory, or that of the same ensemble.
    predict: whether to predict the test data too.

  Returns:
    The content of results.json.

  Raises:
    UserError: a run is of another task, answered other examples, or the directory holds something else.

  Reference: ALBERT, section 4.9; the search is forward selection (Caruana et al. 2004).
  """
  evaluates = "eval" in task.splits
  splits = answered_splits(task, evaluates=evaluates, predicts=predict or not evaluates)
  identity = {"task": task.spec.name, "ensemble_of": list(directories)}
  path = os.path.join(output_dir, run_directory.RUN_FILE)
  same = files.exists(path) and json_files.read(path).get("identity") == identity
  if not same and [name for name in files.listdir(output_dir) if not files.is_temporary(name)]:
    raise UserError(
      f"An ensemble needs a new or empty output directory, or its own. Received: {output_dir}, which holds something "
      "else. Choose another --output_dir."
    )
  for directory in directories:
    TaskSpec.load(directory)
    run_directory.check_task(directory, task.spec)
  candidates = [{name: task.stored(each, name) for name in splits} for each in directories]

  def score(chosen: Sequence[Outputs]) -> float:
    value = task.evaluate(task.ensemble(chosen))[task.best_metric]
    logging.info(
      "%s: %s %s",
      "1 run" if len(chosen) == 1 else f"{len(chosen)} runs",
      task.best_metric,
      shown(task.best_metric, value),
    )
    return value

  chosen: dict[int, Any] = dict.fromkeys(range(len(candidates)))
  alone: list[Any] = [None] * len(candidates)
  if evaluates:
    chosen, alone = greedy([each["eval"] for each in candidates], score)
  made = {name: task.ensemble([candidates[n][name] for n in sorted(chosen)]) for name in splits}
  metrics = metrics_of(task, made, [name for name in splits if name.startswith("eval")])
  results = {
    **head(task, ", ".join(directories)),
    **metrics,
    "chosen_on": "the evaluation data" if evaluates else "nothing: all runs",
    "members": [{"directory": directories[n], "score_with_it": each} for n, each in chosen.items()],
    "candidates": [
      {"directory": name, "score": each} for name, each in zip(directories, alone, strict=True)
    ],
  }

  files.makedirs(output_dir)
  json_files.write(path, {"identity": identity, "albert_tf": __version__})
  for name, outputs in made.items():
    task.write_predictions(outputs, name, output_dir)
  json_files.write(os.path.join(output_dir, RESULTS_FILE), results)
  return results


def lines(results: Mapping[str, Any]) -> list[str]:
  """Yields the lines that a command prints."""
  number, of = len(results["members"]), len(results["candidates"])
  added = [f"member: {each['directory']}" for each in results["members"]]
  values = [f"{name}: {shown(name, value)}" for name, value in scores(results).items()]
  return [f"{number} of {of} runs, chosen on {results['chosen_on']}", *added, *values]
