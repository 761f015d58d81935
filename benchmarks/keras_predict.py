"""Texts a second of `AlbertClassifier.predict` for sentences of many lengths, with and without one long text.

Beside it is the same model for ids that are padded to the longest text of all, as one array. Prints one JSON line: for
both lists texts a second of each side, and the gain; seconds of the processor count as much as the clock.

Example:
  python benchmarks/keras_predict.py --size=base
"""

from collections.abc import Mapping, Sequence
import tempfile
from typing import Any

from absl import flags
import measuring
import texts

from albert_tf.configs import AlbertConfig

_SIZE = flags.DEFINE_string("size", "base", "The model's size.")
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Rounds; the median counts.", lower_bound=1)
_NUM_SENTENCES = flags.DEFINE_integer("sentences", 600, "Number of sentences.", lower_bound=2)
_LONGEST = 512  # Tokens of the one long text.


def _measure() -> Mapping[str, Any]:
  with tempfile.TemporaryDirectory() as folder:
    documents = texts.installed_documentation(folder, megabytes=5)
    model = _model(texts.train_vocabulary(documents, folder))
  sentences = [sentence for document in documents for sentence in document]
  sentences = sentences[: _NUM_SENTENCES.value]
  # All sentences in one: it is cut to the longest that the model takes.
  long_text = " ".join(sentences)
  # As many texts as before: one of the sentences makes room.
  with_long_text = sentences[:-1] + [long_text]
  return {
    "size": _SIZE.value,
    "sentences": len(sentences),
    "alike": _figures(model, sentences),
    "with_one_long_text": _figures(model, with_long_text),
  }


def _model(vocabulary: str) -> Any:
  """A classifier with random weights."""
  from albert_tf import AlbertClassifier, AlbertPreprocessor
  from albert_tf.tokenization import load_tokenizer

  tokenizer = load_tokenizer(vocabulary)
  config = AlbertConfig.from_name(_SIZE.value, vocab_size=tokenizer.vocab_size)
  preprocessor = AlbertPreprocessor(tokenizer, max_length=_LONGEST)
  return AlbertClassifier(config, num_labels=2, preprocessor=preprocessor)


def _figures(model: Any, sentences: Sequence[str]) -> dict[str, Any]:
  """The figures of both sides for one list of sentences."""

  def predict_texts() -> None:
    model.predict(sentences, verbose=0)

  def predict_padded() -> None:
    # One array of ids, in which each row is as long as the longest.
    model.predict(model.preprocessor(sentences), verbose=0)

  sides = {"by_length": predict_texts, "padded": predict_padded}
  times = measuring.median_times(sides, _ROUNDS.value)
  per_second = {name: len(sentences) / of_side.wall for name, of_side in times.items()}
  return {
    "texts_per_second": {name: round(rate, 1) for name, rate in per_second.items()},
    "processor_seconds": {name: round(of_side.cpu, 1) for name, of_side in times.items()},
    "faster": round(per_second["by_length"] / per_second["padded"], 2),
  }


if __name__ == "__main__":
  measuring.run(_measure)
