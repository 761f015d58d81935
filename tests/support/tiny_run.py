"""Makes a run directory with random weights and a real, tiny vocabulary."""

import functools
import io
import pathlib
import shutil
from typing import Any

import numpy as np
import sentencepiece
import tensorflow as tf

from albert_tf.checkpoints.bundle import write_bundle
from albert_tf.configs import AlbertConfig
from albert_tf.configs.task import TaskSpec
from albert_tf.keras_api.tasks import CLASS_OF_KIND
from albert_tf.modeling import AlbertForPreTraining, named_variables
from albert_tf.tokenization import AlbertTokenizer, TokenizerConfig, WordPieceTokenizer

WORDS = "the sky is blue and green grass grows under old trees while small birds sing all day long".split()


def as_bytes(texts: Any) -> np.ndarray:
  """Texts, nested in lists of one length or not, as a SavedModel takes them."""
  return np.vectorize(str.encode, otypes=[object])(np.array(texts, object))


@functools.cache
def tokenizer() -> AlbertTokenizer:
  model = io.BytesIO()
  lines = [" ".join(WORDS[(i * k) % len(WORDS)] for i in range(9)) for k in range(1, 120)]
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(lines),
    model_writer=model,
    vocab_size=61,
    pad_id=0,
    unk_id=1,
    bos_id=-1,
    eos_id=-1,
    control_symbols=["[CLS]", "[SEP]", "[MASK]"],
    hard_vocab_limit=False,
    minloglevel=2,
  )
  return AlbertTokenizer(model.getvalue(), TokenizerConfig())


def tiny_model(vocab_size: int, **changes: Any) -> AlbertForPreTraining:
  config = AlbertConfig.from_name(
    "tiny",
    vocab_size=vocab_size,
    embedding_size=8,
    hidden_size=12,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=20,
    **{"max_position_embeddings": 32, **changes},
  )
  model = AlbertForPreTraining(config)
  for number, variable in enumerate(
    named_variables(model).values()
  ):  # Biases too: a swapped one is visible.
    variable.assign(tf.random.stateless_normal(variable.shape, seed=[number, 3], stddev=0.5))
  return model


def write_run(
  directory: pathlib.Path, model: AlbertForPreTraining, tokenizer: AlbertTokenizer
) -> None:
  """Configuration, tokenizer, and the model's weights as checkpoints/model.ckpt-10."""
  (directory / "checkpoints").mkdir(parents=True)
  (directory / "albert_config.json").write_text(model.config.to_json_string())
  tokenizer.save_pretrained(str(directory))
  variables = named_variables(model)
  names = [*variables, "global_step"]
  tensors = [*(v.read_value() for v in variables.values()), tf.constant(10, tf.int64)]
  prefix = str(directory / "checkpoints/model.ckpt-10")
  tf.raw_ops.SaveV2(
    prefix=prefix, tensor_names=names, shape_and_slices=[""] * len(names), tensors=tensors
  )


def write_pretrained(directory: pathlib.Path, **changes: Any) -> str:
  """A run directory of `tokenizer` and a `tiny_model`."""
  write_run(directory, tiny_model(tokenizer().vocab_size, **changes), tokenizer())
  return str(directory)


def write_hub(
  directory: pathlib.Path,
  model: AlbertForPreTraining,
  tokenizer: AlbertTokenizer | WordPieceTokenizer,
  vocabulary: str,
) -> str:
  """A TF-Hub module, unpacked, as Google's are: no sentence-order head, assets under names of their own."""
  (directory / "assets").mkdir(parents=True)
  (directory / "variables").mkdir()
  (directory / "saved_model.pb").write_bytes(b"")
  (directory / "assets/albert_config.json").write_text(model.config.to_json_string())
  tokenizer.save_pretrained(str(directory / "saved"))
  (source,) = [
    path for path in (directory / "saved").iterdir() if path.suffix in (".model", ".txt")
  ]
  source.rename(directory / "assets" / vocabulary)
  shutil.rmtree(directory / "saved")
  variables = {
    name: v.numpy() for name, v in named_variables(model).items() if "seq_relationship" not in name
  }
  write_bundle(str(directory / "variables/variables"), variables)
  return str(directory)


def write_fine_tuned_run(
  directory: pathlib.Path, task: TaskSpec, config: AlbertConfig, tokenizer: AlbertTokenizer
) -> Any:
  """A run directory as fine-tuning leaves it, with random weights; returns the model."""
  model = CLASS_OF_KIND[task.kind](config, task=task)
  variables = named_variables(model)
  for number, variable in enumerate(variables.values()):
    variable.assign(tf.random.stateless_normal(variable.shape, seed=[number, 5], stddev=0.5))
  (directory / "checkpoints/best").mkdir(parents=True)
  (directory / "albert_config.json").write_text(config.to_json_string())
  tokenizer.save_pretrained(str(directory))
  task.save(str(directory))
  write_bundle(
    str(directory / "checkpoints/best/model.ckpt-7"), {n: v.numpy() for n, v in variables.items()}
  )
  return model
