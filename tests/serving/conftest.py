"""A run directory with random weights, and what is in it."""

import pathlib

import pytest
from reference import tiny_run

from albert_tf.configs import AlbertConfig
from albert_tf.modeling import AlbertForPreTraining
from albert_tf.tokenization import AlbertTokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> AlbertTokenizer:
  return tiny_run.train_tokenizer(tmp_path_factory.mktemp("vocabulary"))


@pytest.fixture(scope="session")
def model(tokenizer: AlbertTokenizer) -> AlbertForPreTraining:
  return tiny_run.tiny_model(tokenizer.vocab_size)


@pytest.fixture(scope="session")
def config(model: AlbertForPreTraining) -> AlbertConfig:
  return model.config


@pytest.fixture(scope="session")
def run_dir(
  model: AlbertForPreTraining, tokenizer: AlbertTokenizer, tmp_path_factory: pytest.TempPathFactory
) -> pathlib.Path:
  directory = tmp_path_factory.mktemp("run") / "run"
  tiny_run.write_run(directory, model, tokenizer)
  return directory
