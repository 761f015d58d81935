"""The tokenizer in the graph gives the ids of the Python one, and the offsets of its twin, for any text."""

import functools
import sys
import unicodedata

from fuzz.fuzzing import fuzz
from hypothesis import strategies as st
import pytest
from reference.offsets import differences
from support.goldens import SPM_MODEL
import tensorflow as tf

from albert_tf.tokenization import AlbertTokenizer
from albert_tf.tokenization.graph import GraphTokenizer
from albert_tf.tokenization.graph_offsets import GraphOffsets

SETTINGS = [
  {},
  {"keep_accents": True, "do_lower_case": False},
  {"do_lower_case": False, "normalize_quotes": True},
  {"keep_accents": True, "digit_comma": "nostrip"},
]
# Whatever words, marks, their order and their ends depend on.
ODD = "aAΣσς'. \u0301\u0302\u0327\u00ad\u02b0\u00a0\u2003\u3000\t`İıß½´9,\u200b\u200e\ufeff▁각ﷺﬁ😀日か\u3099ｶﾞ\u0903"
UNITS = st.sampled_from(["12,", "1,2,", "the ", "'' ", "``", "[MASK]", "e\u0301", "क्षि", "👨‍👩‍👧"])


def is_character(char: str) -> bool:
  """Not one of the 66 noncharacters: TensorFlow 2.15 reads those as U+FFFD."""
  return not (0xFDD0 <= ord(char) <= 0xFDEF or ord(char) & 0xFFFE == 0xFFFE)


ANY = st.characters(codec="utf-8", max_codepoint=sys.maxunicode).filter(is_character)
TEXTS = st.lists(
  st.lists(ANY | st.sampled_from(ODD) | UNITS, max_size=20).map("".join), min_size=1, max_size=20
)


@functools.cache
def both(choice: int):
  tokenizer = AlbertTokenizer.from_pretrained(SPM_MODEL, **SETTINGS[choice])
  graph = GraphTokenizer(tokenizer)
  located = tf.function(GraphOffsets(tokenizer, graph).__call__, autograph=False)
  signature = tf.TensorSpec([None], tf.string)
  return tokenizer, graph, located.get_concrete_function(signature)


@pytest.mark.parametrize("choice", [0, 1, *(pytest.param(each, marks=pytest.mark.slow) for each in (2, 3))])
@fuzz(texts=TEXTS, cost=2)
def test_ids_and_offsets(choice: int, texts: list[str]) -> None:
  tokenizer, graph, located = both(choice)
  assert [text.decode() for text in graph.normalize(tf.constant(texts)).numpy()] == list(
    map(tokenizer.normalize, texts)
  )
  assert graph.tokenize(tf.constant(texts)).to_list() == tokenizer.encode_batch(texts)
  if tokenizer.config.keep_accents:
    # What SentencePiece takes apart itself: a piece with some of it has all of its place here, by its own offsets none.
    texts = [
      "".join(char for char in text if len(unicodedata.normalize("NFKC", char)) == 1) for text in texts
    ]
  assert differences(tokenizer, located(tf.constant(texts)), texts) == []
