"""WordPiece against the original's recorded rows; as TensorFlow ops the ids of the Python one, for any text."""

import functools
import pathlib
import pickle
import unicodedata

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest
from reference.tokenization import is_character
from support.goldens import golden_rows
from support.wordpiece import SPECIAL, write_vocabulary
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.tokenization import WordPieceTokenizer
from albert_tf.tokenization.graph import graph_tokenizer


@pytest.fixture(scope="module")
def vocab_file(tmp_path_factory: pytest.TempPathFactory) -> str:
  return write_vocabulary(tmp_path_factory.mktemp("wordpiece") / "vocab.txt")


def test_golden_rows(vocab_file: str):
  rows = golden_rows("tokenization")["wordpiece"]
  assert len(rows) == 50
  for lower in (True, False):
    tokenizer = WordPieceTokenizer.from_pretrained(vocab_file, do_lower_case=lower)
    for row in rows:
      if row["lower"] == lower:
        assert tokenizer.encode_pieces(row["text"]) == row["pieces"]
        assert tokenizer.encode(row["text"]) == row["ids"]


def test_rules_by_example(tmp_path: pathlib.Path):
  path = tmp_path / "vocab.txt"
  path.write_text(
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nun\n##aff\n##able\nun\n中\n \ncafe\n!\n", encoding="utf-8"
  )
  tokenizer = WordPieceTokenizer.from_pretrained(str(path))
  assert tokenizer.encode_pieces("Unaffable") == ["un", "##aff", "##able"]
  assert tokenizer.encode("un中Café!") == [5, 9, 11, 12]  # Of "un" the first line counts.
  assert tokenizer.encode_pieces("unknown " + "un" * 101) == ["[UNK]", "[UNK]"]
  assert tokenizer.decode(tokenizer.encode("unaffable cafe")) == "unaffable cafe"
  assert "".join(map(tokenizer.piece_text, ["un", "##aff", "cafe"])) == " unaff cafe"
  for rule in ("original", "sentencepiece"):
    assert tokenizer.word_starts(rule).tolist() == [True] * 6 + [False] * 2 + [True] * 5
  assert (tokenizer.vocab_size, tokenizer.pieces[10], tokenizer.unk_id) == (13, " ", 1)
  other = pickle.loads(pickle.dumps(tokenizer))
  assert other.encode("un [MASK] able!") == tokenizer.encode("un [MASK] able!")


def test_user_mistakes(tmp_path: pathlib.Path):
  (tmp_path / "vocab.txt").write_text("[UNK]\n[PAD]\n[CLS]\n[SEP]\n[MASK]\n")
  with pytest.raises(UserError, match=r"\[PAD\] at id 0.*Received: .*vocab\.txt"):
    WordPieceTokenizer.from_pretrained(str(tmp_path / "vocab.txt"))
  pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "▁the", "▁a", "s", "ing"]
  (tmp_path / "list.txt").write_text("\n".join(pieces), encoding="utf-8")
  with pytest.raises(UserError, match=r"list\.txt, where 2 of 9 begin with ▁.*\.model"):
    WordPieceTokenizer.from_pretrained(str(tmp_path / "list.txt"))


# Whatever words, marks, their order and their ends depend on.
_ODD = (
  "aAΣσς'. \u0301\u00ad\u02b0\u00a0\u2003`İ½´9,中\ufa6e\U0001d15e\u0903\u0901\ufe00"
  "\U000e0100\U000e0001\u3099가힣\x00\x85\v\t\n\ufffd[]#\u0378"
)


@functools.cache
def _both(vocab_file: str, lower: bool, accents: bool):
  rules = {"do_lower_case": lower, "keep_accents": accents}
  tokenizer = WordPieceTokenizer.from_pretrained(vocab_file, **rules)
  module = graph_tokenizer(tokenizer)
  signature = [tf.TensorSpec([None], tf.string)]
  return tokenizer, tf.function(module.tokenize, signature, autograph=False)


def _assert_equal(vocab_file: str, lower: bool, accents: bool, texts: list[str]) -> None:
  tokenizer, function = _both(vocab_file, lower, accents)
  got, expected = function(tf.constant(texts)).to_list(), tokenizer.encode_batch(texts)
  assert got == expected, [text for text, a, b in zip(texts, got, expected, strict=True) if a != b]


def _is_in_order(char: str) -> bool:
  """A character that is no combining mark but an accent: the graph leaves the order of others."""
  in_order = unicodedata.category(char) == "Mn" or not unicodedata.combining(char)
  return is_character(char) and in_order


@pytest.fixture(scope="module")
def few_pieces(tmp_path_factory: pytest.TempPathFactory) -> str:
  """All of `_ODD` are pieces, so that what becomes of them is seen; some are part of longer ones."""
  seen = [char for char in _ODD if char.isprintable() and not char.isspace()]
  parts = ["a", "aσ", "aς", "9", *seen]
  inside = [*parts, "σa", "ς", "i", "\u1100", "\u1161", "\u11a8", "b", "\u0307"]
  pieces = [*SPECIAL, "a", *parts, "i", "\u1100", *(f"##{part}" for part in inside), "##a"]
  path = tmp_path_factory.mktemp("few") / "vocab.txt"
  path.write_text("\n".join(pieces) + "\n", encoding="utf-8")
  return str(path)


@pytest.mark.parametrize(
  ("lower", "accents", "step"),
  [
    (True, False, 5),
    pytest.param(False, True, 5, marks=pytest.mark.slow),
    pytest.param(True, False, 1, marks=pytest.mark.slow),
  ],
)
def test_every_character(few_pieces: str, lower: bool, accents: bool, step: int):
  points = (*range(0x32000), *range(0xE0000, 0xE0200), 0xF0000, 0x10FFFD)
  texts = [f"A{char}9" for char in filter(is_character, map(chr, points[::step]))]
  _assert_equal(few_pieces, lower, accents, texts)


@settings(max_examples=30, deadline=None)
@given(
  texts=st.lists(
    st.text(st.characters(codec="utf-8").filter(_is_in_order), max_size=20)
    | st.text(_ODD, max_size=14)
    | st.text("aΣ\u0901\U000e0100", max_size=10),
    min_size=1,
    max_size=20,
  ),
  choice=st.sampled_from([(True, False), (False, True), (False, False)]),  # Lower-casing, accents.
)
def test_any_text(few_pieces: str, texts: list[str], choice: tuple[bool, bool]):
  _assert_equal(few_pieces, *choice, texts)


def test_long_words_and_bytes_that_are_not_utf8(vocab_file: str):
  texts = ["a" * 200, "a" * 201 + "!", "é" * 200 + "\u0301" * 300, "中" * 300, "word " * 500, ""]
  texts += [row["text"] for row in golden_rows("tokenization")["wordpiece"]]
  _assert_equal(vocab_file, True, False, texts)
  tokenizer, function = _both(vocab_file, True, False)
  broken = [b"the \xff\xfe sky", b"AS\xc3", b"\xed\xa0\x80", "A\u03a3".encode() + b"\xffB"]
  expected = [tokenizer.encode(text.decode(errors="replace")) for text in broken]
  assert function(tf.constant(broken)).to_list() == expected
