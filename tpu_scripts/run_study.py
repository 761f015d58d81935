"""Repeats a study of the ALBERT paper on your text and at your scale, and writes its table.

The real commands pretrain each arm of a study, and compare the arms on held-out documents. The same
command continues a stopped study. Without --input, the text is the documentation of the installed
Python packages.

Example:
  python tpu_scripts/run_study.py --study=sentence_loss --scale=laptop --output_dir=lab/sentence_loss
  python tpu_scripts/run_study.py --study=sharing --scale=paper --input='corpus/*.txt' \
    --output_dir=gs://bucket/sharing --tpu=local --train_flags=--gradient_accumulation_steps=8 --data_dir=tasks
"""

import dataclasses
import os
import shlex

from child_commands import ROOT, run_command

from albert_tf import files, json_files
from albert_tf.cli import commands
from albert_tf.errors import StoppedError, UserError
from albert_tf.runs.settings import DistributionConfig
from albert_tf.settings import differences
from albert_tf.studies.plan import StudyPlan
from albert_tf.studies.report import write_report

commands.define_flags(StudyPlan, DistributionConfig)


def _plan() -> StudyPlan:
  """The plan of the flags, with the study's recipes and absolute paths."""
  plan = commands.from_flags(StudyPlan)
  if plan.scale == "paper" and not plan.input:
    raise UserError(
      "The paper's scale needs a text of gigabytes (BookCorpus and Wikipedia). "
      "Received: no --input."
    )
  if plan.data_dir and not files.isdir(plan.data_dir):
    raise UserError(
      f"--data_dir must be a directory. Received: {plan.data_dir}, which is no directory."
    )
  changes = {}
  for step in ("text", "vocab", "data", "train"):
    step_flags = _recipe(plan, step)
    if step == "train":
      # After the recipe: the last of two equal flags counts.
      step_flags += shlex.split(plan.train_flags)
    changes[f"{step}_flags"] = shlex.join(commands.expand_flag_files(step_flags))
  # The commands run in the checkout, and not where the study was started.
  for name in ("output_dir", "input", "spm_model_file", "data_dir"):
    paths = [path.strip() for path in getattr(plan, name).split(",")]
    changes[name] = ",".join(files.abspath(path) for path in paths if path)
  changes["device_flags"] = " ".join(commands.given_arguments(DistributionConfig))
  return dataclasses.replace(plan, **changes)


def _recipe(plan: StudyPlan, step: str) -> list[str]:
  """The flag of a step's recipe: the study's own, else that of all studies, else none."""
  recipe = f"{plan.scale}_{step}.flags"
  if step == "train":
    recipe = f"{plan.scale}.flags"
  studies = ROOT / "recipes/studies"
  for path in (studies / plan.study / recipe, studies / recipe):
    if path.exists():
      return [f"--flagfile={path}"]
  return []


def _check_directory(plan: StudyPlan) -> None:
  """Refuses a directory of anything but this study; writes the study's identity."""
  path = plan.path("study.json")
  identity = plan.identity()
  previous = json_files.find(path)
  # Without the file, the directory may hold something else.
  if not previous and not files.listdir(plan.output_dir):
    previous = identity
  changes = differences(previous, identity)
  if changes:
    raise UserError(
      "An output directory holds one study, or nothing yet. Received: "
      f"{plan.output_dir}, which holds another: {'; '.join(changes)}. "
      "Give the settings it was begun with, or choose another --output_dir."
    )
  files.makedirs(plan.output_dir)
  json_files.write(path, identity)


def main() -> None:
  plan = _plan()
  # Unknown arms are refused before anything is written.
  plan.chosen_arms()
  # Commands and recipes have paths relative to it.
  os.chdir(ROOT)
  _check_directory(plan)
  for path, fields in plan.model_files().items():
    files.makedirs(os.path.dirname(path))
    json_files.write(path, fields)
  try:
    for name, command in plan.commands():
      mark = plan.path("done", name.replace("/", "_"))
      if files.exists(mark):
        continue
      # It goes on by itself where it was stopped.
      run_command(f"[{name}]", command)
      files.makedirs(plan.path("done"))
      files.write_text(mark, "")
      # A table for those who look in between.
      write_report(plan)
  except StoppedError as stop:
    raise StoppedError("stopped by SIGTERM; the same command continues.") from stop
  print(f"\n{write_report(plan)}\n{plan.output_dir}: table.md, {plan.study}.png")


if __name__ == "__main__":
  commands.run(main)
