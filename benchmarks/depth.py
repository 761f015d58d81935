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
import glob
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Any

from absl import flags
import common

from albert_tf import files
from albert_tf.configs import AlbertConfig

_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Where everything is written.", required=True)
_SEEDS = flags.DEFINE_list("seeds", ["1", "2", "3"], "A run each.")
_STEPS = flags.DEFINE_integer("num_train_steps", 1000, "Updates of a run.", lower_bound=1)
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LAYERS, _TRAIN_DEPTHS, _DEPTHS = 4, (1, 2, 4), (1, 2, 3, 4, 6)
_BASE_DEPTHS = (4, 8, 12)
_ARMS = {"fixed": "", "train_depths": ",".join(map(str, _TRAIN_DEPTHS))}
_DEMO = ("--flagfile=recipes/demo.flags", "--num_train_steps=4000")
_RECIPE = (
  _DEMO[0],
  f"--num_hidden_layers={_LAYERS}",
  "--learning_rate=0.002",
  "--num_warmup_steps=100",
)
_TEXT = b"Returns a list of all the [MASK] in the directory."
_REQUESTS = 50


def _records(folder: str) -> str:
  """Makes the demo's records, unless they are there."""
  text, vocabulary, records = (
    os.path.join(folder, name) for name in ("text", "vocabulary", "records")
  )
  if not files.exists(os.path.join(records, "manifest.json")):
    common.data_tool("extract_installed_docs", f"--output_dir={text}", "--max_megabytes=20")
    lines = f"--input={text}/*.txt"
    common.data_tool("train_vocab", lines, f"--model_prefix={vocabulary}", "--vocab_size=4000")
    sizes = (
      "--max_seq_length=64",
      "--max_predictions_per_seq=10",
      "--dupe_factor=2",
      "--eval_fraction=0.02",
    )
    where = (f"--spm_model_file={vocabulary}.model", f"--output_dir={records}")
    common.data_tool("create_pretraining_data", lines, *where, *sizes)
  return records


def _losses(run: str, records: str) -> dict[int, dict[str, float]]:
  """Depth → metrics on the held-out text."""
  from albert_tf.checkpoints.checkpoint import read_checkpoint
  from albert_tf.pretraining.evaluation import evaluate_checkpoint
  from albert_tf.runs.distribution import make_strategy
  from albert_tf.runs.settings import DistributionConfig

  checkpoint = read_checkpoint(run)
  strategy, found = make_strategy(DistributionConfig()), {}
  held_out = {"": glob.glob(f"{records}/eval-*")}
  for depth in _DEPTHS:
    at_depth: Any = dataclasses.replace(checkpoint, config=checkpoint.config.at_depth(depth))
    found[depth] = evaluate_checkpoint(at_depth, held_out, strategy=strategy, batch_size=64)[""]
  return found


def _milliseconds(model: Any, depths: Sequence[int]) -> dict[int, float]:
  """The median of a request's time at each depth, one sentence at a time."""
  import numpy as np

  from albert_tf.serving.loaded_model import LoadedModel

  with tempfile.TemporaryDirectory() as folder:
    model.export(f"{folder}/1", depths=tuple(depths))
    loaded = LoadedModel(f"{folder}/1")
    text = {"text": np.array([_TEXT], object)}
    sides = {
      str(depth): lambda name=f"depth_{depth}": common.timed(lambda: loaded.run(name, text)).wall
      for depth in depths
    }
    times = common.in_turn(sides, _REQUESTS)
  return {
    int(depth): round(1e3 * statistics.median(of_depth[1:]), 2) for depth, of_depth in times.items()
  }


def _pretrain(run: str, records: str, *flags: str) -> None:
  data = (
    f"--input_file={records}/train-*",
    f"--eval_input_file={records}/eval-*",
    f"--output_dir={run}",
  )
  command = [sys.executable, "tpu_scripts/run_pretrain.py", *flags, *data]
  subprocess.run(
    command, cwd=_ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
  )


def _measure() -> Mapping[str, Any]:
  folder = files.abspath(_OUTPUT_DIR.value)
  records, start = _records(folder), os.path.join(folder, "start")
  _pretrain(start, records, *_DEMO)
  results: dict[str, Any] = {}

  def note(arm: str, run: str) -> None:
    for depth, metrics in _losses(run, records).items():
      of_depth = results.setdefault(arm, {}).setdefault(depth, {"loss": [], "accuracy": []})
      of_depth["loss"].append(round(metrics["masked_lm_loss"], 3))
      of_depth["accuracy"].append(round(metrics["masked_lm_accuracy"], 4))

  note("start", start)
  for seed in _SEEDS.value:
    for arm, depths in _ARMS.items():
      run = os.path.join(folder, f"{arm}_{seed}")
      own = (f"--init_checkpoint={start}", f"--train_depths={depths}", f"--seed={seed}")
      _pretrain(run, records, *_RECIPE, f"--num_train_steps={_STEPS.value}", *own)
      note(arm, run)
      print(run, results[arm], file=sys.stderr, flush=True)

  from albert_tf import AlbertMaskedLM

  trained = AlbertMaskedLM.from_pretrained(os.path.join(folder, f"train_depths_{_SEEDS.value[0]}"))
  base = AlbertMaskedLM(
    AlbertConfig.from_name("base", vocab_size=trained.config.vocab_size),
    preprocessor=trained.preprocessor,
  )
  milliseconds = {
    "demo": _milliseconds(trained, _DEPTHS),
    "base": _milliseconds(base, _BASE_DEPTHS),
  }
  return {"masked_lm": results, "milliseconds": milliseconds, "steps": _STEPS.value}


if __name__ == "__main__":
  common.run(_measure)
