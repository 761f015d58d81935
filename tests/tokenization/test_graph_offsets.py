"""Offsets in the graph are those of the Python tokenizer."""

import itertools
import pathlib
import unicodedata

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest
from reference.offsets import encode_with_offsets
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
UNITS = [
  *"ab 9,.'`ßΣς",
  "12,",
  "e\u0301",
  "ﬁ",
  "½",
  "İ",
  "😀",
  "각",
  "ﷺ",
  "日本",
  "\u00a0",
  "\u3000",
  "the ",
  "'' ",
  "\u0301",
  "\u200b",
  "\u200e",
  "▁",
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


def differences(tokenizer: AlbertTokenizer, module: GraphOffsets, texts: list[str]) -> list[tuple[str, ...]]:
  located = module(tf.constant(texts))
  rows = zip(texts, located.ids.to_list(), located.starts.to_list(), located.ends.to_list(), strict=True)
  found = []
  for text, ids, starts, ends in rows:
    expected_ids, expected = encode_with_offsets(tokenizer, text)
    assert ids == expected_ids
    before = 0  # Of a lone "▁", the graph gives the end of the piece before.
    for piece, (start, end), a, b in zip(ids, expected, starts, ends, strict=True):
      before = end if start < end else before
      if (start, max(start, before)) != (a, max(a, b)):
        found.append((text, tokenizer.id_to_piece(piece), text[start:before], text[a:b]))
  return found


def test_ranges_equal_python(both: Both) -> None:
  assert differences(*both, TEXTS) == []


@settings(max_examples=6, deadline=None)
@given(texts=st.lists(st.lists(st.sampled_from(UNITS), max_size=12).map("".join), min_size=1, max_size=20))
def test_any_mixture(both: Both, texts: list[str]) -> None:
  if both[0].config.keep_accents:
    # What SentencePiece takes apart itself: a piece with some of it has all of its place here, by its own offsets none.
    texts = [
      "".join(char for char in text if len(unicodedata.normalize("NFKC", char)) == 1) for text in texts
    ]
  assert differences(*both, texts) == []


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


@pytest.mark.nightly
def test_real_text(shared_dir: pathlib.Path) -> None:
  tokenizer, module = make_both(str(shared_dir / "data/vocab/30k-clean.model"))
  for name in ("wikitext-2/valid.txt", "wikiextractor/small"):
    lines = (shared_dir / "data/corpora" / name).read_text(encoding="utf-8").splitlines()
    assert differences(tokenizer, module, lines) == []
