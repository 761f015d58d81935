"""The whole road: English text → vocabulary → TFRecords → pretraining → SavedModel → fill-mask.

Runs the real commands one after the other, on the documentation of the installed
Python packages, and ends with what the model has learned. `make demo` calls it.
"""

from collections.abc import Sequence
import dataclasses
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
  "output_dir", str(ROOT / ".demo"), "Where everything is written; starts afresh."
)
_MAX_MEGABYTES = flags.DEFINE_float("max_megabytes", 20.0, "How much documentation to take (10^6 bytes).")
_VOCAB_SIZE = flags.DEFINE_integer("vocab_size", 4000, "Pieces of the vocabulary.")
_MIN_RATIO = flags.DEFINE_float(
  "min_ratio",
  1.5,
  "The least success: held-out accuracy over that of always answering the most frequent piece.",
)
_RECIPE = flags.DEFINE_string(
  "recipe", str(ROOT / "recipes/demo.flags"), "Flag file of the pretraining stage."
)

MARKER = "made_by_make_demo"
MAX_SEQ_LENGTH = 64
MAX_PREDICTIONS_PER_SEQ = 10  # 15 % of 64.
DUPE_FACTOR = 5  # As many examples as a few minutes of training see, so that few are seen twice.
EVAL_FRACTION = 0.02
# What the corpus is about: documentation.
SENTENCES = (
  "Returns a list of all the [MASK] in the directory.",
  "If the file does not [MASK], an error is raised.",
  "The default value of this argument is [MASK].",
)


@dataclasses.dataclass(frozen=True)
class Stage:
  """One command of the road."""

  title: str
  command: tuple[str, ...]
  quiet: bool = False


def stages(work: pathlib.Path, recipe: str) -> list[Stage]:
  """The commands, in order; each reads what the one before it wrote."""
  text, records, run = f"{work}/text/*.txt", f"{work}/records", f"{work}/run"
  model = f"{work}/vocabulary/spm"
  data_flags = {
    "input": text,
    "spm_model_file": f"{model}.model",
    "output_dir": records,
    "max_seq_length": MAX_SEQ_LENGTH,
    "max_predictions_per_seq": MAX_PREDICTIONS_PER_SEQ,
    "dupe_factor": DUPE_FACTOR,
    "eval_fraction": EVAL_FRACTION,
    "random_seed": 12345,
    "num_workers": os.cpu_count() or 1,
    "num_shards": 4,
  }
  train_flags = {
    "flagfile": recipe,
    "input_file": f"{records}/train-*",
    "eval_input_file": f"{records}/eval-*",
    "output_dir": run,
  }
  export_flags = {
    "model": "fill_mask",
    "init_checkpoint": run,
    "output_dir": f"{run}/saved_model",
    "version": 1,
  }
  return [
    Stage(
      "Text: the documentation on this machine",
      command(
        "tfrecords_tools/extract_installed_docs.py",
        output_dir=f"{work}/text",
        max_megabytes=_MAX_MEGABYTES.value,
      ),
    ),
    Stage(
      "Vocabulary",
      command("tfrecords_tools/train_vocab.py", input=text, model_prefix=model, vocab_size=_VOCAB_SIZE.value),
    ),
    Stage("TFRecords", command("tfrecords_tools/create_pretraining_data.py", **data_flags)),
    Stage("Pretraining", command("tpu_scripts/run_pretrain.py", **train_flags)),
    Stage("SavedModel", command("tpu_scripts/export_saved_model.py", **export_flags)),
    Stage(
      "Fill-mask",
      (
        *command("tpu_scripts/fill_mask.py", saved_model=f"{run}/saved_model"),
        *(f"--text={s}" for s in SENTENCES),
      ),
      quiet=True,
    ),
  ]


def command(script: str, **values: Any) -> tuple[str, ...]:
  return (script, *(f"--{name}={value}" for name, value in values.items()))


def run_stage(number: int, total: int, stage: Stage, started: float) -> str:
  """Runs one command, its output shown as it comes; a quiet one's is returned instead."""
  elapsed = time.monotonic() - started
  print(f"\n[{number}/{total}] {stage.title}   ({elapsed:.0f} s so far)", flush=True)
  print("  $ python " + " \\\n      ".join(shlex.quote(part) for part in stage.command), flush=True)
  environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}  # What it says of absent GPUs reads like errors.
  done = subprocess.run(
    [sys.executable, *stage.command],
    cwd=ROOT,
    env=environment,
    check=False,
    stdout=subprocess.PIPE if stage.quiet else None,
    text=True,
  )
  if done.returncode:
    raise UserError(
      f"Every stage must succeed. Received: status {done.returncode} from stage {number} ({stage.title}), "
      "whose message is above. Mend what it names, and start the demo again."
    )
  return done.stdout or ""


def start_afresh(work: pathlib.Path) -> None:
  """Empties the folder of an earlier demo, and never one that holds anything else."""
  if work.exists() and any(work.iterdir()) and not (work / MARKER).exists():
    raise UserError(
      f"The demo removes what its output directory holds, so it must be new, empty or an earlier demo's. "
      f"Received: {work}. Choose another --output_dir."
    )
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
  return max(evaluations, key=lambda row: row["masked_lm_accuracy"]), statistics.median(rates)


def print_table(title: str, rows: Sequence[tuple[str, str]]) -> None:
  width = max(len(name) for name, _ in rows)
  print(f"\n{title}\n{'-' * len(title)}")
  for name, value in rows:
    print(f"{name:<{width}}   {value}")


def report(work: pathlib.Path, times: Sequence[tuple[str, float]], answers: str) -> float:
  """Prints the closing table and the examples; returns accuracy over baseline."""
  manifest = Manifest.load(str(work / "records"))
  evaluation, rate = read_metrics(work / "run/metrics.jsonl")
  baseline = manifest.baseline
  share = (baseline.eval_share or baseline.train_share) if baseline else 0.0
  ratio = evaluation["masked_lm_accuracy"] / share if share else float("inf")
  written = [path for path in work.rglob("*") if path.is_file() and path.name != MARKER]
  folders = ("text", "vocabulary", "records", "run")
  print_table(
    "What the model has learned, on documents it never saw",
    [
      ("masked-LM accuracy", f"{evaluation['masked_lm_accuracy']:.1%}  ({ratio:.2f} times the baseline)"),
      ("always the most frequent piece", f"{share:.1%}  ({baseline.piece if baseline else '?'!r})"),
      ("sentence-order accuracy", f"{evaluation['sentence_order_accuracy']:.1%}  (chance: 50 %)"),
      ("training speed", f"{rate:,.0f} examples/s of {manifest.max_seq_length} pieces"),
      (
        "examples, train and held out",
        f"{manifest.num_records('train'):,} and {manifest.num_records('eval'):,}",
      ),
      ("files written", f"{len(written)} ({_megabytes(written)}) in {work}"),
      *((f"  {name}/", _folder(work / name)) for name in folders),
      *((f"time: {title}", f"{seconds:.0f} s") for title, seconds in times),
      ("time in all", f"{sum(seconds for _, seconds in times):.0f} s"),
    ],
  )
  print(f"\nFill-mask\n---------\n{answers.rstrip()}")
  return ratio


def _folder(path: pathlib.Path) -> str:
  inside = [file for file in path.rglob("*") if file.is_file()]
  return f"{len(inside)} files, {_megabytes(inside)}"


def _megabytes(paths: Sequence[pathlib.Path]) -> str:
  return f"{sum(path.stat().st_size for path in paths) / 1e6:.1f} MB"


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"Unknown arguments: {' '.join(argv[1:])}")
  work = pathlib.Path(_OUTPUT_DIR.value).resolve()
  start_afresh(work)
  started, answers = time.monotonic(), ""
  times: list[tuple[str, float]] = []
  road = stages(work, _RECIPE.value)
  for number, stage in enumerate(road, 1):
    begun = time.monotonic()
    answers = run_stage(number, len(road), stage, started)
    times.append((stage.title, time.monotonic() - begun))
  ratio = report(work, times, answers)
  if ratio < _MIN_RATIO.value:
    raise UserError(
      f"The model must reach {_MIN_RATIO.value} times the accuracy of the most frequent piece. "
      f"Received: {ratio:.2f}. Look at {work}/run/curves.png; more steps in {_RECIPE.value} may help."
    )
  print(f"\nTry your own: {os.path.relpath(sys.executable)} tpu_scripts/fill_mask.py "
        f'--saved_model {os.path.relpath(work)}/run/saved_model --text "…[MASK]…"')  # fmt: skip


if __name__ == "__main__":
  app.run(exit_on_user_error(main))
