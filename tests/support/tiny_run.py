"""Makes a run directory with random weights and a real, tiny vocabulary."""

import functools
import pathlib
from typing import Any

import numpy as np
from support.tiny_corpus import trained_model
import tensorflow as tf

from albert_tf.checkpoints.bundle import write_bundle
from albert_tf.configs import AlbertConfig
from albert_tf.configs.task import TaskSpec
from albert_tf.keras_api.tasks import CLASS_OF_KIND
from albert_tf.modeling import AlbertForPreTraining, named_variables
from albert_tf.tokenization import AlbertTokenizer, TokenizerConfig

WORDS = "the sky is blue and green grass grows under old trees while small birds sing all day long".split()


def as_bytes(texts: Any) -> np.ndarray:
  """Texts, nested in lists of one length or not, as a SavedModel takes them."""
  return np.vectorize(str.encode, otypes=[object])(np.array(texts, object))


@functools.cache
def tokenizer() -> AlbertTokenizer:
  lines = [" ".join(WORDS[(i * k) % len(WORDS)] for i in range(9)) for k in range(1, 120)]
  return AlbertTokenizer(trained_model(lines, vocab_size=61), TokenizerConfig())


def randomize(model: Any, *, seed: int, stddev: float) -> None:
  """Gives every variable random values, biases too: a swapped one is visible."""
  for number, variable in enumerate(named_variables(model).values()):
    variable.assign(tf.random.stateless_normal(variable.shape, [number, seed], stddev=stddev))


def values_of(model: Any) -> dict[str, np.ndarray]:
  """Original name → value."""
  return {name: variable.numpy() for name, variable in named_variables(model).items()}


def tiny_model(vocab_size: int, **changes: Any) -> AlbertForPreTraining:
  config = AlbertConfig.from_name(
    "tiny",
    vocab_size=vocab_size,
    embedding_size=8,
    hidden_size=12,
    num_attention_heads=3,
    intermediate_size=20,
    **{"num_hidden_layers": 2, "max_position_embeddings": 32, **changes},
  )
  model = AlbertForPreTraining(config)
  randomize(model, seed=3, stddev=0.5)
  return model


def _write(directory: pathlib.Path, model: Any, tokenizer: Any, prefix: str, **more: Any) -> None:
  """Configuration, tokenizer, and the model's weights as a checkpoint."""
  (directory / prefix).parent.mkdir(parents=True)
  (directory / "albert_config.json").write_text(model.config.to_json_string())
  tokenizer.save_pretrained(str(directory))
  write_bundle(str(directory / prefix), values_of(model) | more)


def write_run(
  directory: pathlib.Path, model: AlbertForPreTraining, tokenizer: AlbertTokenizer
) -> None:
  """A run directory as pretraining leaves it after ten updates."""
  _write(directory, model, tokenizer, "checkpoints/model.ckpt-10", global_step=np.int64(10))


def write_pretrained(directory: pathlib.Path, **changes: Any) -> str:
  """A run directory of `tokenizer` and a `tiny_model`."""
  write_run(directory, tiny_model(tokenizer().vocab_size, **changes), tokenizer())
  return str(directory)


def write_fine_tuned_run(
  directory: pathlib.Path, task: TaskSpec, config: AlbertConfig, tokenizer: AlbertTokenizer
) -> Any:
  """A run directory as fine-tuning leaves it, with random weights; returns the model."""
  model = CLASS_OF_KIND[task.kind](config, task=task)
  randomize(model, seed=5, stddev=0.5)
  _write(directory, model, tokenizer, "checkpoints/best/model.ckpt-7")
  task.save(str(directory))
  return model
