"""Case and accents kept: the text survives, and so does the choice, after every way to travel."""

import pytest
from support.languages import TEXTS, train_model

from albert_tf.tokenization import AlbertTokenizer, TokenizerConfig


@pytest.fixture(scope="module")
def cased(tmp_path_factory: pytest.TempPathFactory) -> AlbertTokenizer:
  path = train_model(tmp_path_factory.mktemp("vocab") / "cased.model", do_lower_case=False, keep_accents=True)
  return AlbertTokenizer.from_pretrained(path)


@pytest.mark.parametrize("language", TEXTS)
def test_text_survives(cased: AlbertTokenizer, language: str):
  text = TEXTS[language]
  assert cased.decode(cased.encode(text)) == text
  plain = AlbertTokenizer(cased.model_bytes, TokenizerConfig())
  assert (plain.encode(text) == cased.encode(text)) == (language == "Chinese")
