"""Case and accents kept: the text survives, and so does the choice, after every way to travel."""

import json
import pathlib

import pytest
from support.languages import TEXTS, train_model

from albert_tf.checkpoints import fast_tokenizer
from albert_tf.tokenization import AlbertTokenizer, TokenizerConfig
from albert_tf.tokenization.config import find_tokenizer


@pytest.fixture(scope="module")
def cased(tmp_path_factory: pytest.TempPathFactory) -> AlbertTokenizer:
  path = train_model(tmp_path_factory.mktemp("vocab") / "cased.model", do_lower_case=False, keep_accents=True)
  return AlbertTokenizer.from_pretrained(path)


def test_the_choice_travels(cased: AlbertTokenizer, tmp_path: pathlib.Path):
  assert cased.config == TokenizerConfig(
    do_lower_case=False, keep_accents=True
  )  # Noted beside the vocabulary.
  cased.save_pretrained(str(tmp_path))
  again = AlbertTokenizer.from_pretrained(str(tmp_path))
  assert again.config == cased.config
  # Hugging Face's form of it says it too, and is read back.
  (tmp_path / "spiece.model").write_bytes(cased.model_bytes)
  (tmp_path / "spm.model").unlink()
  values = fast_tokenizer.tokenizer_config_json(cased.config, tokenizer_class="AlbertTokenizer")
  (tmp_path / "tokenizer_config.json").write_text(values)
  assert find_tokenizer(str(tmp_path))[1] == cased.config
  steps = json.loads(fast_tokenizer.tokenizer_json(cased.model_bytes, cased.config))["normalizer"][
    "normalizers"
  ]
  assert {"NFKD", "Lowercase"}.isdisjoint(step["type"] for step in steps)


@pytest.mark.parametrize("language", TEXTS)
def test_text_survives(cased: AlbertTokenizer, language: str):
  text = TEXTS[language]
  assert cased.decode(cased.encode(text)) == text
  plain = AlbertTokenizer(cased.model_bytes, TokenizerConfig())
  assert (plain.encode(text) == cased.encode(text)) == (language == "Chinese")
