"""Time of answers that stop early, beside all layers, through the SavedModel.

A classifier of random weights with twelve layers can stop after 2, 4, … of them. Each row has a threshold of its own:
0 stops it at the first depth, 1 sends it through all. So the share of rows that stop is known, and the figures show
the mechanism alone; how early a trained head is sure is another question (`early_exit_runs.py`). Prints one JSON line:
for each batch size milliseconds of the signature of each depth, and for each share mean layers, milliseconds, and how
much faster than all layers; the ideal is 12 / mean layers.

Example:
  python benchmarks/early_exit.py --size=base
"""

from collections.abc import Mapping
import functools
import statistics
import tempfile
from typing import Any

from absl import flags
import common

from albert_tf.configs import AlbertConfig

_SIZE = flags.DEFINE_string("size", "base", "The model's size.")
_ROUNDS = flags.DEFINE_integer("rounds", 7, "Rounds; the median counts.", lower_bound=1)
_TOKENS = flags.DEFINE_integer("tokens", 128, "Length of a text.", lower_bound=4)
_EXIT_DEPTHS = (2, 4, 6, 8, 10, 12)
_BATCH_SIZES = (1, 8, 32)
_SHARES = (0.0, 0.5, 1.0)  # Of the rows that stop at the first depth.


def _measure() -> Mapping[str, Any]:
  from albert_tf.serving.loaded_model import LoadedModel

  with tempfile.TemporaryDirectory() as folder:
    documents = common.installed_documentation(folder, megabytes=5)
    loaded = LoadedModel(_export(folder, common.train_vocabulary(documents, folder)))
    # A word is at least one token, so the text fills the row.
    words = " ".join(documents[0]).split() * _TOKENS.value
    text = " ".join(words[: _TOKENS.value])
    batches = {size: _batch(loaded, text, size) for size in _BATCH_SIZES}
  return {"size": _SIZE.value, "tokens": _TOKENS.value, "batches": batches}


def _export(folder: str, vocabulary: str) -> str:
  """Exports a classifier with random weights; returns the version's directory."""
  from albert_tf import AlbertClassifier, AlbertPreprocessor
  from albert_tf.tokenization import load_tokenizer

  tokenizer = load_tokenizer(vocabulary)
  config = AlbertConfig.from_name(_SIZE.value, vocab_size=tokenizer.vocab_size)
  model = AlbertClassifier(
    config.at_depth(_EXIT_DEPTHS[-1]),
    task=AlbertClassifier.make_task(label_names=("no", "yes"), max_seq_length=_TOKENS.value),
    train_depths=_EXIT_DEPTHS,
    preprocessor=AlbertPreprocessor(tokenizer, max_length=_TOKENS.value),
  )
  path = f"{folder}/export/1"
  model.export(path, depths=_EXIT_DEPTHS)
  return path


def _batch(loaded: Any, text: str, size: int) -> dict[str, Any]:
  """The figures of one batch size."""
  import numpy as np

  texts = {"text": np.array([text] * size, object)}

  def seconds(signature: str, inputs: Mapping[str, Any]) -> float:
    return common.timed(lambda: loaded.run(signature, inputs)).wall

  sides = {}
  for depth in _EXIT_DEPTHS:
    signature = f"depth_{depth}"
    sides[signature] = functools.partial(seconds, signature, texts)
  mean_layers = {}
  for share in _SHARES:
    num_early = round(share * size)
    threshold = np.array([0.0] * num_early + [1.0] * (size - num_early), np.float32)
    inputs = {**texts, "threshold": threshold}
    mean_layers[str(share)] = float(loaded.run("early_exit", inputs)["layers"].mean())
    sides[str(share)] = functools.partial(seconds, "early_exit", inputs)

  # The first round is the warm-up.
  times = common.in_turn(sides, _ROUNDS.value + 1)
  medians = {name: statistics.median(of_side[1:]) for name, of_side in times.items()}
  milliseconds = {name: round(1e3 * median, 1) for name, median in medians.items()}
  all_layers = medians[f"depth_{_EXIT_DEPTHS[-1]}"]
  early = {}
  for name, layers in mean_layers.items():
    early[name] = {
      "mean_layers": layers,
      "ms": milliseconds[name],
      "faster": round(all_layers / medians[name], 2),
      "ideal": round(_EXIT_DEPTHS[-1] / layers, 2),
    }
  of_depths = {depth: milliseconds[f"depth_{depth}"] for depth in _EXIT_DEPTHS}
  return {"ms_of_depth": of_depths, "share_of_early_rows": early}


if __name__ == "__main__":
  common.run(_measure)
