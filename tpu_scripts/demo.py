"""The whole road: English text → vocabulary → TFRecords → pretraining → SavedModel → fill-mask.

Runs the real commands one after the other, on the documentation of the installed
Python packages, and ends with what the model has learned. `make demo` calls it.
"""

from collections.abc import Mapping, Sequence
import json
import os
import pathlib
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from typing import Any

from absl import app, flags

from albert_tf import files
from albert_tf.errors import UserError, exit_on_user_error
from albert_tf.records import Manifest

ROOT = pathlib.Path(__file__).resolve().parent.parent
_OUTPUT_DIR = flags.DEFINE_string(
  "output_dir", str(ROOT / ".demo"), "Where everything is written; an earlier demo is moved aside."
)
_MAX_MEGABYTES = flags.DEFINE_float("max_megabytes", 20.0, "How much documentation to take (10^6 bytes).")
_VOCAB_SIZE = flags.DEFINE_integer("vocab_size", 4000, "Tokens of the vocabulary.")
_MIN_RATIO = flags.DEFINE_float(
  "min_ratio",
  1.5,
  "The least success: held-out accuracy over that of always answering the most frequent token.",
)
_RECIPE = flags.DEFINE_string(
  "recipe", str(ROOT / "recipes/demo.flags"), "Flag file of the pretraining stage."
)

MARKER = "made_by_make_demo"
_DATA_FLAGS = (
  "--max_seq_length=64",
  "--max_predictions_per_seq=10",  # 15 % of 64.
  "--dupe_factor=5",  # As many examples as a few minutes of training see, so that few are seen twice.
  "--eval_fraction=0.02",
  "--random_seed=12345",
  "--num_shards=4",
)
_LAST = "Fill-mask"
_FOLDERS = ("text", "vocabulary", "records", "run")
# What the corpus is about: documentation.
SENTENCES = (
  "Returns a list of all the [MASK] in the directory.",
  "If the file does not [MASK], an error is raised.",
  "The default value of this argument is [MASK].",
)


def _short(path: pathlib.Path) -> str:
  """As a user in the checkout, where the stages run, would write it."""
  return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def stages(work: str, recipe: str) -> dict[str, list[str]]:
  """Title → command, in order; each reads what the one before it wrote."""
  text, records, run = f"{work}/text/*.txt", f"{work}/records", f"{work}/run"
  model = f"{work}/vocabulary/spm"
  return {
    "Text: the documentation on this machine": [
      "tfrecords_tools/extract_installed_docs.py",
      f"--output_dir={work}/text",
      f"--max_megabytes={_MAX_MEGABYTES.value}",
    ],
    "Vocabulary": [
      "tfrecords_tools/train_vocab.py",
      f"--input={text}",
      f"--model_prefix={model}",
      f"--vocab_size={_VOCAB_SIZE.value}",
    ],
    "TFRecords": [
      "tfrecords_tools/create_pretraining_data.py",
      f"--input={text}",
      f"--spm_model_file={model}.model",
      f"--output_dir={records}",
      *_DATA_FLAGS,
      f"--num_workers={os.cpu_count() or 1}",
    ],
    "Pretraining": [
      "tpu_scripts/run_pretrain.py",
      f"--flagfile={recipe}",
      f"--input_file={records}/train-*",
      f"--eval_input_file={records}/eval-*",
      f"--output_dir={run}",
    ],
    "SavedModel": [
      "tpu_scripts/export_saved_model.py",
      "--model=fill_mask",
      f"--init_checkpoint={run}",
      f"--output_dir={run}/saved_model",
      "--version=1",
    ],
    _LAST: [
      "tpu_scripts/fill_mask.py",
      f"--saved_model={run}/saved_model",
      *(f"--text={sentence}" for sentence in SENTENCES),
    ],
  }


def run_stage(number: int, total: int, title: str, command: Sequence[str], elapsed: float) -> str:
  """Runs one command, its output shown as it comes; that of the last one is returned instead."""
  print(f"\n[{number}/{total}] {title}   ({elapsed:.0f} s so far)", flush=True)
  print("  $ python " + " \\\n      ".join(map(shlex.quote, command)), flush=True)
  done = subprocess.run(
    [sys.executable, *command],
    cwd=ROOT,
    env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},  # What it says of absent GPUs reads like errors.
    check=False,
    stdout=subprocess.PIPE if title == _LAST else None,
    text=True,
  )
  if done.returncode:
    raise UserError(
      f"Every stage must succeed. Received: status {done.returncode} from stage {number} ({title}), "
      "whose message is above. Mend what it names, and start the demo again."
    )
  return done.stdout or ""


def start_afresh(work: pathlib.Path) -> None:
  """Moves the folder of an earlier demo aside, which replaces the one before it; never one that holds anything else."""
  if work.exists() and any(work.iterdir()) and not (work / MARKER).exists():
    raise UserError(
      f"The demo moves aside what its output directory holds, so it must be new, empty or an earlier demo's. "
      f"Received: {work}. Choose another --output_dir."
    )
  if (work / "run").exists():  # A trained model; else there is nothing that anybody would miss.
    earlier = work.with_name(f"{work.name}.previous")
    shutil.rmtree(earlier, ignore_errors=True)
    work.rename(earlier)
    print(f"The earlier demo is now in {_short(earlier)}.")
  shutil.rmtree(work, ignore_errors=True)
  files.makedirs(str(work))
  (work / MARKER).touch()


def read_metrics(path: pathlib.Path) -> tuple[dict[str, Any], float]:
  """The best held-out evaluation (its checkpoint is the one exported), and the median training rate."""
  rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
  evaluations = [row for row in rows if row["split"] == "eval"]
  rates = [row["examples_per_second"] for row in rows if row["split"] == "train"]
  if not evaluations or not rates:
    raise UserError(
      f"The recipe must train and evaluate at least once. Received: {path}, which reports neither."
    )
  best = max(evaluations, key=lambda row: (row["masked_lm_accuracy"], -row["masked_lm_loss"]))
  return best, statistics.median(rates)


def report(work: pathlib.Path, times: Mapping[str, float], answers: str) -> float:
  """Prints the closing table and the examples; returns accuracy over baseline."""
  manifest = Manifest.load(str(work / "records"))
  evaluation, rate = read_metrics(work / "run/metrics.jsonl")
  baseline = manifest.baseline
  share = (baseline.eval_share or baseline.train_share) if baseline else 0.0
  ratio = evaluation["masked_lm_accuracy"] / share if share else float("inf")
  rows = {
    "masked-LM accuracy": f"{evaluation['masked_lm_accuracy']:.1%}  ({ratio:.2f} times the baseline)",
    "always the most frequent token": f"{share:.1%}  ({baseline.piece if baseline else '?'!r})",
    "sentence-order accuracy": f"{evaluation['sentence_order_accuracy']:.1%}  (chance: 50 %)",
    "training speed": f"{rate:,.0f} examples/s of {manifest.max_seq_length} tokens",
    "examples, train and held out": " and ".join(f"{manifest.num_records(s):,}" for s in ("train", "eval")),
    "files written": "{} ({}) in {}".format(*_count(work), work),
    **{f"  {name}/": "{} files, {}".format(*_count(work / name)) for name in _FOLDERS},
    **{f"time: {title}": f"{seconds:.0f} s" for title, seconds in times.items()},
    "time in all": f"{sum(times.values()):.0f} s",
  }
  title = "What the model has learned, on documents it never saw"
  print(f"\n{title}\n{'-' * len(title)}")
  for name, value in rows.items():
    print(f"{name:<{max(map(len, rows))}}   {value}")
  print(f"\nFill-mask\n---------\n{answers.rstrip()}")
  return ratio


def _count(folder: pathlib.Path) -> tuple[int, str]:
  """Number of files below, and their megabytes."""
  sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file() and path.name != MARKER]
  return len(sizes), f"{sum(sizes) / 1e6:.1f} MB"


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"Unknown arguments: {' '.join(argv[1:])}")
  work = pathlib.Path(_OUTPUT_DIR.value).resolve()
  start_afresh(work)
  started, answers = time.monotonic(), ""
  times: dict[str, float] = {}
  road = stages(_short(work), _short(pathlib.Path(_RECIPE.value).resolve()))
  for number, (title, command) in enumerate(road.items(), 1):
    begun = time.monotonic()
    answers = run_stage(number, len(road), title, command, begun - started)
    times[title] = time.monotonic() - begun
  ratio = report(work, times, answers)
  if ratio < _MIN_RATIO.value:
    raise UserError(
      f"The model must reach {_MIN_RATIO.value} times the accuracy of the most frequent token. "
      f"Received: {ratio:.2f}. Look at {work}/run/curves.png; more steps in {_RECIPE.value} may help."
    )
  print(f"\nTry your own: {os.path.relpath(sys.executable)} tpu_scripts/fill_mask.py "
        f'--saved_model {os.path.relpath(work)}/run/saved_model --text "…[MASK]…"')  # fmt: skip


if __name__ == "__main__":
  app.run(exit_on_user_error(main))
