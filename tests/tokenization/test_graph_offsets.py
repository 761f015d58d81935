"""Offsets in the graph are those of the Python tokenizer."""

import itertools

import pytest
from reference.offsets import differences
from support.goldens import SPM_MODEL
import tensorflow as tf

from albert_tf.tokenization import AlbertTokenizer
from albert_tf.tokenization.graph import GraphTokenizer
from albert_tf.tokenization.graph_offsets import GraphOffsets

TEXTS = [
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
SETTINGS = [
  {},
  {"do_lower_case": False},
  {"normalize_quotes": True},
  {"digit_comma": "nostrip"},
  {"keep_accents": True},
  {"keep_accents": True, "do_lower_case": False},
]
Both = tuple[AlbertTokenizer, GraphOffsets]


@pytest.fixture(scope="module", params=range(len(SETTINGS)))
def both(request: pytest.FixtureRequest) -> Both:
  return make_both(SPM_MODEL, **SETTINGS[request.param])


def make_both(model: str, **options: object) -> Both:
  tokenizer = AlbertTokenizer.from_pretrained(model, **options)
  return tokenizer, GraphOffsets(tokenizer, GraphTokenizer(tokenizer))


def test_ranges_equal_python(both: Both) -> None:
  assert differences(both[0], both[1](tf.constant(TEXTS)), TEXTS) == []


def test_bytes_give_the_original_text(both: Both) -> None:
  located = both[1](tf.constant([TEXTS[3].encode(), b"the \xff\xfe cat", b"x\x00y\xe2\x80\x8bz", b""]))
  texts = [text.decode() for text in located.texts.numpy()]
  assert texts[1] == "the \ufffd\ufffd cat"
  for text, offsets in zip(texts, located.char_bytes.to_list(), strict=True):
    characters = [text.encode()[a:b].decode() for a, b in itertools.pairwise(offsets)]
    assert characters == list(text)
  for text, starts, ends in zip(texts, located.starts.to_list(), located.ends.to_list(), strict=True):
    assert all(0 <= place <= len(text) for place in (*starts, *ends))
    # Pieces do not overlap, but where one character makes several.
    assert starts == sorted(starts)
    assert ends == sorted(ends)


def test_empty_batch(both: Both) -> None:
  located = both[1](tf.constant([], tf.string))
  assert located.starts.to_list() == located.ids.to_list() == []
