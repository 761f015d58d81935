"""Shows all steps: English text → vocabulary → TFRecords → pretraining → SavedModel → fill-mask.

Runs the real commands one after the other on the documentation of the installed Python packages. At the end it shows
what the model has learned. `make demo` calls it.
"""

from collections.abc import Mapping
import os
import pathlib
import sys
import time

from child_commands import ROOT, run_command

from albert_tf import files
from albert_tf.cli import commands
from albert_tf.records import Manifest
from albert_tf.runs.metrics_log import read_metrics
from albert_tf.settings import Settings, setting


class Command(Settings):
  """Settings of the demo."""

  output_dir: str = setting(str(ROOT / ".demo"), "Directory of all output, new or empty.")
  max_megabytes: float = setting(20.0, "Largest amount of text, in megabytes (10^6 bytes).")
  vocab_size: int = setting(4000, "Number of tokens of the vocabulary.")
  recipe: str = setting(str(ROOT / "recipes/demo.flags"), "Flag file for pretraining.")


commands.define_flags(Command)

_DATA_FLAGS = (
  "--max_seq_length=64",
  "--max_predictions_per_seq=10",  # 15 % of 64.
  "--dupe_factor=3",  # Each pass combines other sentences. Training draws the masks.
  "--eval_fraction=0.02",
  "--random_seed=12345",
  "--num_shards=4",
)
# Sentences about the corpus's subject, documentation.
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


def report(work: pathlib.Path, times: Mapping[str, float], answers: str) -> None:
  """Prints the closing table and the examples."""
  manifest = Manifest.find(str(work / "records"))
  assert manifest
  baseline = manifest.baseline
  assert baseline
  last = [row for row in read_metrics(str(work / "run/metrics.jsonl")) if row["split"] == "eval"][
    -1
  ]
  table = {
    "masked-LM accuracy": f"{last['masked_lm_accuracy']:.1%}",
    "always the most frequent token": f"{baseline.eval_share or baseline.train_share:.1%}  ({baseline.piece!r})",
    "sentence-order accuracy": f"{last['sentence_order_accuracy']:.1%}  (chance: 50 %)",
    **{f"time: {title}": f"{seconds:.0f} s" for title, seconds in times.items()},
    "time in all": f"{sum(times.values()):.0f} s",
  }
  print("\nWhat the model has learned, on documents it never saw\n")
  for name, value in table.items():
    print(f"{name:<{max(map(len, table))}}   {value}")
  print(f"\n{answers.rstrip()}")


def main() -> None:
  command = commands.from_flags(Command)
  work = pathlib.Path(command.output_dir).resolve()
  files.check_new(str(work))
  times: dict[str, float] = {}
  answers = ""
  road = stages(command, _short(work), _short(pathlib.Path(command.recipe).resolve()))
  for number, (title, words) in enumerate(road.items(), 1):
    begun = time.monotonic()
    heading = f"[{number}/{len(road)}] {title}   ({sum(times.values()):.0f} s so far)"
    answers = run_command(heading, words, capture=number == len(road))
    times[title] = time.monotonic() - begun
  report(work, times, answers)
  print(f"\nTry your own: {os.path.relpath(sys.executable)} tpu_scripts/fill_mask.py "
        f'--saved_model {os.path.relpath(work)}/run/saved_model --text "…[MASK]…"')  # fmt: skip


if __name__ == "__main__":
  commands.run(main)
