"""Fine-tunes one pretrained model on the five tasks of the paper's tables 2 to 8, and averages their scores.

Each task is the real command with its recipe, in a process of its own. Flags of fine-tuning that are given here are
given to all five, after the recipe, so they win. The same command again goes on: what is finished stays.

Example:
  python tpu_scripts/run_tasks.py --init_checkpoint=RUN --data_dir=tasks --output_dir=five_tasks --seeds=1,2,3
  python tpu_scripts/run_tasks.py --init_checkpoint=RUN --data_dir=tasks --output_dir=quick --tasks=mnli,sst-2 \
    --max_seq_length=128 --num_train_steps=500 --learning_rate=1e-4
"""

from collections.abc import Mapping, Sequence
import json
import os
import sys
from typing import Any

from absl import app, flags
from child_commands import EXIT_STOPPED, StoppedError, run_child
import device_flags
import finetuning_flags
from flag_settings import expand_flag_files, parse_flags

from albert_tf import files
from albert_tf.errors import UserError, exit_on_user_error
from albert_tf.finetuning import five_tasks
from albert_tf.finetuning.five_tasks import TASKS, Task

_SCRIPTS = os.path.dirname(files.abspath(__file__))
_RECIPES = os.path.join(os.path.dirname(_SCRIPTS), "recipes")
TASKS_FILE = "tasks.json"  # Written last: a directory that has it is finished.
FINISHED_FILE = "finished_tasks.json"

flags.adopt_module_key_flags(finetuning_flags)  # --help shows them too.
_DATA_DIR = flags.DEFINE_string(
  "data_dir", None, f"Holds a folder a task: {', '.join(TASKS)}; a missing one is left out.", required=True
)
_TASKS = flags.DEFINE_list("tasks", list(TASKS), "Which of the five.")
# Lengths, of the commands that have them. Default: the recipes'.
_LENGTHS: dict[str, tuple[str, ...]] = {
  "max_seq_length": ("run_squad.py", "run_glue.py", "run_race.py"),
  "max_query_length": ("run_squad.py",),
  "doc_stride": ("run_squad.py",),
  "max_answer_length": ("run_squad.py",),
  "max_qa_length": ("run_race.py",),
}
for _name, _commands in _LENGTHS.items():
  flags.DEFINE_integer(_name, None, f"Of {', '.join(_commands)}. Default: the recipe's.")

_OWN = ("init_checkpoint", "output_dir")
_NOT_IDENTITY = ("progress", "eval_batch_size", "predict_batch_size")


# ------------------------------------------------------------------ what is to be done


def _given(module: Any) -> list[str]:
  """The flags of a module that were given, as a command takes them."""
  every = flags.FLAGS.get_flags_for_module(module)
  return [flag.serialize() for flag in every if flag.present and flag.name not in _OWN]


def training_flags(task: Task) -> list[str]:
  """The recipe's flags, then those given here; a warm-up belongs to the number of updates it was given with."""
  lengths = [flags.FLAGS[name] for name, commands in _LENGTHS.items() if task.command in commands]
  given = [*_given(finetuning_flags), *(flag.serialize() for flag in lengths if flag.present)]
  steps, epochs, warmup = (
    flags.FLAGS[name].present for name in ("num_train_steps", "num_train_epochs", "num_warmup_steps")
  )
  if epochs and not steps:
    given.append("--num_train_steps=0")
  if (epochs or steps) and not warmup:
    given.append("--num_warmup_steps=-1")
  return [*expand_flag_files([f"--flagfile={os.path.join(_RECIPES, task.recipe)}"]), "--noexport", *given]


def command_line(task: Task, folder: str, output_dir: str) -> list[str]:
  """The task's command, without the interpreter."""
  data = [
    f"--{name}={folder if name == 'data_dir' else os.path.join(folder, *names)}"
    for name, names in task.files.items()
  ]
  return [
    os.path.join(_SCRIPTS, task.command),
    *training_flags(task),
    *_given(device_flags),
    *data,
    f"--init_checkpoint={flags.FLAGS.init_checkpoint}",
    f"--output_dir={output_dir}",
  ]


# ------------------------------------------------------------------ what a result belongs to


def identity(task: Task, folder: str, weights: str) -> dict[str, str]:
  """What makes a finished task this command's."""
  settings = [
    f for f in training_flags(task) if f.lstrip("-").removeprefix("no").split("=")[0] not in _NOT_IDENTITY
  ]
  return {"weights": weights, "data": five_tasks.data_digest(task, folder), "flags": " ".join(settings)}


# ------------------------------------------------------------------ the loop


def _read_records(output_dir: str) -> dict[str, dict[str, Any]]:
  path = os.path.join(output_dir, FINISHED_FILE)
  if not files.exists(path):
    return {}
  with files.open_binary(path) as stream:
    return dict(json.load(stream))


def _write(output_dir: str, name: str, content: Mapping[str, Any]) -> None:
  files.makedirs(output_dir)
  with files.atomic_writer(os.path.join(output_dir, name), "w") as stream:
    stream.write(json.dumps(content, indent=2) + "\n")


def _check_same(name: str, before: Mapping[str, str], now: Mapping[str, str], output_dir: str) -> None:
  changed = [key for key, value in now.items() if before.get(key) != value]
  if changed:
    raise UserError(
      f"An output directory holds one table: the same weights, data and flags. Received: {output_dir}, where {name} "
      f"was made with other {' and '.join(changed)}. Choose a new --output_dir."
    )


def run_all(names: Sequence[str], *, data_dir: str, output_dir: str) -> dict[str, Any]:
  """Runs what is not finished, and returns what tasks.json holds."""
  folders, left_out = five_tasks.choose_folders(names, data_dir)
  weights, records = five_tasks.weights_digest(flags.FLAGS.init_checkpoint), _read_records(output_dir)
  identities = {name: identity(TASKS[name], folder, weights) for name, folder in folders.items()}
  for (
    name,
    record,
  ) in records.items():  # Before the first one is run; of those not asked for now the weights alone.
    _check_same(name, record["identity"], identities.get(name, {"weights": weights}), output_dir)
  for name, reason in left_out.items():
    print(f"{name} is left out: {reason}", flush=True)
  for number, (name, folder) in enumerate(folders.items(), 1):
    place = f"[{number}/{len(folders)}] {name}"
    if name in records:
      print(f"{place}: finished earlier", flush=True)
      continue
    print(f"{place}: {TASKS[name].command}, {len(folders) - number} more after it", flush=True)
    directory = os.path.join(output_dir, name)
    status = run_child(command_line(TASKS[name], folder, directory))
    if status:
      raise UserError(
        f"Every task must succeed. Received: status {status} from {name}, whose words are above. Mend what they name; "
        "the same command goes on."
      )
    records[name] = {"metrics": five_tasks.metrics_of(TASKS[name], directory), "identity": identities[name]}
    _write(output_dir, FINISHED_FILE, records)
  results = five_tasks.summary(records, left_out)
  _write(output_dir, TASKS_FILE, results)
  return results


def main(argv: Sequence[str]) -> int | None:
  if len(argv) > 1:
    raise UserError(
      f"All arguments are flags. Received: {' '.join(argv[1:])}. Put values behind --name=, in quotes."
    )
  output_dir = flags.FLAGS.output_dir
  try:
    results = run_all(_TASKS.value, data_dir=_DATA_DIR.value, output_dir=output_dir)
  except StoppedError:
    print("stopped by SIGTERM; the same command continues.", file=sys.stderr)
    return EXIT_STOPPED
  print(*five_tasks.lines(results), f"results: {os.path.join(output_dir, TASKS_FILE)}", sep="\n")
  return 0


if __name__ == "__main__":
  app.run(exit_on_user_error(main), flags_parser=parse_flags)
