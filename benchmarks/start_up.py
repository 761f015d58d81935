"""What a person waits for before and beside the work itself: starts, one step, an export and its check.

Prints one JSON line: seconds by the clock and of the processor (all threads and child processes), the least of the
rounds, for this checkout and, in turn with it, for another one. The model is `--size`, untrained, with a vocabulary of
this machine's documentation; a run makes one update of 4 rows of 128.

Example:
  git worktree add /tmp/before HEAD~1
  python benchmarks/start_up.py --against=/tmp/before
"""

from collections.abc import Mapping, Sequence
import compileall
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any

from absl import flags
import common
import stages

from albert_tf.configs import named_sizes
from albert_tf.errors import UserError

_AGAINST = flags.DEFINE_string("against", "", "Another checkout of this project, measured in turn.")
_SIZE = flags.DEFINE_enum("size", "base", named_sizes(), "The model.")
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Measurements of each; the least counts.", lower_bound=1)
_ONLY = flags.DEFINE_list("only", [], "Rows to measure; those they need are made; empty: all.")

ROOT = pathlib.Path(__file__).resolve().parent.parent
HELP = ("run_pretrain", "run_glue", "export_saved_model", "check_saved_model")
Seconds = dict[str, list[float]]  # Name → by the clock, of the processor.


def commands(work: str) -> dict[str, list[str]]:
  """Row → script and arguments, in the order in which each needs what those before it have made."""
  run, served = f"{work}/run", f"{work}/served"
  table = [f"--train_file={work}/table.csv", f"--eval_file={work}/table.csv", "--text_columns=text"]
  one_step = ["--num_train_steps=1", "--train_batch_size=4", "--num_warmup_steps=0"]
  return {
    "pretraining": [
      "run_pretrain",
      f"--input_file={work}/records/train-*",
      f"--output_dir={run}",
      f"--size={_SIZE.value}",
      "--learning_rate=1e-4",
      *one_step,
    ],
    "fine_tuning": [
      "run_glue",
      "--task_name=custom",
      *table,
      "--label_column=label",
      f"--init_checkpoint={run}",
      f"--output_dir={work}/tuned",
      "--do_train",
      "--do_eval",
      "--max_seq_length=128",
      *one_step,
    ],
    "export": [
      "export_saved_model",
      "--model=fill_mask",
      f"--init_checkpoint={run}",
      f"--output_dir={served}",
    ],
    "check": ["check_saved_model", f"--saved_model={served}"],
    **{f"help of {name}": [name, "--help"] for name in HELP},
  }


def prepare(work: str) -> None:
  """Records and a table, by this checkout's tools."""
  documents = common.installed_documentation(work, megabytes=3)
  model = common.train_vocabulary(documents, work)
  text = os.path.join(work, "text.txt")
  common.write_lines(documents[:200], text)
  common.data_tool(
    "create_pretraining_data",
    f"--input={text}",
    f"--spm_model_file={model}",
    f"--output_dir={work}/records",
    "--max_seq_length=128",
    "--max_predictions_per_seq=20",
  )
  sentences = [
    sentence.replace(",", " ").replace('"', " ") for document in documents for sentence in document
  ]
  rows = [f"{sentence[:80]},{number % 2}" for number, sentence in enumerate(sentences[:32])]
  pathlib.Path(work, "table.csv").write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf-8")


def run(checkout: str, command: Sequence[str]) -> Seconds:
  """Seconds of a command of a checkout, and of its stages if it says them."""
  script, *arguments = command
  before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
  done = subprocess.run(
    [sys.executable, stages.__file__, os.path.join(checkout, f"tpu_scripts/{script}.py"), *arguments],
    env={**os.environ, "PYTHONPATH": checkout},
    stdout=subprocess.DEVNULL,
    stderr=subprocess.PIPE,
    text=True,
    errors="replace",
  )
  wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
  if done.returncode > 1 or (done.returncode and "--help" not in arguments):  # absl's --help ends with 1.
    raise RuntimeError(f"{script} of {checkout} ended with status {done.returncode}:\n{done.stderr[-2000:]}")
  cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
  found: Seconds = {"all": [wall, cpu]}
  for line in done.stderr.splitlines():
    if line.startswith(stages.MARK):
      name, *seconds = line.removeprefix(stages.MARK).split()
      found[name] = [float(value) for value in seconds]
  return found


def least(measured: Sequence[Seconds]) -> dict[str, dict[str, float]]:
  """The least of the rounds, by the clock and of the processor, each by itself."""
  return {
    name: {
      kind: round(min(seconds[name][place] for seconds in measured), 2)
      for place, kind in enumerate(("wall_s", "cpu_s"))
    }
    for name in measured[0]
  }


def ratios(sides: Mapping[str, Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
  """Before over here."""
  here, before = sides["here"], sides["before"]
  return {
    name: {kind: round(before[name][kind] / max(seconds[kind], 0.01), 2) for kind in seconds}
    for name, seconds in here.items()
  }


def benchmark() -> dict[str, Any]:
  sides = {"here": str(ROOT)} | ({"before": os.path.abspath(_AGAINST.value)} if _AGAINST.value else {})
  for checkout in sides.values():
    if not os.path.isdir(os.path.join(checkout, "tpu_scripts")):
      raise UserError(f"--against takes a checkout of this project. Received: {checkout}. See --help.")
    compileall.compile_dir(checkout, quiet=2)  # Python does so once for each side.
  with tempfile.TemporaryDirectory() as work:
    prepare(work)
    rows = commands(work)
    unknown = sorted(set(_ONLY.value) - set(rows))
    if unknown:
      raise UserError(f"--only takes {', '.join(rows)}. Received: {', '.join(unknown)}.")
    results = {}
    for row, command in rows.items():
      needed = not _ONLY.value or row in _ONLY.value
      if not needed and row not in ("pretraining", "export"):
        continue

      def once(checkout: str, command: Sequence[str] = command) -> Seconds:
        for argument in command:
          if argument.startswith("--output_dir="):
            shutil.rmtree(argument.removeprefix("--output_dir="), ignore_errors=True)
        return run(checkout, command)

      if not needed:
        once(str(ROOT))
      else:
        turns = {name: lambda checkout=checkout: once(checkout) for name, checkout in sides.items()}
        found = {name: least(m) for name, m in common.in_turn(turns, _ROUNDS.value).items()}
        results[row] = {**found, **({"before_over_here": ratios(found)} if len(found) > 1 else {})}
  return {"size": _SIZE.value, "cpu_count": os.cpu_count(), "rounds": _ROUNDS.value, "rows": results}


if __name__ == "__main__":
  common.run(benchmark)
