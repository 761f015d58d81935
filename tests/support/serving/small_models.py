"""Models of every kind with random weights."""

import dataclasses

from support.tiny_records import tiny_config
from support.tiny_run import randomize

from albert_tf import AlbertEncoder, AlbertMaskedLM
from albert_tf.configs import AlbertConfig
from albert_tf.configs.task import TaskSpec
from albert_tf.keras_api.tasks import CLASS_OF_KIND
from albert_tf.keras_api.text_model import TextModel

CONFIG = tiny_config(vocab_size=97, hidden_size=24, max_position_embeddings=20)
# Wide enough for matrices to outweigh the graph, deep enough to betray a copy a layer.
DEEP = dataclasses.replace(
  CONFIG,
  vocab_size=1000,
  embedding_size=64,
  hidden_size=192,
  num_hidden_layers=12,
  intermediate_size=768,
)
TASKS = {
  "encoder": None,
  "fill_mask": None,
  "classifier": TaskSpec(kind="classification", name="custom", label_names=("a", "b", "c", "d")),
  "labels": TaskSpec(kind="multi_label", name="custom", label_names=("a", "b", "c")),
  "regression": TaskSpec(kind="regression", name="stsb"),
  "vectors": TaskSpec(kind="sentence_vectors", name="search"),
  "choices": TaskSpec(kind="multiple_choice", name="race"),
  "tags": TaskSpec(kind="token_classification", name="ner", label_names=("O", "B-X", "I-X")),
  "squad1": TaskSpec(kind="question_answering", name="squad", squad_version="1.1"),
  "squad2": TaskSpec(kind="question_answering", name="squad", squad_version="2.0"),
}


def small_model(which: str, config: AlbertConfig = CONFIG, *, stddev: float = 0.3) -> TextModel:
  """The model of a key of `TASKS` with random weights."""
  task = TASKS[which]
  if task is None:
    model = (AlbertEncoder if which == "encoder" else AlbertMaskedLM)(config)
  else:
    model = CLASS_OF_KIND[task.kind](config, task=task)
  randomize(model, seed=7, stddev=stddev)
  return model
