"""Accuracy and request time of a model at several depths, trained for them or not.

Pretrains the demo's two layers on this machine's documentation, then trains four layers from there: always all four,
and with --train_depths. (From random weights four layers of this width learn nothing from the context in minutes.) Each
is evaluated on held-out text at every depth. Prints one JSON line: loss and accuracy of the masked LM, one figure a
seed, and milliseconds of a fill-mask request by depth, of that model and of a `base` with random weights. A command
that was stopped continues, given the same --output_dir.

Example:
  python benchmarks/depth.py --output_dir=/tmp/depth
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

from absl import flags
import measuring
import texts

from albert_tf import files
from albert_tf.configs import AlbertConfig

_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Where everything is written.", required=True)
_SEEDS = flags.DEFINE_list("seeds", ["1", "2", "3"], "A run each.")
_STEPS = flags.DEFINE_integer("num_train_steps", 1000, "Updates of a run.", lower_bound=1)
_ROOT = pathlib.Path(__file__).parents[1]
# 3 is between the depths that are trained, and 6 is deeper than the model.
_DEPTHS = (1, 2, 3, 4, 6)
_BASE_DEPTHS = (4, 8, 12)
# How a run is trained → its --train_depths.
_ARMS = {"fixed": "", "train_depths": "1,2,4"}
# The demo's model and batches, with LAMB for all variables.
_DEMO = (
  "--albert_config_file=recipes/demo_albert_config.json",
  "--train_batch_size=32",
  "--num_warmup_steps=250",
  "--learning_rate=0.006",
  "--save_checkpoints_steps=1000",
  "--iterations_per_loop=100",
  "--eval_batch_size=64",
  "--masking=fresh",
  "--masked_lm_prob=0.3",
)
# A third of the demo's learning rate: the two layers at the start are trained already.
_FOUR_LAYERS = ("--num_hidden_layers=4", "--learning_rate=0.002", "--num_warmup_steps=100")
_START_STEPS = 4000  # Of the two layers from which all runs start.
_REQUESTS = 50  # At each depth; the median counts.
_TEXT = b"Returns a list of all the [MASK] in the directory."

# Depth → figure → its value in each run.
_Figures = dict[int, dict[str, list[float]]]


def _measure() -> Mapping[str, Any]:
  # Commands run in the repository's folder, where a relative path would be another.
  folder = files.abspath(_OUTPUT_DIR.value)
  records = _records(folder)
  start = os.path.join(folder, "start")
  # A finished run is not made again: run_pretrain.py sees that nothing is left to do.
  _pretrain(start, records, *_DEMO, f"--num_train_steps={_START_STEPS}")
  masked_lm = {"start": _figures([start], records)}
  for arm, depths in _ARMS.items():
    runs = [os.path.join(folder, f"{arm}_{seed}") for seed in _SEEDS.value]
    for seed, run in zip(_SEEDS.value, runs, strict=True):
      _pretrain(
        run,
        records,
        *_DEMO,
        *_FOUR_LAYERS,
        f"--num_train_steps={_STEPS.value}",
        f"--init_checkpoint={start}",
        f"--train_depths={depths}",
        f"--seed={seed}",
      )
    masked_lm[arm] = _figures(runs, records)
    # The line at the end comes late: this shows how it goes.
    print(arm, masked_lm[arm], file=sys.stderr, flush=True)
  trained = os.path.join(folder, f"train_depths_{_SEEDS.value[0]}")
  return {
    "masked_lm": masked_lm,
    "milliseconds": _milliseconds(trained),
    "steps": _STEPS.value,
  }


def _records(folder: str) -> str:
  """Makes the demo's records, unless they are there; returns their folder."""
  documentation = os.path.join(folder, "text")
  vocabulary = os.path.join(folder, "vocabulary")
  records = os.path.join(folder, "records")
  if files.exists(os.path.join(records, "manifest.json")):
    return records
  # As `make demo` makes them.
  lines = f"--input={documentation}/*.txt"
  texts.data_tool("extract_installed_docs", f"--output_dir={documentation}", "--max_megabytes=20")
  texts.data_tool("train_vocab", lines, f"--model_prefix={vocabulary}", "--vocab_size=4000")
  texts.data_tool(
    "create_pretraining_data",
    lines,
    f"--spm_model_file={vocabulary}.model",
    f"--output_dir={records}",
    "--max_seq_length=64",
    "--max_predictions_per_seq=10",
    "--dupe_factor=2",
    "--eval_fraction=0.02",
  )
  return records


def _pretrain(run: str, records: str, *flags: str) -> None:
  command = [
    sys.executable,
    "tpu_scripts/run_pretrain.py",
    f"--input_file={records}/train-*",
    f"--eval_input_file={records}/eval-*",
    f"--output_dir={run}",
  ]
  command.extend(flags)
  # Its progress is not shown, but its errors are.
  subprocess.run(command, cwd=_ROOT, check=True, stdout=subprocess.DEVNULL)


def _figures(runs: Sequence[str], records: str) -> _Figures:
  """Loss and accuracy on the held-out text, by depth."""
  figures: _Figures = {depth: {"loss": [], "accuracy": []} for depth in _DEPTHS}
  for run in runs:
    for depth, metrics in _held_out(run, records).items():
      figures[depth]["loss"].append(round(metrics["masked_lm_loss"], 3))
      figures[depth]["accuracy"].append(round(metrics["masked_lm_accuracy"], 4))
  return figures


def _held_out(run: str, records: str) -> dict[int, dict[str, float]]:
  """Depth → metrics on the held-out text."""
  from albert_tf.checkpoints.checkpoint import read_checkpoint
  from albert_tf.pretraining.evaluation import evaluate_checkpoint
  from albert_tf.runs.distribution import make_strategy
  from albert_tf.runs.settings import DistributionConfig

  checkpoint = read_checkpoint(run)
  strategy = make_strategy(DistributionConfig())
  # One data set, which needs no name.
  held_out = {"": files.expand_globs([f"{records}/eval-*"])}
  metrics = {}
  for depth in _DEPTHS:
    # The same weights: ALBERT applies one block as often as the configuration says.
    at_depth: Any = dataclasses.replace(checkpoint, config=checkpoint.config.at_depth(depth))
    evaluated = evaluate_checkpoint(at_depth, held_out, strategy=strategy, batch_size=64)
    metrics[depth] = evaluated[""]
  return metrics


def _milliseconds(run: str) -> dict[str, dict[int, float]]:
  """Milliseconds of a request, of the run's model and of a `base`."""
  from albert_tf import AlbertMaskedLM

  trained = AlbertMaskedLM.from_pretrained(run)
  base = AlbertMaskedLM(
    AlbertConfig.from_name("base", vocab_size=trained.config.vocab_size),
    preprocessor=trained.preprocessor,
  )
  return {
    "demo": _request_times(trained, _DEPTHS),
    "base": _request_times(base, _BASE_DEPTHS),
  }


def _request_times(model: Any, depths: Sequence[int]) -> dict[int, float]:
  """Milliseconds of a request at each depth, one sentence at a time."""
  import numpy as np

  from albert_tf.serving.loaded_model import LoadedModel

  with tempfile.TemporaryDirectory() as folder:
    model.export(f"{folder}/1", depths=tuple(depths))
    loaded = LoadedModel(f"{folder}/1")
    request = {"text": np.array([_TEXT], object)}
    sides = {
      str(depth): functools.partial(loaded.run, f"depth_{depth}", request) for depth in depths
    }
    times = measuring.median_times(sides, _REQUESTS)
  return {depth: round(1e3 * times[str(depth)].wall, 2) for depth in depths}


if __name__ == "__main__":
  measuring.run(_measure)
