"""Case and accents kept: the same ids and places in Python, in a served graph, and after every way to travel."""

import json
import pathlib

import pytest
from reference.offsets import encode_with_offsets
from support.languages import TEXTS, train_model
import tensorflow as tf

from albert_tf.checkpoints import fast_tokenizer
from albert_tf.tokenization import AlbertTokenizer, TokenizerConfig
from albert_tf.tokenization.config import find_tokenizer
from albert_tf.tokenization.graph import GraphTokenizer
from albert_tf.tokenization.graph_offsets import GraphOffsets, Located

# Composed, in parts, in parts of another order, a mark on nothing; and what changes its length in lower case.
_ODD = [
  "Ấ\u0301 e\u0301e\u0302\u0323 \u0301c İIıi ẞß ΌΣΟΣ ΣΑΣ, ﬁn ½ が か\u3099 ｶﾞ",
  "عَرَبِيّ  ي\u0651 12, 1990,é ''x''",
  "क्षि हिन्दी",
]
_ALL = [*TEXTS.values(), *_ODD, ""]


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


class _Served(tf.Module):
  def __init__(self, tokenizer: AlbertTokenizer):
    super().__init__()
    self.graph = GraphTokenizer(tokenizer)
    self.offsets = GraphOffsets(tokenizer, self.graph)

  @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
  def serve(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
    found: Located = self.offsets(text)
    parts = {
      "ids": self.graph.tokenize(text),
      "starts": found.starts,
      "ends": found.ends,
      "located": found.ids,
    }
    return {name: ragged.to_tensor(-1) for name, ragged in parts.items()}


@pytest.mark.parametrize("lower", [False, True])
def test_served_graph_equals_python(cased: AlbertTokenizer, tmp_path: pathlib.Path, lower: bool):
  config = TokenizerConfig(do_lower_case=lower, keep_accents=True)
  tokenizer = AlbertTokenizer(cased.model_bytes, config)
  module = _Served(tokenizer)
  tf.saved_model.save(module, str(tmp_path / "1"), signatures=module.serve)
  served = tf.saved_model.load(str(tmp_path / "1")).signatures["serving_default"](text=tf.constant(_ALL))
  rows = {name: [[x for x in row if x >= 0] for row in served[name].numpy().tolist()] for name in served}
  for number, text in enumerate(_ALL):
    ids, places = encode_with_offsets(tokenizer, text)
    assert rows["ids"][number] == rows["located"][number] == ids == tokenizer.encode(text)
    shown = [(a, b) for a, b in places if a < b]
    graph = zip(rows["starts"][number], rows["ends"][number], strict=True)
    assert [(a, b) for a, b in graph if a < b] == shown, [text[a:b] for a, b in shown]
    if text in TEXTS.values():  # Nothing is lost and nothing is said twice.
      assert "".join(text[a:b] for a, b in shown) == "".join(text.split())
