"""Texts a second of predict.py, beside sentence-transformers and Hugging Face's pipeline with the same weights.

A classifier and a model of sentence vectors, both of random weights, answer sentences of documentation. Where
`transformers` and `sentence_transformers` are installed, they answer too, with the weights converted and in batches of
32. Loading a model is not counted; reading the table and writing the answers are. Prints one JSON line: for each model
texts a second of each side, and the largest difference of their answers.

With `--precision` the command answers by a model of fewer bits; the others stay float32.

Example:
  python benchmarks/predict_texts.py --size=base --precision=int8
"""

from collections.abc import Callable, Mapping, Sequence
import functools
import importlib.util
import json
import os
import tempfile
from typing import Any

from absl import flags
import measuring
import numpy as np
import texts

from albert_tf import files
from albert_tf.configs import AlbertConfig

_SIZE = flags.DEFINE_string("size", "base", "The model's size.")
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Rounds; the median counts.", lower_bound=1)
_NUM_SENTENCES = flags.DEFINE_integer("sentences", 2000, "Number of sentences.", lower_bound=2)
_PRECISION = flags.DEFINE_enum(
  "precision", "float32", ["float32", "bfloat16", "int8"], "Precision of the command's model."
)
_MAX_TOKENS = 128
_THEIR_BATCH = 32
_NUM_CALIBRATION_TEXTS = 200
_LABELS = ("no", "yes")

# Answers all texts; returns the probability of "yes" [texts], or the vectors [texts, H].
Side = Callable[[], np.ndarray]


def _measure() -> Mapping[str, Any]:
  with tempfile.TemporaryDirectory() as folder:
    documents = texts.installed_documentation(folder, megabytes=5)
    vocabulary = texts.train_vocabulary(documents, folder)
    sentences = [sentence for document in documents for sentence in document]
    sentences = sentences[: _NUM_SENTENCES.value]
    table = f"{folder}/sentences.jsonl"
    lines = [json.dumps({"text": sentence}) + "\n" for sentence in sentences]
    files.write_text(table, "".join(lines))
    figures = {}
    for kind, sides_of in {"classes": _sides_of_classes, "vectors": _sides_of_vectors}.items():
      sides = sides_of(f"{folder}/{kind}", vocabulary, table, sentences)
      figures[kind] = _figures(sides, len(sentences))
  return {
    "size": _SIZE.value,
    "precision": _PRECISION.value,
    "sentences": len(sentences),
    **figures,
  }


def _sides_of_classes(
  folder: str, vocabulary: str, table: str, sentences: Sequence[str]
) -> dict[str, Side]:
  from albert_tf import AlbertClassifier

  task = AlbertClassifier.make_task(label_names=_LABELS, max_seq_length=_MAX_TOKENS)
  model = _random_model(AlbertClassifier, vocabulary, task=task)
  sides = {"predict.py": _command(model, folder, table, "probabilities", sentences)}
  if importlib.util.find_spec("transformers"):
    import transformers

    pipeline = transformers.pipeline(
      "text-classification", model=_converted(model, folder), top_k=None, batch_size=_THEIR_BATCH
    )

    def answer() -> np.ndarray:
      found = pipeline(list(sentences), truncation=True, max_length=_MAX_TOKENS)
      return np.array([{row["label"]: row["score"] for row in rows}["yes"] for rows in found])

    sides["pipeline"] = answer
  return sides


def _sides_of_vectors(
  folder: str, vocabulary: str, table: str, sentences: Sequence[str]
) -> dict[str, Side]:
  from albert_tf import AlbertSentenceEncoder

  model = _random_model(AlbertSentenceEncoder, vocabulary)
  sides = {"predict.py": _command(model, folder, table, "vector", sentences)}
  if importlib.util.find_spec("sentence_transformers"):
    import sentence_transformers
    from sentence_transformers.sentence_transformer import modules

    transformer = modules.Transformer(_converted(model, folder), max_seq_length=_MAX_TOKENS)
    pooling = modules.Pooling(transformer.get_embedding_dimension(), pooling_mode="mean")
    encoder = sentence_transformers.SentenceTransformer(
      modules=[transformer, pooling, modules.Normalize()], device="cpu"
    )
    sides["sentence_transformers"] = functools.partial(
      encoder.encode, list(sentences), batch_size=_THEIR_BATCH, show_progress_bar=False
    )
  return sides


def _random_model(kind: Any, vocabulary: str, **options: Any) -> Any:
  from albert_tf import AlbertPreprocessor
  from albert_tf.tokenization import load_tokenizer

  tokenizer = load_tokenizer(vocabulary)
  config = AlbertConfig.from_name(_SIZE.value, vocab_size=tokenizer.vocab_size)
  preprocessor = AlbertPreprocessor(tokenizer, max_length=_MAX_TOKENS)
  return kind(config, preprocessor=preprocessor, **options)


def _command(model: Any, folder: str, table: str, output: str, sentences: Sequence[str]) -> Side:
  """What the command does after its start."""
  from albert_tf.serving.loaded_model import open_version
  from albert_tf.serving.table_answers import TableModel, answer_tables

  calibration = None
  if _PRECISION.value != "float32":
    calibration = list(sentences[:_NUM_CALIBRATION_TEXTS])
  # Random weights give every text nearly equal probabilities, so their labels need not agree.
  model.export(
    f"{folder}/export/1", precision=_PRECISION.value, calibration=calibration, min_agreement=-1
  )
  answering = TableModel(open_version(f"{folder}/export"), outputs=[output])
  path = f"{folder}/answers.npy"

  def answer() -> np.ndarray:
    if files.exists(path):
      os.remove(path)
    answer_tables(answering, [table], path)
    answers = np.load(path)
    return answers[:, 1] if output == "probabilities" else answers

  return answer


def _converted(model: Any, folder: str) -> str:
  """The model's folder for Hugging Face."""
  from albert_tf.checkpoints.convert import convert
  from albert_tf.checkpoints.settings import ConvertOptions

  model.save_pretrained(f"{folder}/run")
  convert(f"{folder}/run", f"{folder}/huggingface", ConvertOptions(output_format="huggingface"))
  return f"{folder}/huggingface"


def _figures(sides: Mapping[str, Side], num_texts: int) -> dict[str, Any]:
  answers = {name: side() for name, side in sides.items()}  # The warm-up.
  ours = answers["predict.py"]
  times = measuring.median_times(sides, _ROUNDS.value)
  return {
    "texts_per_second": {
      name: round(num_texts / of_side.wall, 1) for name, of_side in times.items()
    },
    "processor_seconds": {name: round(of_side.cpu, 1) for name, of_side in times.items()},
    "largest_difference": max(float(np.abs(theirs - ours).max()) for theirs in answers.values()),
  }


if __name__ == "__main__":
  measuring.run(_measure)
