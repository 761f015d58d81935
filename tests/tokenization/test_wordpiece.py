"""WordPiece against the original's recorded rows."""

import pathlib
import pickle

import pytest
from support.goldens import golden_rows
from support.wordpiece import write_vocabulary

from albert_tf.errors import UserError
from albert_tf.tokenization.wordpiece import WordPieceTokenizer


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
  assert (tokenizer.vocab_size, tokenizer.pieces[10], tokenizer.ids.get("none", tokenizer.unk_id)) == (
    13,
    " ",
    1,
  )
  other = pickle.loads(pickle.dumps(tokenizer))
  assert other.encode("un [MASK] able!") == tokenizer.encode("un [MASK] able!")


def test_user_mistakes(tmp_path: pathlib.Path):
  (tmp_path / "vocab.txt").write_text("[UNK]\n[PAD]\n[CLS]\n[SEP]\n[MASK]\n")
  with pytest.raises(UserError, match=r"with \[PAD\] at id 0"):
    WordPieceTokenizer.from_pretrained(str(tmp_path / "vocab.txt"))
