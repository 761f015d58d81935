"""Texts a second of `AlbertClassifier.predict` for sentences of many lengths, with and without one long text.

Beside it is the same model for ids that are padded to the longest text of all, as one array. Prints one JSON line: for
both lists texts a second of each side, and the gain; seconds of the processor count as much as the clock.

Example:
  python benchmarks/keras_predict.py --size=base
"""

from collections.abc import Mapping, Sequence
import functools
import statistics
import tempfile
from typing import Any

from absl import flags
import common

from albert_tf.configs import AlbertConfig

_SIZE = flags.DEFINE_string("size", "base", "The model's size.")
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Rounds; the median counts.", lower_bound=1)
_NUM_SENTENCES = flags.DEFINE_integer("sentences", 600, "Number of sentences.", lower_bound=2)
_LONGEST = 512  # Tokens of the one long text.


def _measure() -> Mapping[str, Any]:
  with tempfile.TemporaryDirectory() as folder:
    documents = common.installed_documentation(folder, megabytes=5)
    model = _model(common.train_vocabulary(documents, folder))
  sentences = [sentence for document in documents for sentence in document]
  sentences = sentences[: _NUM_SENTENCES.value]
  long_text = " ".join(sentences)
  return {
    "size": _SIZE.value,
    "sentences": len(sentences),
    "alike": _figures(model, sentences),
    "with_one_long_text": _figures(model, [*sentences[:-1], long_text]),
  }


def _model(vocabulary: str) -> Any:
  """A classifier with random weights."""
  from albert_tf import AlbertClassifier, AlbertPreprocessor
  from albert_tf.tokenization import load_tokenizer

  tokenizer = load_tokenizer(vocabulary)
  config = AlbertConfig.from_name(_SIZE.value, vocab_size=tokenizer.vocab_size)
  preprocessor = AlbertPreprocessor(tokenizer, max_length=_LONGEST)
  return AlbertClassifier(config, num_labels=2, preprocessor=preprocessor)


def _figures(model: Any, texts: Sequence[str]) -> dict[str, Any]:
  def of_texts() -> None:
    model.predict(texts, verbose=0)

  def padded_to_the_longest() -> None:
    model.predict(model.preprocessor(texts), verbose=0)

  sides = {
    "by_length": functools.partial(common.timed, of_texts),
    "padded": functools.partial(common.timed, padded_to_the_longest),
  }
  # The first round is the warm-up.
  times = common.in_turn(sides, _ROUNDS.value + 1)
  wall = {name: statistics.median(t.wall for t in of_side[1:]) for name, of_side in times.items()}
  cpu = {name: statistics.median(t.cpu for t in of_side[1:]) for name, of_side in times.items()}
  return {
    "texts_per_second": {name: round(len(texts) / seconds, 1) for name, seconds in wall.items()},
    "processor_seconds": {name: round(seconds, 1) for name, seconds in cpu.items()},
    "faster": round(wall["padded"] / wall["by_length"], 2),
  }


if __name__ == "__main__":
  common.run(_measure)
