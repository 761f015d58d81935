"""A tiny encoder and tasks on made-up sentences that can be learned, for tests of fine-tuning."""

import functools

import numpy as np
from support.tiny_run import WORDS, tokenizer

from albert_tf.checkpoints.checkpoint import Checkpoint
from albert_tf.configs import AlbertConfig
from albert_tf.configs.task import TaskSpec
from albert_tf.finetuning.settings import FineTuneSettings
from albert_tf.finetuning.tasks.labelled import LabelledTask, TextExample, named_metrics
from albert_tf.modeling.name_map import variable_entries
from albert_tf.runs.settings import DistributionConfig

# A learning rate at which random weights learn 64 examples by heart in seconds.
QUICK = FineTuneSettings(
  train_batch_size=16,
  eval_batch_size=16,
  learning_rate=3e-3,
  num_train_steps=200,
  save_checkpoints_steps=100,
  classifier_dropout=0.0,
)

BFLOAT16 = DistributionConfig(mixed_precision="bfloat16")


@functools.cache
def tiny_start(**config):
  """Random weights of a narrow model that was only pretrained."""
  sizes = {
    "embedding_size": 16,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.3,
  }
  size = AlbertConfig.from_name("tiny", vocab_size=tokenizer().vocab_size, **{**sizes, **config})
  rng = np.random.default_rng(1)
  variables = {}
  for entry in variable_entries(size):
    # Random features that differ: a narrow model learns by heart from them.
    values = rng.normal(scale=0.3, size=entry.shape)
    if entry.name.endswith("gamma"):
      values = np.ones(entry.shape)
    elif not entry.name.endswith(("kernel", "embeddings")):
      values = np.zeros(entry.shape)
    variables[entry.name] = values.astype(np.float32)
  return Checkpoint(config=size, variables=variables, path="random weights", directory="nowhere")


def made_up_texts(count, *, pair=False, classes=2, regression=False, labelled=True, seed=0):
  """Sentences of 3 to 12 words with labels that have nothing to do with them: only by heart."""
  rng = np.random.default_rng(seed)

  def sentence():
    return " ".join(rng.choice(WORDS, size=rng.integers(3, 13)))

  texts = [sentence() for _ in range(count)]
  pairs = [sentence() if pair else None for _ in range(count)]
  values = rng.uniform(0, 5, count) if regression else rng.integers(0, classes, count)
  labels = [f"{value:.3f}" if regression else f"c{value}" for value in values]
  return [
    TextExample(str(i), texts[i], pairs[i], labels[i] if labelled else None) for i in range(count)
  ]


def tiny_task(splits, *, pair=False, classes=2, regression=False, name="tiny", max_seq_length=40):
  """A task on texts; splits as `LabelledTask` takes them."""
  spec = TaskSpec(
    kind="regression" if regression else "classification",
    name=name,
    label_names=() if regression else tuple(f"c{i}" for i in range(classes)),
    pair=pair,
    max_seq_length=max_seq_length,
  )
  metrics = ("pearson", "spearman") if regression else ("accuracy", "f1")
  if classes > 2:
    metrics = ("accuracy", "macro_f1")
  return LabelledTask(spec, splits, tokenizer=tokenizer(), metrics=named_metrics(*metrics))
