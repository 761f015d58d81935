"""The tokenizer in the graph gives the ids of the Python one, and the offsets of its twin, for any text."""

import functools
import sys
import unicodedata

from fuzz.fuzzing import fuzz
import hypothesis
from hypothesis import strategies as st
import pytest
from reference.offsets import differences
from reference.tokenization import is_character
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


ANY = st.characters(codec="utf-8", max_codepoint=sys.maxunicode).filter(is_character)
KNOWN = [
  "In 1990, the ﬁrst ½ İstanbul café (cafe\u0301) opened.",
  "",
  "  two\u00a0 words\t\n",
  "😀 emoji 👨‍👩‍👧 inside日本語テキスト と unknown",
  "한국어 텍스트, 각각",
  "a\u0301\u0302b \u0301c … ﷺ ™ ㎏ Å",
  "12,34, 5,, ,6 ``quoted'' '''x",
  "\u200eone\u200e \u200e \u200btwo\u200b\u200bthree ▁four \ufefffive\u0001 1\u200e2,\u200e ½\u0301\u0302 \u200e\u0301",
  # Composed, in parts, in parts of another order, a mark on nothing; and what changes its length in lower case.
  "Ấ\u0301 e\u0301e\u0302\u0323 \u0301c İIıi ẞß ΌΣΟΣ ΣΑΣ, ﬁn ½ が か\u3099 ｶﾞ",
  "عَرَبِيّ  ي\u0651 12, 1990,é ''x''",
  "क्षि हिन्दी",
]
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


@pytest.mark.parametrize(
  "choice", [0, *(pytest.param(each, marks=pytest.mark.slow) for each in (1, 2, 3))]
)
@hypothesis.example(texts=KNOWN)
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
      "".join(char for char in text if len(unicodedata.normalize("NFKC", char)) == 1)
      for text in texts
    ]
  assert differences(tokenizer, located(tf.constant(texts)), texts) == []
