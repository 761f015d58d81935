"""Asks a question of the ALBERT paper again, on your text and at your scale: one study, one command, one table.

Every arm of a study is pretrained by the real commands, and compared on documents that none has seen. The same command
again goes on where it was; what is done is not done again. Without --input the text is this machine's documentation.

Example:
  python tpu_scripts/run_study.py --study=sentence_loss --scale=laptop --output_dir=lab/sentence_loss
  python tpu_scripts/run_study.py --study=sharing --scale=paper --input='corpus/*.txt' \
    --output_dir=gs://bucket/sharing --tpu=local --train_flags=--gradient_accumulation_steps=8 --data_dir=tasks
  python tpu_scripts/run_study.py --study=learning_curves --runs=run1,run2 --output_dir=curves
"""

from collections.abc import Mapping
import dataclasses
import os
import shlex
import sys
from typing import Any

from absl import flags
from child_commands import EXIT_STOPPED, ROOT, StoppedError, run_command

from albert_tf import commands, files
from albert_tf.errors import UserError
from albert_tf.settings import Settings, fields_of, setting
from albert_tf.studies.catalogue import STUDIES
from albert_tf.studies.plan import Plan
from albert_tf.studies.report import write_curves, write_report
from albert_tf.studies.study import SCALES, Study
from albert_tf.training.settings import DistributionConfig

STUDY_FILE = "study.json"
_VOCAB_SIZE = {"laptop": 4000, "paper": 30000}  # Section 4.1.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(Settings):
  """What is asked."""

  study: str = setting("sizes", help="A table or figure of the paper.", choices=tuple(STUDIES))
  scale: str = setting("laptop", help="Whose settings: recipes/studies/STUDY/SCALE.flags.", choices=SCALES)
  output_dir: str = setting("", help="Where all of it goes; local or gs://.")
  input: str = setting("", help="Text files: glob patterns with commas, quoted.")
  spm_model_file: str = setting("", help="A vocabulary that is there. Default: a new one.")
  seeds: tuple[int, ...] | None = setting(
    None, help="Runs of each arm. Default: the study's; laptop 1,2,3, paper 1.", minimum=0
  )
  arms: tuple[str, ...] = setting((), help="Of the study. Default: all.")
  runs: tuple[str, ...] = setting((), help="Of learning_curves: run directories.")
  data_dir: str = setting(
    "", help="Folders squad1, squad2, mnli, sst-2, race: every arm is fine-tuned on those that are there."
  )
  text_flags: str = setting("", help="Without --input: more flags of extract_installed_docs.py.")
  data_flags: str = setting("", help="More flags of create_pretraining_data.py.")
  train_flags: str = setting("", help="More flags of run_pretrain.py, for all arms: --name=value …")
  task_flags: str = setting("", help="More flags of the commands that fine-tune.")


commands.define_flags(Command)
commands.define_flags(DistributionConfig)


def _recipe(study: Study, scale: str, ending: str, more: str = "") -> tuple[str, ...]:
  """Flags of recipes/studies/STUDY/SCALE{ending}.flags, else of recipes/studies/, if there is one; then those given."""
  folder, name = ROOT / "recipes/studies", f"{scale}{ending}.flags"
  found = [path for path in (folder / study.name / name, folder / name) if path.exists()][:1]
  return tuple(commands.expand_flag_files([*(f"--flagfile={path}" for path in found), *shlex.split(more)]))


def _absolute(patterns: str) -> str:
  """Paths or patterns with commas as they are from any working directory."""
  return ",".join(files.abspath(part.strip()) for part in patterns.split(",") if part.strip())


def _plan(study: Study, command: Command) -> Plan:
  scale = command.scale
  if scale == "paper" and not command.input:
    raise UserError(
      "The paper's scale needs a text of gigabytes. Received: --scale=paper without --input. Name its files; the paper "
      "took BookCorpus and English Wikipedia, 16 GB."
    )
  if command.data_dir and not files.isdir(command.data_dir):
    raise UserError(f"--data_dir must be a directory. Received: {command.data_dir}, which is no directory.")
  device = [
    flags.FLAGS[field.flag] for field in fields_of(DistributionConfig) if flags.FLAGS[field.flag].present
  ]
  return Plan(
    study=study,
    scale=scale,
    arms=study.choose(command.arms, scale),
    seeds=command.seeds or (study.laptop_seeds if scale == "laptop" else (1,)),
    output_dir=files.abspath(command.output_dir),
    input=_absolute(command.input),
    spm_model_file=_absolute(command.spm_model_file),
    text_flags=("--max_megabytes=20", *_recipe(study, scale, "_text", command.text_flags)),
    vocab_flags=(f"--vocab_size={_VOCAB_SIZE[scale]}", *_recipe(study, scale, "_vocab")),
    data_flags=_recipe(study, scale, "_data", command.data_flags),
    train_flags=_recipe(study, scale, "", command.train_flags),
    device_flags=tuple(flag.serialize() for flag in device),
    data_dir=_absolute(command.data_dir),
    task_flags=tuple(shlex.split(command.task_flags)),
  )


def check_directory(output_dir: str, identity: Mapping[str, Any]) -> None:
  """Refuses a directory of anything but this study; notes whose a new one is."""
  path = os.path.join(output_dir, STUDY_FILE)
  if not files.exists(path):
    found = [name for name in files.listdir(output_dir) if not files.is_unfinished(name)]
    if found:
      raise UserError(
        f"A new study needs an empty or new output directory. Received: {output_dir}, which holds "
        f"{', '.join(found[:4])} and no {STUDY_FILE}. Choose another --output_dir."
      )
    files.makedirs(output_dir)
    files.write_json(path, identity)
  before = files.read_json(path)
  changed = [
    f"{key} {before.get(key)} → {value}" for key, value in identity.items() if before.get(key) != value
  ]
  if changed:
    raise UserError(
      f"An output directory holds one study. Received: {output_dir}, begun with other settings: "
      f"{'; '.join(changed)}. Give the settings it was begun with, or choose another --output_dir."
    )


def run_plan(plan: Plan) -> None:
  """Runs every command whose result is not there yet; each goes on by itself where it was stopped."""
  for command in plan.commands():
    if not command.is_done():
      run_command(f"[{command.name}]", command.words)
      if command.name.startswith(("pretraining", "probe", "tasks")):
        write_report(plan)


def main() -> int | None:
  command = commands.from_flags(Command)
  study = STUDIES[command.study]
  if not command.output_dir:
    raise UserError("A study needs its directory. Received: no --output_dir.")
  if not study.arms:
    if not command.runs:
      raise UserError("Learning curves are those of runs. Received: no --runs. Name them: --runs=RUN1,RUN2.")
    output_dir = files.abspath(command.output_dir)
    check_directory(output_dir, {"study": study.name})
    print(write_curves(study, [files.abspath(path) for path in command.runs], output_dir))
    return 0
  plan = _plan(study, command)
  os.chdir(ROOT)  # Commands and recipes are named from here.
  check_directory(plan.output_dir, plan.identity())
  try:
    run_plan(plan)
  except StoppedError:
    print("stopped by SIGTERM; the same command continues.", file=sys.stderr)
    return EXIT_STOPPED
  print(f"\n{write_report(plan)}\n{plan.output_dir}: table.md, {study.name}.png")
  return 0


if __name__ == "__main__":
  commands.run(main)
