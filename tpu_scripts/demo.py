"""Shows all steps: English text → vocabulary → TFRecords → pretraining → SavedModel → fill-mask.

Runs the real commands one after the other on the documentation of the installed Python packages. At
the end it shows what the model has learned. `make demo` calls it.
"""

from collections.abc import Mapping
import importlib.metadata
import os
import sys
import time

from child_commands import ROOT, run_command

from albert_tf import files
from albert_tf.cli import commands
from albert_tf.progress import markdown_table
from albert_tf.records import Manifest
from albert_tf.runs.metrics_log import read_metrics
from albert_tf.settings import Settings, setting


class Command(Settings):
  """Settings of the demo."""

  output_dir: str = setting(
    str(ROOT / ".demo"),
    "Directory of all output, new or empty. After a stop remove it and begin again. If pretraining was "
    "stopped, its printed command continues it instead; then give those after it.",
  )
  max_megabytes: float = setting(
    20.0,
    "Largest amount of text, in megabytes (10^6 bytes). Most of the time is pretraining, whatever the "
    "text: write another number of updates, above 1,100, into recipes/demo.flags. For texts of your "
    "own give the printed commands after the first one, with your --input.",
  )
  vocab_size: int = setting(4000, "Number of tokens of the vocabulary.")


commands.define_flags(Command)
# Flags of the pretraining run.
RECIPE = ROOT / "recipes/demo.flags"
# Sentences about the corpus's subject, documentation.
SENTENCES = (
  "Returns a list of all the [MASK] in the directory.",
  "If the file does not [MASK], an error is raised.",
  "The default value of this argument is [MASK].",
)


def stages(command: Command, work_dir: str, recipe: str) -> dict[str, list[str]]:
  """Title → command, in order; each reads what the one before it wrote."""
  text = f"{work_dir}/text/*.txt"
  vocabulary = f"{work_dir}/vocabulary/spm"
  records = f"{work_dir}/records"
  run = f"{work_dir}/run"
  model = f"{run}/saved_model"
  pretrain = [
    "tpu_scripts/run_pretrain.py",
    f"--input_file={records}/train-*",
    f"--eval_input_file={records}/eval-*",
    # With the sentence loss from the start so small a model stays on the masked-LM plateau longer.
    "--masked_lm_only_steps=1100",
    # Another recipe may give another number: the last of two equal flags counts.
    f"--flagfile={recipe}",
    f"--output_dir={run}",
  ]
  if _has_xla():
    # Compiling takes ten seconds, and makes updates of so small a model faster.
    pretrain.append("--use_xla")
  fill_mask = ["tpu_scripts/fill_mask.py", f"--saved_model={model}"]
  fill_mask.extend(f"--text={sentence}" for sentence in SENTENCES)
  return {
    "Text: the documentation on this machine": [
      "tfrecords_tools/extract_installed_docs.py",
      f"--output_dir={work_dir}/text",
      # Sentences of a docstring have an order; the functions of a module hardly have one.
      "--documents=docstring",
      f"--max_megabytes={command.max_megabytes}",
    ],
    "Vocabulary": [
      "tfrecords_tools/train_vocab.py",
      f"--input={text}",
      f"--model_prefix={vocabulary}",
      f"--vocab_size={command.vocab_size}",
    ],
    "TFRecords": [
      "tfrecords_tools/create_pretraining_data.py",
      f"--input={text}",
      f"--spm_model_file={vocabulary}.model",
      f"--output_dir={records}",
      "--max_seq_length=64",
      # 15 % of 64.
      "--max_predictions_per_seq=10",
      # Each pass combines other sentences, into full rows. Training draws the masks.
      "--dupe_factor=5",
      "--short_seq_prob=0",
      "--eval_fraction=0.02",
      "--random_seed=12345",
      "--num_shards=4",
      f"--num_workers={os.cpu_count() or 1}",
    ],
    "Pretraining: masked LM, and later sentence order too": pretrain,
    "SavedModel": [
      "tpu_scripts/export_saved_model.py",
      "--model=fill_mask",
      f"--init_checkpoint={run}",
      f"--output_dir={model}",
      "--version=1",
    ],
    "Fill-mask": fill_mask,
  }


def _has_xla() -> bool:
  """Whether TensorFlow can compile for this machine's CPU: tensorflow-tpu cannot."""
  # `compat.HOST_XLA` says it too, but would import TensorFlow into this process.
  return not any(importlib.metadata.distributions(name="tensorflow-tpu"))


def report(work_dir: str, seconds: Mapping[str, float], answers: str) -> None:
  """Prints the closing table and the examples; `seconds` are those of each stage."""
  manifest = Manifest.find(f"{work_dir}/records")
  assert manifest
  baseline = manifest.baseline
  assert baseline
  # The last evaluation is of the finished model.
  evaluation: Mapping[str, float] = {}
  for row in read_metrics(f"{work_dir}/run/metrics.jsonl"):
    if row["split"] == "eval":
      evaluation = row
  # An accuracy means little without that of a guess.
  share = baseline.eval_share or baseline.train_share
  swapped = manifest.statistics["eval"]["label_1_share"]
  lines = [
    ("on documents it never saw", "what the model has learned"),
    ("masked-LM accuracy", f"{evaluation['masked_lm_accuracy']:.1%}"),
    ("always the most frequent token", f"{share:.1%} ({baseline.piece!r})"),
    ("sentence-order accuracy", f"{evaluation['sentence_order_accuracy']:.1%}"),
    ("always the more frequent label", f"{max(swapped, 1 - swapped):.1%}"),
  ]
  lines.extend((f"time: {title}", f"{value:.0f} s") for title, value in seconds.items())
  lines.append(("time in all", f"{sum(seconds.values()):.0f} s"))
  print(f"\n{markdown_table(*lines)}\n\n{answers.rstrip()}")


def run(command: Command, *, recipe: str = str(RECIPE)) -> None:
  """Runs all stages, with a flag file for pretraining, and reports."""
  work_dir = files.abspath(command.output_dir)
  files.check_new(work_dir)
  # The stages run in the checkout: paths in it are shown as a user there would write them.
  root = f"{ROOT}/"
  steps = stages(
    command,
    work_dir.removeprefix(root),
    files.abspath(recipe).removeprefix(root),
  )
  seconds: dict[str, float] = {}
  answers = ""
  for number, (title, words) in enumerate(steps.items(), 1):
    start = time.monotonic()
    heading = f"[{number}/{len(steps)}] {title}   ({sum(seconds.values()):.0f} s so far)"
    # The last stage's answers are shown below the table.
    answers = run_command(heading, words, capture=number == len(steps))
    seconds[title] = time.monotonic() - start
  report(work_dir, seconds, answers)
  print(
    f"\nTry your own: {os.path.relpath(sys.executable)} tpu_scripts/fill_mask.py "
    f'--saved_model {os.path.relpath(work_dir)}/run/saved_model --text "…[MASK]…"'
  )


def main() -> None:
  run(commands.from_flags(Command))


if __name__ == "__main__":
  commands.run(main)
