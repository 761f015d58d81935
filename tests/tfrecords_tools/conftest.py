"""A tiny vocabulary for tests of the data tools."""

import pytest
from support import tiny_corpus

from albert_tf.tokenization import AlbertTokenizer


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
  return tiny_corpus.train_model(str(tmp_path_factory.mktemp("vocab") / "tiny.model"))


@pytest.fixture(scope="session")
def tiny_tokenizer(tiny_model):
  return AlbertTokenizer.from_pretrained(tiny_model)
