"""A run directory with random weights and a real, tiny vocabulary."""

import os
import pathlib

import pytest
import sentencepiece
import tensorflow as tf

from albert_tf.configs import AlbertConfig
from albert_tf.modeling import AlbertForPreTraining, named_variables
from albert_tf.tokenization import AlbertTokenizer

WORDS = "the sky is blue and green grass grows under old trees while small birds sing all day long".split()


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> AlbertTokenizer:
  prefix = tmp_path_factory.mktemp("vocabulary") / "spm"
  lines = [" ".join(WORDS[(i * k) % len(WORDS)] for i in range(9)) for k in range(1, 120)]
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(lines),
    model_prefix=str(prefix),
    vocab_size=61,
    pad_id=0,
    unk_id=1,
    bos_id=-1,
    eos_id=-1,
    control_symbols=["[CLS]", "[SEP]", "[MASK]"],
    hard_vocab_limit=False,
    minloglevel=2,
  )
  return AlbertTokenizer(spm_model_file=f"{prefix}.model")


@pytest.fixture(scope="session")
def config(tokenizer: AlbertTokenizer) -> AlbertConfig:
  return AlbertConfig.from_name(
    "tiny",
    vocab_size=tokenizer.vocab_size,
    embedding_size=8,
    hidden_size=12,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=20,
    max_position_embeddings=32,
    initializer_range=0.5,
  )


@pytest.fixture(scope="session")
def model(config: AlbertConfig) -> AlbertForPreTraining:
  model = AlbertForPreTraining(config)
  for number, variable in enumerate(named_variables(model).values()):  # Biases too: a swapped one is visible.
    variable.assign(tf.random.stateless_normal(variable.shape, seed=[number, 3], stddev=0.5))
  return model


@pytest.fixture(scope="session")
def run_dir(
  config: AlbertConfig,
  model: AlbertForPreTraining,
  tokenizer: AlbertTokenizer,
  tmp_path_factory: pytest.TempPathFactory,
) -> pathlib.Path:
  directory = tmp_path_factory.mktemp("run")
  (directory / "albert_config.json").write_text(config.to_json_string())
  tokenizer.save_pretrained(str(directory))
  (directory / "checkpoints").mkdir()
  write_checkpoint(model, directory / "checkpoints/model.ckpt-10")
  return directory


def write_checkpoint(model: AlbertForPreTraining, prefix: os.PathLike[str]) -> None:
  variables = named_variables(model)
  names = [*variables, "global_step"]
  tensors = [*(v.read_value() for v in variables.values()), tf.constant(10, tf.int64)]
  tf.raw_ops.SaveV2(
    prefix=str(prefix), tensor_names=names, shape_and_slices=[""] * len(names), tensors=tensors
  )
