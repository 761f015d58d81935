r"""What a model learns from one pass with fresh masks, beside several passes with stored masks, at equal steps.

Takes the text, vocabulary and records that `make demo` left, makes records of a single pass over the same text
(the same documents are held out, whatever the passes), trains the demo's recipe on each side with each seed, and
evaluates all on the same stored records: the demo's. Prints a JSON line a run, and one with the mean of each
side.

  - stored: the demo's records, `--dupe_factor` passes each with its own cuts and masks.
  - fresh: one pass, `--masking=fresh`.
  - once: one pass with its stored masks, to see what fresh ones add.

Example:
  make demo
  python benchmarks/fresh_masking.py --seeds=1,2
"""

from collections.abc import Iterator
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from typing import Any, NamedTuple

from absl import flags
import common

from albert_tf.errors import UserError
from albert_tf.records import Manifest

ROOT = pathlib.Path(__file__).resolve().parent.parent
_DEMO_DIR = flags.DEFINE_string("demo_dir", str(ROOT / ".demo"), "What `make demo` wrote.")
_SEEDS = flags.DEFINE_list("seeds", ["1", "2"], "Seeds of training; each side runs with each.")
_SIDES = flags.DEFINE_list("sides", ["stored", "fresh", "once"], "Which sides to run.")
_STEPS = flags.DEFINE_integer("num_train_steps", None, "Updates of each run; default: the recipe's.")
_START = flags.DEFINE_string(
  "init_checkpoint",
  None,
  "Weights that all runs start from. Small models leave their first plateau by chance, early or late.",
)
_RECIPE = flags.DEFINE_string("recipe", str(ROOT / "recipes/demo.flags"), "Flag file of training.")

METRICS = ("masked_lm_accuracy", "masked_lm_loss", "sentence_order_accuracy", "sentence_order_loss")


class Side(NamedTuple):
  """Records to train on, and how their masks are taken."""

  records: str
  masking: str


def _command(*arguments: str) -> None:
  quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
  subprocess.run([sys.executable, *arguments], cwd=ROOT, env=quiet, check=True, stdout=sys.stderr)


def _single_pass(demo: str, output_dir: str) -> None:
  """The demo's records made again from the same text and settings, but with one pass."""
  _command(
    "tfrecords_tools/create_pretraining_data.py",
    f"--flagfile={demo}/records/flags.txt",
    f"--output_dir={output_dir}",
    "--dupe_factor=1",
    f"--num_workers={os.cpu_count() or 1}",
  )


def _train(side: Side, held_out: str, seed: str, output_dir: str) -> dict[str, float]:
  """Metrics of the last evaluation."""
  _command(
    "tpu_scripts/run_pretrain.py",
    f"--flagfile={_RECIPE.value}",
    *([f"--num_train_steps={_STEPS.value}"] if _STEPS.value else []),
    *([f"--init_checkpoint={_START.value}"] if _START.value else []),
    f"--input_file={side.records}/train-*",
    f"--eval_input_file={held_out}/eval-*",
    f"--masking={side.masking}",
    f"--seed={seed}",
    f"--output_dir={output_dir}",
  )
  log = pathlib.Path(output_dir, "metrics.jsonl").read_text(encoding="utf-8")
  last = [row for row in map(json.loads, log.splitlines()) if row["split"] == "eval"][-1]
  return {"step": last["step"], **{name: last[name] for name in METRICS}}


def _describe(records: str) -> dict[str, Any]:
  manifest = Manifest.load(records)
  return {
    "dupe_factor": manifest.settings["dupe_factor"],
    "train_records": manifest.num_records("train"),
    "train_megabytes": round(sum(file.num_bytes for file in manifest.files_of("train")) / 1e6, 1),
  }


def _runs(directory: str) -> Iterator[dict[str, Any]]:
  stored, single = f"{_DEMO_DIR.value}/records", f"{directory}/records"
  _single_pass(_DEMO_DIR.value, single)
  sides = {
    "stored": Side(stored, "stored"),
    "fresh": Side(single, "fresh"),
    "once": Side(single, "stored"),
  }
  unknown = sorted(set(_SIDES.value) - set(sides))
  if unknown:
    raise UserError(
      f"The sides are {', '.join(sides)}. Received: --sides={','.join(unknown)}. Name some of them."
    )
  for seed in _SEEDS.value:
    for name in _SIDES.value:
      metrics = _train(sides[name], stored, seed, f"{directory}/{name}-{seed}")
      yield {"side": name, "seed": int(seed), **_describe(sides[name].records), **metrics}


def benchmark() -> dict[str, Any]:
  found = []
  with tempfile.TemporaryDirectory() as directory:
    for run in _runs(directory):
      print(json.dumps(run), flush=True)
      found.append(run)
  mean = {
    side: {name: statistics.mean(run[name] for run in found if run["side"] == side) for name in METRICS}
    for side in _SIDES.value
  }
  return {"seeds": len(_SEEDS.value), "steps": found[-1]["step"], "mean": mean}


if __name__ == "__main__":
  common.run(benchmark)
