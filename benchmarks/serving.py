"""Strings in, answers out: the exported SavedModel against the Python tokenizer and model, in one run.

Prints one JSON line. The claim: from strings to answers the SavedModel is not slower, for any batch. Both sides
compute the same classifier on the same texts, padded to the batch's longest; they take turns, one going first in
every other round. `ratio` is the median over rounds of Python's time over the SavedModel's (above 1: the SavedModel
is faster), from wall time and, as `cpu_ratio`, from CPU time, which other work on the machine disturbs less.
`tokenizer_ms` are the two tokenizers alone.

Example:
  python benchmarks/serving.py --size base --batch_sizes 1,8,32
"""

from collections.abc import Callable
import os
import tempfile
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from absl import flags
import common
import numpy as np
import tensorflow as tf

from albert_tf import AlbertClassifier, AlbertPreprocessor
from albert_tf.compat import STACK
from albert_tf.configs import AlbertConfig, named_sizes
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.tokenization import AlbertTokenizer
from albert_tf.tokenization.graph import GraphTokenizer

_SIZE = flags.DEFINE_enum("size", "small", named_sizes(), "The model.")
_BATCH_SIZES = flags.DEFINE_list("batch_sizes", ["1", "8", "32", "256"], "Texts of a request.")
_SECONDS = flags.DEFINE_float("seconds", 20.0, "About how long each batch size is measured.", lower_bound=0.1)
_MAX_ROUNDS = flags.DEFINE_integer("max_rounds", 200, "Most rounds of a batch size.", lower_bound=3)
_MAX_SEQ_LENGTH = flags.DEFINE_integer("max_seq_length", 128, "Texts are cut here.", lower_bound=8)
_CORPUS = common.define_corpus_flags()

_TASK = TaskSpec(kind="classification", name="custom", label_names=("no", "yes"))
_MIN_ROUNDS = 3
Answer = Callable[[list[str]], np.ndarray]


def make_classifier(tokenizer: AlbertTokenizer) -> Any:
  """A classifier with initial weights, whose values do not change the time."""
  config = AlbertConfig.from_name(_SIZE.value, vocab_size=tokenizer.vocab_size)
  preprocessor = AlbertPreprocessor(tokenizer, max_length=_MAX_SEQ_LENGTH.value)
  return AlbertClassifier(config, task=_TASK, preprocessor=preprocessor)


def saved_model_answers(model: Any) -> Answer:
  """Strings into the export's default signature."""
  with tempfile.TemporaryDirectory() as folder:
    model.export(os.path.join(folder, "1"))
    loaded = tf.saved_model.load(os.path.join(folder, "1"))

  def answer(texts: list[str]) -> np.ndarray:
    return loaded.signatures["serving_default"](text=tf.constant(texts))["probabilities"].numpy()

  return answer


def python_answers(model: Any, tokenizer: AlbertTokenizer) -> Answer:
  """The Python tokenizer, then the model in one graph of free sizes."""
  names = ("input_ids", "input_mask", "segment_ids")
  spec = {name: tf.TensorSpec([None, None], tf.int32, name=name) for name in names}

  @tf.function(input_signature=[spec], autograph=False)
  def probabilities(batch: dict[str, tf.Tensor]) -> tf.Tensor:
    return tf.nn.softmax(model(batch, training=False))

  def answer(texts: list[str]) -> np.ndarray:
    batch = tokenizer(texts, max_length=_MAX_SEQ_LENGTH.value)
    return probabilities({name: tf.constant(batch[name]) for name in names}).numpy()

  return answer


def take_turns(
  sides: dict[str, Callable[[list[str]], Any]], batches: list[list[str]]
) -> dict[str, np.ndarray]:
  """Each side on the same batch in every round, until the time is over: seconds [rounds, 2], wall and CPU."""
  timings: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
  started = time.perf_counter()
  for number in range(_MAX_ROUNDS.value):
    if number >= _MIN_ROUNDS and time.perf_counter() - started > _SECONDS.value:
      break
    for name in list(sides) if number % 2 else list(sides)[::-1]:
      wall, cpu = time.perf_counter(), time.process_time()
      sides[name](batches[number % len(batches)])
      timings[name].append((time.perf_counter() - wall, time.process_time() - cpu))
  return {name: np.array(seconds) for name, seconds in timings.items()}


def summary(seconds: np.ndarray, batch_size: int) -> dict[str, float]:
  wall = seconds[:, 0]
  return {
    "texts_per_second": batch_size * len(wall) / float(wall.sum()),
    "p50_ms": 1e3 * float(np.median(wall)),
    "p99_ms": 1e3 * float(np.percentile(wall, 99)),
  }


def measure(texts: list[str], tokenizer: AlbertTokenizer) -> list[dict[str, Any]]:
  """One row a batch size."""
  model = make_classifier(tokenizer)
  sides = {"saved_model": saved_model_answers(model), "python": python_answers(model, tokenizer)}
  graph_tokenizer = GraphTokenizer(tokenizer)
  length = _MAX_SEQ_LENGTH.value
  packed = tf.function(
    lambda text: graph_tokenizer(text, max_length=length),
    input_signature=[tf.TensorSpec([None], tf.string)],
    autograph=False,
  )
  tokenizers = {
    "graph": lambda texts: packed(tf.constant(texts))["input_ids"].numpy(),
    "python": lambda texts: tokenizer(texts, max_length=length),
  }
  rows = []
  for batch_size in map(int, _BATCH_SIZES.value):
    count = min(max(len(texts) // batch_size, 1), 50)
    batches = [[texts[(i * batch_size + k) % len(texts)] for k in range(batch_size)] for i in range(count)]
    difference = np.abs(sides["saved_model"](batches[0]) - sides["python"](batches[0])).max()
    for side in (*sides.values(), *tokenizers.values()):
      side(batches[0])  # Warm.
    timings, alone = take_turns(sides, batches), take_turns(tokenizers, batches)
    wall, cpu = np.median(timings["python"] / timings["saved_model"], axis=0)
    rows.append(
      {
        "batch_size": batch_size,
        "rounds": len(timings["python"]),
        "ratio": float(wall),
        "cpu_ratio": float(cpu),
        **{name: summary(values, batch_size) for name, values in timings.items()},
        "tokenizer_ms": {name: 1e3 * float(np.median(seconds[:, 0])) for name, seconds in alone.items()},
        "largest_difference": float(difference),
      }
    )
  return rows


def benchmark() -> dict[str, Any]:
  with tempfile.TemporaryDirectory() as folder:
    documents, vocabulary = _CORPUS(folder, megabytes=2.0)
    texts = [sentence for document in documents for sentence in document]
    if not texts:
      raise UserError("There must be text to send. Received: --input without any. Name files with text.")
    np.random.default_rng(0).shuffle(texts)
    rows = measure(texts, AlbertTokenizer(spm_model_file=vocabulary))
  return {
    "stack": STACK,
    "tensorflow": tf.__version__,
    "size": _SIZE.value,
    "max_seq_length": _MAX_SEQ_LENGTH.value,
    "mean_characters": sum(map(len, texts)) / len(texts),
    "claim": 1.0,
    "ratio": min(row["ratio"] for row in rows),
    "cpu_ratio": min(row["cpu_ratio"] for row in rows),
    "rows": rows,
  }


if __name__ == "__main__":
  common.run(benchmark)
