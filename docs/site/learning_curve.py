"""README's picture: what the last `make demo` learned, from its run directory. `make pictures` calls it."""

from collections.abc import Sequence
import math
import pathlib

import numpy as np

from albert_tf.pretraining.curves import draw_curves
from albert_tf.records import Manifest
from albert_tf.records.parse import decode_example
from albert_tf.records.tfrecord import read_records
from albert_tf.runs.metrics_log import read_metrics

ROOT = pathlib.Path(__file__).parents[2]
DEMO = ROOT / ".demo"


def masked_token_counts(files: Sequence[str], vocab_size: int) -> np.ndarray:
  """How often each token is masked, `[V]`."""
  counts = np.zeros(vocab_size, np.int64)
  for file in files:
    for record in read_records(str(DEMO / "records" / file)):
      example = decode_example(record)
      is_real = example["masked_lm_weights"] > 0
      counts += np.bincount(example["masked_lm_ids"][is_real], minlength=vocab_size)
  return counts


def baselines(manifest: Manifest) -> dict[str, tuple[float, str]]:
  """Title of a panel → the held-out result of an answer that does not read the text, and what it is."""
  counts = {}
  for split in ("train", "eval"):
    files = [file.name for file in manifest.files_of(split)]
    counts[split] = masked_token_counts(files, manifest.vocab_size)
  # Each token as probable as it was in training; one that never came counts half a time.
  probabilities = np.maximum(counts["train"], 0.5) / counts["train"].sum()
  loss = -float(np.average(np.log(probabilities), weights=counts["eval"]))
  swapped = manifest.statistics["eval"]["label_1_share"]
  assert manifest.baseline
  most_frequent = manifest.baseline.eval_share or math.nan
  token = manifest.baseline.piece.replace("▁", "")
  return {
    "masked-LM loss (nats)": (loss, "frequencies of the tokens"),
    "masked-LM accuracy": (most_frequent, f'always "{token}"'),
    "sentence accuracy": (max(swapped, 1 - swapped), "always the more frequent label"),
  }


def main() -> None:
  manifest = Manifest.find(str(DEMO / "records"))
  assert manifest
  of_panels = baselines(manifest)
  draw_curves(
    read_metrics(str(DEMO / "run/metrics.jsonl")),
    str(ROOT / "docs/images/learning_curve.png"),
    panels=tuple(of_panels),
    baselines=of_panels,
  )


if __name__ == "__main__":
  main()
