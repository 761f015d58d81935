"""The whole road: English text → vocabulary → TFRecords → pretraining → SavedModel → fill-mask.

Runs the real commands one after the other, on the documentation of the installed
Python packages, and ends with what the model has learned. `make demo` calls it.
"""

from collections.abc import Mapping
import dataclasses
import os
import pathlib
import shutil
import statistics
import sys
import time
from typing import Any

from child_commands import EXIT_STOPPED, ROOT, StoppedError, run_command

from albert_tf import commands, files
from albert_tf.errors import UserError
from albert_tf.records import Manifest
from albert_tf.settings import Settings, setting
from albert_tf.training.metrics_log import read_metrics


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(Settings):
  """What the demo is made of."""

  output_dir: str = setting(
    str(ROOT / ".demo"), help="Where everything is written; an earlier demo is moved aside."
  )
  max_megabytes: float = setting(20.0, help="How much documentation to take (10^6 bytes).")
  vocab_size: int = setting(4000, help="Tokens of the vocabulary.")
  min_ratio: float = setting(
    1.5, help="The least success: held-out accuracy over that of always answering the most frequent token."
  )
  recipe: str = setting(str(ROOT / "recipes/demo.flags"), help="Flag file of the pretraining stage.")


commands.define_flags(Command)

MARKER = "made_by_make_demo"
_DATA_FLAGS = (
  "--max_seq_length=64",
  "--max_predictions_per_seq=10",  # 15 % of 64.
  "--dupe_factor=5",  # As many examples as a few minutes of training see, so that few are seen twice.
  "--eval_fraction=0.02",
  "--random_seed=12345",
  "--num_shards=4",
)
# What the corpus is about: documentation.
SENTENCES = (
  "Returns a list of all the [MASK] in the directory.",
  "If the file does not [MASK], an error is raised.",
  "The default value of this argument is [MASK].",
)


def _short(path: pathlib.Path) -> str:
  """As a user in the checkout, where the stages run, would write it."""
  return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def stages(command: Command, work: str, recipe: str) -> dict[str, list[str]]:
  """Title → command, in order; each reads what the one before it wrote."""
  text, records, run = f"{work}/text/*.txt", f"{work}/records", f"{work}/run"
  model = f"{work}/vocabulary/spm"
  return {
    "Text: the documentation on this machine": [
      "tfrecords_tools/extract_installed_docs.py",
      f"--output_dir={work}/text",
      f"--max_megabytes={command.max_megabytes}",
    ],
    "Vocabulary": [
      "tfrecords_tools/train_vocab.py",
      f"--input={text}",
      f"--model_prefix={model}",
      f"--vocab_size={command.vocab_size}",
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
    "Fill-mask": [
      "tpu_scripts/fill_mask.py",
      f"--saved_model={run}/saved_model",
      *(f"--text={sentence}" for sentence in SENTENCES),
    ],
  }


def start_afresh(work: pathlib.Path) -> None:
  """Moves the folder of an earlier demo aside, which replaces the one before it; never one that holds anything else."""
  if work.exists() and any(work.iterdir()) and not (work / MARKER).exists():
    raise UserError(
      "The demo moves aside what its output directory holds, so it must be new, empty or an earlier demo's. "
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


def summarize(run: pathlib.Path) -> tuple[dict[str, Any], float]:
  """The best held-out evaluation (its checkpoint is the one exported), and the median training rate."""
  rows = read_metrics(str(run / "metrics.jsonl"))
  evaluations = [row for row in rows if row["split"] == "eval"]
  rates = [row["examples_per_second"] for row in rows if row["split"] == "train"]
  best = max(evaluations, key=lambda row: (row["masked_lm_accuracy"], -row["masked_lm_loss"]))
  return best, statistics.median(rates)


def report(work: pathlib.Path, times: Mapping[str, float], answers: str) -> float:
  """Prints the closing table and the examples; returns accuracy over baseline."""
  manifest = Manifest.load(str(work / "records"))
  evaluation, rate = summarize(work / "run")
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


def main() -> int | None:
  command = commands.from_flags(Command)
  work = pathlib.Path(command.output_dir).resolve()
  start_afresh(work)
  started, answers = time.monotonic(), ""
  times: dict[str, float] = {}
  road = stages(command, _short(work), _short(pathlib.Path(command.recipe).resolve()))
  for number, (title, words) in enumerate(road.items(), 1):
    begun = time.monotonic()
    heading = f"[{number}/{len(road)}] {title}   ({begun - started:.0f} s so far)"
    try:
      answers = run_command(heading, words, capture=number == len(road))
    except StoppedError:
      return EXIT_STOPPED
    times[title] = time.monotonic() - begun
  ratio = report(work, times, answers)
  if ratio < command.min_ratio:
    raise UserError(
      f"The model must reach {command.min_ratio} times the accuracy of the most frequent token. "
      f"Received: {ratio:.2f}. Look at {work}/run/curves.png; more steps in {command.recipe} may help."
    )
  print(f"\nTry your own: {os.path.relpath(sys.executable)} tpu_scripts/fill_mask.py "
        f'--saved_model {os.path.relpath(work)}/run/saved_model --text "…[MASK]…"')  # fmt: skip
  return 0


if __name__ == "__main__":
  commands.run(main)
