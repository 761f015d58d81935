"""Asks a question of the ALBERT paper again, on your text and at your scale: one study, one command, one table.

Every arm of a study is pretrained by the real commands, and compared on documents that none has seen. The same command
again goes on where it was; what is done is not done again. Without --input the text is this machine's documentation.

Example:
  python tpu_scripts/run_study.py --study=sentence_loss --scale=laptop --output_dir=lab/sentence_loss
  python tpu_scripts/run_study.py --study=sharing --scale=paper --input='corpus/*.txt' \
    --output_dir=gs://bucket/sharing --tpu=local --train_flags=--gradient_accumulation_steps=8 --data_dir=tasks
  python tpu_scripts/run_study.py --study=learning_curves --runs=run1,run2 --output_dir=curves
"""

from collections.abc import Mapping, Sequence
import contextlib
import os
import pathlib
import shlex
import sys
import tempfile

from absl import app, flags
from child_commands import EXIT_STOPPED, StoppedError, run_child, run_children
import device_flags
from flag_settings import expand_flag_files, parse_flags

from albert_tf import doctor, files
from albert_tf.errors import UserError, exit_on_user_error
from albert_tf.studies.catalogue import STUDIES, find_study
from albert_tf.studies.driver import check_directory, run_plan
from albert_tf.studies.memory import check_memory
from albert_tf.studies.plan import Plan
from albert_tf.studies.report import write_curves, write_report
from albert_tf.studies.stage import Stage
from albert_tf.studies.study import SCALES, Study, last_of_each

ROOT = pathlib.Path(__file__).resolve().parent.parent
_SHOWN_OUTPUT = 4000  # Bytes, of a command that has failed unseen.
_VOCAB_SIZE = {"laptop": 4000, "paper": 30000}  # Section 4.1.

flags.adopt_module_key_flags(device_flags)  # --help shows them too.
_STUDY = flags.DEFINE_string("study", None, f"One of {', '.join(STUDIES)}.", required=True)
_SCALE = flags.DEFINE_enum("scale", "laptop", SCALES, "Whose settings: recipes/studies/STUDY/SCALE.flags.")
_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Where all of it goes; local or gs://.", required=True)
_INPUT = flags.DEFINE_string("input", "", "Text files: glob patterns with commas, quoted.")
_TEXT_FLAGS = flags.DEFINE_string(
  "text_flags", "", "Without --input: more flags of extract_installed_docs.py."
)
_SPM_MODEL_FILE = flags.DEFINE_string("spm_model_file", "", "A vocabulary that is there. Default: a new one.")
_SEEDS = flags.DEFINE_list("seeds", [], "Runs of each arm. Default: the study's; laptop 1,2,3, paper 1.")
_ARMS = flags.DEFINE_list("arms", [], "Of the study. Default: all.")
_RUNS = flags.DEFINE_list("runs", [], "Of learning_curves: run directories.")
_DATA_DIR = flags.DEFINE_string(
  "data_dir", "", "Folders of the tasks, as run_tasks.py takes them. Default: no fine-tuning."
)
_TRAIN_FLAGS = flags.DEFINE_string("train_flags", "", "More flags of run_pretrain.py, for all arms.")
_DATA_FLAGS = flags.DEFINE_string("data_flags", "", "More flags of create_pretraining_data.py.")
_TASK_FLAGS = flags.DEFINE_string("task_flags", "", "More flags of run_tasks.py.")
_RUNS_AT_ONCE = flags.DEFINE_integer(
  "runs_at_once", 1, "Runs side by side that share the processor's cores.", lower_bound=1
)
_COMPILER_PYTHON = flags.DEFINE_string(
  "compiler_python",
  "",
  "An interpreter that has jax and libtpu, for the speed of sizes. Default: by formula.",
)


def _recipe(study: Study, ending: str, more: str = "") -> tuple[str, ...]:
  """Flags of recipes/studies/STUDY/SCALE{ending}.flags, else of recipes/studies/, if there is one; then those given."""
  folder, name = ROOT / "recipes/studies", f"{_SCALE.value}{ending}.flags"
  found = [path for path in (folder / study.name / name, folder / name) if files.exists(str(path))][:1]
  return tuple(expand_flag_files([*(f"--flagfile={path}" for path in found), *_words(more)]))


def _words(text: str) -> list[str]:
  """Flags of one text, each as `--name=value`, however the value was given."""
  words: list[str] = []
  for word in shlex.split(text):
    if word.startswith("-"):
      words.append(word)
    elif words and "=" not in words[-1]:
      words[-1] += f"={word}"
    else:
      raise UserError(f"More flags are given as one text of --name=value. Received: {word!r} in {text!r}.")
  return words


def _absolute(patterns: str) -> str:
  """Paths or patterns with commas as they are from any working directory."""
  return ",".join(files.abspath(part.strip()) for part in patterns.split(",") if part.strip())


def _seeds(study: Study) -> tuple[int, ...]:
  if not _SEEDS.value:
    return study.seeds[_SCALE.value]
  if not all(map(str.isdecimal, _SEEDS.value)) or len(set(map(int, _SEEDS.value))) < len(_SEEDS.value):
    raise UserError(
      f"Seeds are different whole numbers. Received: --seeds={','.join(_SEEDS.value)}. For example --seeds=1,2,3."
    )
  return tuple(map(int, _SEEDS.value))


def _plan(study: Study) -> Plan:
  if _SCALE.value == "paper" and not _INPUT.value:
    raise UserError(
      "The paper's scale needs a text of gigabytes. Received: --scale=paper without --input. Name its files; the paper "
      "took BookCorpus and English Wikipedia, 16 GB."
    )
  if _DATA_DIR.value and not files.isdir(_DATA_DIR.value):
    raise UserError(
      f"--data_dir holds a folder for each task. Received: {_DATA_DIR.value}, which is no directory. Leave it out to "
      "go without fine-tuning."
    )
  if _RUNS_AT_ONCE.value > 1 and (flags.FLAGS.tpu or doctor.has_gpu()):
    raise UserError(
      "Runs side by side share a processor's cores; a TPU or GPU is for one. Received: "
      f"--runs_at_once={_RUNS_AT_ONCE.value}. Leave it out; for several GPUs start a study on each, "
      "with CUDA_VISIBLE_DEVICES and other --arms."
    )
  device = [flag for flag in flags.FLAGS.get_flags_for_module(device_flags) if flag.present]
  compiler = _COMPILER_PYTHON.value
  compiling = ("--shallow", "--max_compiles=2", "--nocheck_largest", f"--compiler_python={compiler}")
  return Plan(
    study=study,
    scale=_SCALE.value,
    arms=study.choose(_ARMS.value, _SCALE.value),
    seeds=_seeds(study),
    output_dir=files.abspath(_OUTPUT_DIR.value),
    input=_absolute(_INPUT.value),
    text_flags=last_of_each(["--max_megabytes=20", *_recipe(study, "_text", _TEXT_FLAGS.value)]),
    spm_model_file=_absolute(_SPM_MODEL_FILE.value),
    vocab_flags=last_of_each([f"--vocab_size={_VOCAB_SIZE[_SCALE.value]}", *_recipe(study, "_vocab")]),
    data_flags=_recipe(study, "_data", _DATA_FLAGS.value),
    train_flags=_recipe(study, "", _TRAIN_FLAGS.value),
    device_flags=tuple(flag.serialize() for flag in device),
    data_dir=_absolute(_DATA_DIR.value),
    task_flags=tuple(shlex.split(_TASK_FLAGS.value)),
    num_workers=os.cpu_count() or 1,
    tpu_step_flags=compiling if compiler else ("--estimate_only",),
  )


def _check_flags(plan: Plan) -> None:
  """Refuses a flag that its command does not know, before hours of work."""
  first_of_kind = {stage.kind: stage.command for stage in reversed(plan.stages()) if stage.command}
  for kind, command in first_of_kind.items():
    if run_child([*command, "--only_check_args"]):
      raise UserError(
        f"--text_flags, --data_flags, --train_flags and --task_flags are those of the commands. Received: flags that "
        f"{command[0]} ({kind}) does not take; its message is above. See its --help."
      )


def run_commands(commands: Mapping[str, Sequence[str]]) -> None:
  """Runs commands side by side, and says which; of several only the first one's output is shown."""
  for title, command in commands.items():
    print(f"\n[{title}]\n  $ python " + " \\\n      ".join(map(shlex.quote, command)), flush=True)
  # What TensorFlow says of absent GPUs reads like errors.
  environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}
  if len(commands) > 1:
    cores = max(1, (os.cpu_count() or 1) // len(commands))
    environment |= dict.fromkeys(("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS"), str(cores))
  with contextlib.ExitStack() as stack:
    quiet = [stack.enter_context(tempfile.TemporaryFile()) for _ in list(commands)[1:]]
    place, status = run_children(list(commands.values()), environment=environment, quiet=quiet)
    if status:
      if place:
        quiet[place - 1].seek(0)
        sys.stderr.write(quiet[place - 1].read()[-_SHOWN_OUTPUT:].decode(errors="replace"))
      raise UserError(
        f"Every command of a study must succeed. Received: status {status} from {list(commands)[place]}, whose message "
        "is above. Mend what it names; the same command then goes on from there."
      )


def _say(text: str) -> None:
  print(f"\n{text}", flush=True)


@exit_on_user_error
def main(argv: Sequence[str]) -> int | None:
  if len(argv) > 1:
    raise UserError(f"All arguments are flags. Received: {' '.join(argv[1:])}. Quote patterns.")
  study = find_study(_STUDY.value)
  if not study.arms:
    _say(write_curves(study, [files.abspath(path) for path in _RUNS.value], files.abspath(_OUTPUT_DIR.value)))
    return 0
  plan = _plan(study)
  os.chdir(ROOT)  # Commands and recipes are named from here.
  check_memory(plan, None if doctor.has_gpu() else doctor.available_memory())  # A GPU has its own.
  _check_flags(plan)
  check_directory(plan)

  def report(stage: Stage) -> None:
    if stage.name.endswith(tuple(f"seed-{seed}" for seed in plan.seeds)):
      write_report(plan)

  try:
    run_plan(plan, run=run_commands, notice=_say, after=report, at_once=_RUNS_AT_ONCE.value)
  except StoppedError:
    print("stopped by SIGTERM; the same command continues.", file=sys.stderr)
    return EXIT_STOPPED
  _say(write_report(plan))
  print(f"{plan.output_dir}: table.md, table.csv, table.json, {study.name}.png")
  return 0


if __name__ == "__main__":
  app.run(main, flags_parser=parse_flags)
