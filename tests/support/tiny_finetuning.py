"""A tiny encoder and tasks on made-up sentences that can be learned, for tests of fine-tuning."""

import numpy as np
from support.tiny_run import WORDS, tokenizer

from albert_tf.configs import AlbertConfig
from albert_tf.configs.task import TaskSpec
from albert_tf.finetuning.initialize import Start
from albert_tf.finetuning.settings import FineTuneSettings
from albert_tf.finetuning.tasks.text import TextTask
from albert_tf.finetuning.tasks.text_tables import TextExample
from albert_tf.runs.settings import DistributionConfig

# A learning rate at which random weights learn 64 examples by heart in seconds.
QUICK = FineTuneSettings(
  train_batch_size=16,
  eval_batch_size=16,
  learning_rate=3e-3,
  num_train_steps=200,
  eval_steps=100,
  classifier_dropout=0.0,
  verbose=False,
)

BFLOAT16 = DistributionConfig(mixed_precision="bfloat16")


def tiny_start(**config):
  """Random weights of a narrow model."""
  sizes = {
    "embedding_size": 16,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.3,  # Random features that differ: a narrow model learns by heart from them.
  }
  model = AlbertConfig.from_name("tiny", vocab_size=tokenizer().vocab_size, **{**sizes, **config})
  return Start(config=model, tokenizer=tokenizer(), checkpoint=None, source="random weights")


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
  """A task on texts; splits as `TextTask` takes them."""
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
  return TextTask(spec, splits, tokenizer=tokenizer(), metric_names=metrics)
