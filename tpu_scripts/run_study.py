"""Repeats a study of the ALBERT paper on your text and at your scale, and writes its table.

The real commands pretrain each arm of a study, and compare the arms on held-out documents. The same command continues
a stopped study. Without --input, the text is the documentation of the installed Python packages.

Example:
  python tpu_scripts/run_study.py --study=sentence_loss --scale=laptop --output_dir=lab/sentence_loss
  python tpu_scripts/run_study.py --study=sharing --scale=paper --input='corpus/*.txt' \
    --output_dir=gs://bucket/sharing --tpu=local --train_flags=--gradient_accumulation_steps=8 --data_dir=tasks
"""

import dataclasses
import os
import shlex

from absl import flags
from child_commands import ROOT, run_command

from albert_tf import files, json_files
from albert_tf.cli import commands
from albert_tf.errors import StoppedError, UserError
from albert_tf.runs.settings import DistributionConfig
from albert_tf.settings import differences, fields_of
from albert_tf.studies.plan import StudyPlan
from albert_tf.studies.report import write_report

commands.define_flags(StudyPlan)
commands.define_flags(DistributionConfig)


def _plan() -> StudyPlan:
  """The plan of the flags, with the study's recipes and absolute paths."""
  plan = commands.from_flags(StudyPlan)
  if plan.scale == "paper" and not plan.input:
    raise UserError(
      "The paper's scale needs a text of gigabytes (BookCorpus and Wikipedia). Received: no --input."
    )
  if plan.data_dir and not files.isdir(plan.data_dir):
    raise UserError(
      f"--data_dir must be a directory. Received: {plan.data_dir}, which is no directory."
    )
  changes = {}
  for name in ("text", "vocab", "data", "train"):
    recipe = f"{plan.scale}_{name}.flags" if name != "train" else f"{plan.scale}.flags"
    folders = (ROOT / "recipes/studies" / plan.study, ROOT / "recipes/studies")
    found = [f"--flagfile={folder / recipe}" for folder in folders if (folder / recipe).exists()][
      :1
    ]
    given = shlex.split(getattr(plan, f"{name}_flags"))
    changes[f"{name}_flags"] = shlex.join(commands.expand_flag_files([*found, *given]))
  for name in ("output_dir", "input", "spm_model_file", "data_dir"):
    paths = [path.strip() for path in getattr(plan, name).split(",") if path.strip()]
    changes[name] = ",".join(map(files.abspath, paths))
  devices = [flags.FLAGS[field.flag] for field in fields_of(DistributionConfig)]
  changes["device_flags"] = " ".join(flag.serialize() for flag in devices if flag.present)
  return dataclasses.replace(plan, **changes)


def _check_directory(plan: StudyPlan) -> None:
  """Refuses a directory of anything but this study; writes the study's identity."""
  path, identity = plan.path("study.json"), plan.identity()
  before = (
    json_files.read(path)
    if files.exists(path)
    else {}
    if files.listdir(plan.output_dir)
    else identity
  )
  changed = differences(before, identity)
  if changed:
    raise UserError(
      f"An output directory holds one study, or nothing yet. Received: {plan.output_dir}, which holds another: "
      f"{'; '.join(changed)}. Give the settings it was begun with, or choose another --output_dir."
    )
  files.makedirs(plan.output_dir)
  json_files.write(path, identity)


def main() -> None:
  plan = _plan()
  plan.chosen_arms()  # Unknown ones are refused before anything is written.
  os.chdir(ROOT)  # Commands and recipes have paths relative to it.
  _check_directory(plan)
  try:
    for name, words in plan.commands():
      done = plan.path("done", name.replace("/", "_"))
      if not files.exists(done):
        run_command(f"[{name}]", words)  # It goes on by itself where it was stopped.
        files.makedirs(plan.path("done"))
        files.write_text(done, "")
        write_report(plan)
  except StoppedError as stop:
    raise StoppedError("stopped by SIGTERM; the same command continues.") from stop
  print(f"\n{write_report(plan)}\n{plan.output_dir}: table.md, {plan.study}.png")


if __name__ == "__main__":
  commands.run(main)
