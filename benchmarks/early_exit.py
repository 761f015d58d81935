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
import tempfile
from typing import Any

from absl import flags
import measuring
import texts

from albert_tf.configs import AlbertConfig

_SIZE = flags.DEFINE_string("size", "base", "The model's size.")
_ROUNDS = flags.DEFINE_integer("rounds", 7, "Rounds; the median counts.", lower_bound=1)
_TOKENS = flags.DEFINE_integer("tokens", 128, "Length of a text.", lower_bound=4)
_NUM_LAYERS = 12
_EXIT_DEPTHS = (2, 4, 6, 8, 10, _NUM_LAYERS)
_BATCH_SIZES = (1, 8, 32)  # Texts of a request.
_SHARES = (0.0, 0.5, 1.0)  # Of the rows that stop at the first depth.


def _measure() -> Mapping[str, Any]:
  from albert_tf.serving.loaded_model import LoadedModel

  with tempfile.TemporaryDirectory() as folder:
    documents = texts.installed_documentation(folder, megabytes=5)
    loaded = LoadedModel(_export(folder, texts.train_vocabulary(documents, folder)))
    # A word is at least one token, so the text fills the row.
    some_words = " ".join(documents[0]).split()
    words = some_words * _TOKENS.value
    text = " ".join(words[: _TOKENS.value])
    figures = {size: _figures(loaded, text, size) for size in _BATCH_SIZES}
  return {"size": _SIZE.value, "tokens": _TOKENS.value, "batches": figures}


def _export(folder: str, vocabulary: str) -> str:
  """Exports a classifier with random weights; returns the version's directory."""
  from albert_tf import AlbertClassifier, AlbertPreprocessor
  from albert_tf.tokenization import load_tokenizer

  tokenizer = load_tokenizer(vocabulary)
  config = AlbertConfig.from_name(_SIZE.value, vocab_size=tokenizer.vocab_size)
  model = AlbertClassifier(
    config.at_depth(_NUM_LAYERS),
    task=AlbertClassifier.make_task(label_names=("no", "yes"), max_seq_length=_TOKENS.value),
    train_depths=_EXIT_DEPTHS,
    preprocessor=AlbertPreprocessor(tokenizer, max_length=_TOKENS.value),
  )
  path = f"{folder}/export/1"
  model.export(path, depths=_EXIT_DEPTHS)
  return path


def _figures(loaded: Any, text: str, batch_size: int) -> dict[str, Any]:
  """The figures of one batch size."""
  import numpy as np

  batch = {"text": np.array([text] * batch_size, object)}
  # The other side: a signature for each depth, which all rows take.
  fixed = {
    f"{depth} layers": functools.partial(loaded.run, f"depth_{depth}", batch)
    for depth in _EXIT_DEPTHS
  }

  # Rows that stop early leave the batch, so the rest of it is computed for fewer rows.
  early = {}
  mean_layers = {}
  for share in _SHARES:
    num_early = round(share * batch_size)
    # No answer is surer than 1, and every answer is surer than 0.
    thresholds = np.ones(batch_size, np.float32)
    thresholds[:num_early] = 0.0
    with_thresholds = batch | {"threshold": thresholds}
    mean_layers[share] = float(loaded.run("early_exit", with_thresholds)["layers"].mean())
    early[f"{share} early"] = functools.partial(loaded.run, "early_exit", with_thresholds)

  # All in turn, because they are compared with each other.
  times = measuring.median_times(fixed | early, _ROUNDS.value)
  all_layers = times[f"{_NUM_LAYERS} layers"].wall
  of_shares = {}
  for share, layers in mean_layers.items():
    seconds = times[f"{share} early"].wall
    of_shares[share] = {
      "mean_layers": layers,
      "ms": round(1e3 * seconds, 1),
      "faster": round(all_layers / seconds, 2),
      "ideal": round(_NUM_LAYERS / layers, 2),
    }
  of_depths = {depth: round(1e3 * times[f"{depth} layers"].wall, 1) for depth in _EXIT_DEPTHS}
  return {"ms_of_depth": of_depths, "share_of_early_rows": of_shares}


if __name__ == "__main__":
  measuring.run(_measure)
