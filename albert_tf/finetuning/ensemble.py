"""Ensembles of runs, chosen on the evaluation data by the outputs stored in run directories."""

from collections.abc import Callable, Mapping, Sequence
import os
from typing import Any

from absl import logging

from albert_tf import __version__, files, json_files
from albert_tf.configs.task import RESULTS_FILE, TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning.directory import check_task, splits_to_run
from albert_tf.finetuning.results import check_data, describe_data, format_metric, head
from albert_tf.finetuning.results import lines as metric_lines
from albert_tf.finetuning.run import metrics_of
from albert_tf.finetuning.tasks.base import FineTuningTask, Outputs
from albert_tf.runs import run_directory


def run_directories(names: Sequence[str]) -> list[str]:
  """The sorted directories of single runs; a run with several seeds has one for each seed.

  Raises:
    UserError: there are fewer than two.
  """
  directories: set[str] = set()
  for name in map(files.abspath, names):
    folders = [folder for folder in files.listdir(name) if folder.startswith("seed_")]
    directories.update(os.path.join(name, folder) for folder in folders)
    if not folders:
      directories.add(name)
  if len(directories) < 2:
    raise UserError(
      f"An ensemble needs several runs. Received: --ensemble_of={','.join(names)}, which is "
      f"{len(directories)}. Name more."
    )
  return sorted(directories)


def greedy(
  candidates: Sequence[Outputs], score: Callable[[Sequence[Outputs]], float]
) -> tuple[dict[int, float], list[float]]:
  """Forward selection: starts with the best candidate, and adds the best other while this helps.

  Example: candidates A B C alone have 0.7 0.8 0.6. B is first. With it A reaches 0.82 and C 0.85,
  so C is next. If A, B and C together have 0.84, the ensemble is B and C.

  Args:
    candidates: outputs for the evaluation data; of equal scores the first is taken.
    score: returns the score of an ensemble of some candidates; higher is better.

  Returns:
    The indices of the chosen candidates in order, with the score after each; and the score of each
    candidate.
  """
  chosen: dict[int, float] = {}
  scores_alone: list[float] = []
  while len(chosen) < len(candidates):
    score_with = {}
    for number in range(len(candidates)):
      if number not in chosen:
        # Sorted, so that the order of choice cannot change a rounding.
        members = sorted([number, *chosen])
        score_with[number] = score([candidates[member] for member in members])
    if not chosen:
      scores_alone = list(score_with.values())
    best = max(score_with, key=score_with.__getitem__)
    if chosen and not score_with[best] > max(chosen.values()):
      break
    chosen[best] = score_with[best]
  return chosen, scores_alone


def combine(
  task: FineTuningTask, directories: Sequence[str], *, output_dir: str, predict: bool = False
) -> dict[str, Any]:
  """Writes an ensemble's directory: results.json with the members, and predictions.

  No model is run. The members are chosen on the evaluation data by `greedy`; without evaluation
  data all runs are members.

  Args:
    task: the task with its data.
    directories: see `run_directories`; runs of this task, with models of any size.
    output_dir: a new or empty directory, or that of the same ensemble.
    predict: whether to predict the test data too.

  Returns:
    The content of results.json.

  Raises:
    UserError: a run is of another task, answered other examples, or the directory holds something
      else.

  Reference: ALBERT, section 4.9; the search is forward selection (Caruana et al. 2004).
  """
  # The directories.
  identity = {"task": task.spec.name, "ensemble_of": list(directories)}
  run_directory.check(output_dir, identity)
  for directory in directories:
    TaskSpec.load(directory)  # Raises where there is no run.
    check_task(directory, task.spec)

  # The data: like a run, an ensemble has the metrics of one set of evaluation data.
  evaluates = "eval" in task.splits
  splits = splits_to_run(task, evaluates=evaluates, predicts=predict or not evaluates)
  data = describe_data(task, {split: task.features(split) for split in splits})
  before = json_files.find(os.path.join(output_dir, RESULTS_FILE)).get("data", {})
  check_data(output_dir, {"data": before}, data)

  # The answers of the candidates, and the choice of members.
  candidates = [{split: task.stored(run, split) for split in splits} for run in directories]

  def score(members: Sequence[Outputs]) -> float:
    value = task.evaluate(task.ensemble(members))[task.best_metric]
    text = format_metric(task.best_metric, value)
    logging.info("%d run(s): %s %s", len(members), task.best_metric, text)
    return value

  chosen: dict[int, Any] = dict.fromkeys(range(len(candidates)))
  scores_alone: list[Any] = [None] * len(candidates)
  chosen_on = "nothing: all runs"
  if evaluates:
    chosen, scores_alone = greedy([outputs["eval"] for outputs in candidates], score)
    chosen_on = "the evaluation data"

  # The ensemble's answers, and what is known of them.
  members = [candidates[number] for number in sorted(chosen)]
  answers = {split: task.ensemble([outputs[split] for outputs in members]) for split in splits}
  results = head(task, ", ".join(directories))
  results |= metrics_of(task, answers, [split for split in splits if split.startswith("eval")])
  if not task.has_one_set_of_predictions:
    data = before | data
  results["data"] = data
  results["chosen_on"] = chosen_on
  results["members"] = [
    {"directory": directories[number], "score_with_it": value} for number, value in chosen.items()
  ]
  results["candidates"] = [
    {"directory": directory, "score": value}
    for directory, value in zip(directories, scores_alone, strict=True)
  ]

  # The files, results.json last.
  files.makedirs(output_dir)
  record = {"identity": identity, "albert_tf": __version__}
  json_files.write(os.path.join(output_dir, run_directory.RUN_FILE), record)
  for split, outputs in answers.items():
    task.write_predictions(outputs, split, output_dir)
  json_files.write(os.path.join(output_dir, RESULTS_FILE), results)
  return results


def lines(results: Mapping[str, Any]) -> list[str]:
  """The lines that a command prints: the members and the metrics."""
  members = [f"member: {member['directory']}" for member in results["members"]]
  num_candidates = len(results["candidates"])
  title = f"{len(members)} of {num_candidates} runs, chosen on {results['chosen_on']}"
  return [title] + members + list(metric_lines(results))
