"""`AlbertTokenizer` against the original's recorded rows, and its own rules."""

from collections.abc import Callable
import pathlib
import pickle
import shutil
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
from reference import tokenization as reference
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as model_proto
from support.goldens import SPM_MODEL, golden_rows
from support.languages import TEXTS, train_model

from albert_tf.errors import UserError
from albert_tf.tokenization import (
  AlbertTokenizer,
  TokenizerConfig,
  config,
  load_tokenizer,
  normalize_text,
)
from albert_tf.tokenization.word_starts import is_marked_start, is_word_start


@pytest.fixture(scope="module")
def rows() -> list[dict]:
  return golden_rows("tokenization")["sentencepiece"]


def test_golden_rows_of_the_original(rows: list[dict]):
  for lower in (True, False):
    options = {"do_lower_case": lower, "digit_comma": "nostrip"}
    tokenizer = AlbertTokenizer.from_pretrained(SPM_MODEL, **options)
    chosen = [row for row in rows if row["lower"] == lower]
    assert len(chosen) == 25
    for row in chosen:
      assert tokenizer.normalize(row["text"]) == row["preprocessed"]
      assert tokenizer.encode(row["text"]) == row["ids_nostrip"]


def test_golden_rows_with_the_intended_digit_comma_rule(rows: list[dict]):
  """Each raw piece "…9," becomes its number without a new "▁", and a comma."""
  tokenizer = AlbertTokenizer.from_pretrained(SPM_MODEL)
  expected = {"1⁄2,": ["▁1", "<unk>", "2", ","], "x2,y": ["▁x", "2", ",", "y"]}
  for row in rows:
    # No other row has a comma piece that the two rules treat differently.
    if row["lower"] and row["preprocessed"] not in expected:
      assert tokenizer.encode(row["text"]) == row["ids_nostrip"]
  assert {text: tokenizer.encode_pieces(text) for text in expected} == expected


_REAL = ("wikiextractor/wiki_01", "novels/Dickens_Expectations_1861.txt", "wikitext-2/valid.txt")


@pytest.mark.slow
@pytest.mark.parametrize(("lower", "strip"), [(True, True), (False, False)])
def test_real_text_equals_the_specification(shared_dir: pathlib.Path, lower: bool, strip: bool):
  path = str(shared_dir / "data/vocab/30k-clean.model")
  tokenizer = AlbertTokenizer.from_pretrained(
    path, do_lower_case=lower, digit_comma="strip" if strip else "nostrip"
  )
  processor = sentencepiece.SentencePieceProcessor(model_file=path)
  texts = [(shared_dir / "data/corpora" / name).read_text(encoding="utf-8") for name in _REAL]
  lines = [line for text in texts for line in text.splitlines()]
  rows = tokenizer.encode_batch(lines)
  for index, (line, row) in enumerate(zip(lines, rows, strict=True)):
    assert row == reference.encode(processor, line, lower=lower, strip=strip)
    if index % 50 == 0:
      assert row == tokenizer.encode(line)


def test_released_vocabulary(shared_dir: pathlib.Path):
  tokenizer = AlbertTokenizer.from_pretrained(str(shared_dir / "data/vocab"))
  assert tokenizer.model_sha256.startswith("fefb02b667a6c5c2")
  assert (tokenizer.vocab_size, tokenizer.pad_id, tokenizer.unk_id) == (30000, 0, 1)
  assert (tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id) == (2, 3, 4)
  assert tokenizer.pieces[5:13] == ["(", ")", '"', "-", ".", "–", "£", "€"]
  pieces = ["▁in", "▁1990", ",", "▁it", "▁worked", "."]
  assert tokenizer.encode_pieces("In 1990, it WORKED.") == pieces


def test_save_load_and_pickle_keep_everything(tmp_path: pathlib.Path):
  tokenizer = AlbertTokenizer.from_pretrained(
    SPM_MODEL, do_lower_case=False, normalize_quotes=True, digit_comma="nostrip"
  )
  tokenizer.save_pretrained(str(tmp_path / "run"))
  loaded = AlbertTokenizer.from_pretrained(str(tmp_path / "run"))
  for other in (loaded, pickle.loads(pickle.dumps(tokenizer))):
    assert other.config == tokenizer.config
    assert other.model_sha256 == tokenizer.model_sha256
    assert other.encode("A ``TeX'' 12, quote") == tokenizer.encode("A ``TeX'' 12, quote")


def test_hugging_face_directory_has_their_quote_rule(tmp_path: pathlib.Path):
  shutil.copy(SPM_MODEL, tmp_path / "spiece.model")
  settings = '{"do_lower_case": false, "model_max_length": 512}'
  (tmp_path / "tokenizer_config.json").write_text(settings)
  (tmp_path / "tokenizer.json").write_text('{"version": "1.0", "model": {}}')  # Not ours.
  tokenizer = AlbertTokenizer.from_pretrained(str(tmp_path))
  assert tokenizer.config == config.TokenizerConfig(do_lower_case=False, normalize_quotes=True)
  assert tokenizer.encode("say ``no''") == tokenizer.encode('say "no"')
  plain = AlbertTokenizer.from_pretrained(str(tmp_path), normalize_quotes=False)
  assert plain.encode("''") != tokenizer.encode('"')


@pytest.mark.parametrize(
  ("name", "content", "received"),
  [
    ("none", None, "Received: .*"),
    ("spm.model", b"", "0 bytes, 0 "),
    ("vocab.txt", b"[UNK]\n[PAD]\n[CLS]\n[SEP]\n[MASK]\n", "load_tokenizer"),
    ("tokenizer.json", b'{"format": "albert_tf", "do_lower": true}', "do_lower "),
  ],
)
def test_a_folder_that_cannot_be_read(
  tmp_path: pathlib.Path, name: str, content: bytes | None, received: str
):
  if name == "tokenizer.json":
    shutil.copy(SPM_MODEL, tmp_path / "spm.model")
  if content is not None:
    (tmp_path / name).write_bytes(content)
  with pytest.raises(UserError, match=received) as refused:
    AlbertTokenizer.from_pretrained(str(tmp_path))
  assert str(tmp_path) in str(refused.value)


def _piece(piece: str) -> Callable[[Any], None]:
  return lambda proto: setattr(proto.pieces[500], "piece", piece)


def _table(root: int) -> Callable[[Any], None]:
  """A table of normalisation with a first node that leads out of it."""

  def damage(proto):
    table = bytearray(proto.normalizer_spec.precompiled_charsmap)
    table[4:8] = root.to_bytes(4, "little")
    proto.normalizer_spec.precompiled_charsmap = bytes(table)

  return damage


@pytest.mark.parametrize(
  ("damage", "message"),
  [
    (lambda proto: proto.ClearField("trainer_spec"), "8000 "),
    (lambda proto: proto.ClearField("normalizer_spec"), "8000 "),
    (_piece(""), "0 to 16 "),
    (_piece("a" * 100_000), "1 to 100,000 "),
    (_piece("\u2581\u2581here"), "UTF-8"),
    (_piece("\0"), "NUL"),
    (_table(2**30), "normalisation"),
    (_table(2**31), "normalisation"),
  ],
)
def test_a_model_that_would_crash_the_library_is_refused(
  damage: Callable[[Any], None], message: str
):
  """Each is valid protobuf: SentencePiece loads it, and most end the process at the first call."""
  proto = model_proto.ModelProto.FromString(pathlib.Path(SPM_MODEL).read_bytes())
  damage(proto)
  broken = b"\xe2\x96\x06\xd9\x81\xffhere"
  model = proto.SerializeToString().replace("\u2581\u2581here".encode(), broken)
  with pytest.raises(UserError, match=rf"Received: bytes, .*{message}"):
    AlbertTokenizer(model, config.TokenizerConfig())


def test_a_vocabulary_of_another_kind(tmp_path: pathlib.Path):
  text = ["the quick brown fox jumps over the lazy dog"] * 9
  prefix = str(tmp_path / "other")
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(text), model_prefix=prefix, vocab_size=30, minloglevel=2
  )
  with pytest.raises(UserError, match=r"<pad> at -1 .*\['\[CLS\]'"):
    AlbertTokenizer.from_pretrained(f"{prefix}.model")


def test_golden_table_of_word_starts():
  golden = golden_rows("start_piece")
  tokenizer = AlbertTokenizer.from_pretrained(SPM_MODEL)
  expected = np.array([flag == "1" for flag in golden["start_piece"]])
  np.testing.assert_array_equal(tokenizer.word_starts("original"), expected)
  for row in golden["token_boundary"]:
    for piece, boundary in zip(row["tokens"], row["token_boundary"], strict=True):
      assert (piece in ("[CLS]", "[SEP]") or is_word_start(piece)) == bool(boundary), piece


def test_marks_by_example():
  starts = ["▁", "▁a", "▁при", "今天", "天", "の", "カメラ", "ไทย", "ខ្មែរ"]
  continues = ["ния", "é", ".", "12", "<unk>", "한국", "ى", "s", "»", "。"]
  assert all(map(is_marked_start, starts))
  assert not any(map(is_marked_start, continues))


_TEXT = st.text(st.characters(codec="utf-8"), max_size=30) | st.text(
  "aΣσ ́̈`'\u00a0\u2003İ½①ﬁが각 B", max_size=30
)


@given(text=_TEXT, lower=st.booleans(), quotes=st.booleans())
def test_text_is_normalised_as_defined(text: str, lower: bool, quotes: bool):
  found = normalize_text(text, do_lower_case=lower, normalize_quotes=quotes)
  assert found == reference.normalize(text, lower=lower, quotes=quotes)


@pytest.fixture(scope="module")
def cased(tmp_path_factory: pytest.TempPathFactory) -> AlbertTokenizer:
  path = train_model(
    tmp_path_factory.mktemp("vocab") / "cased.model", do_lower_case=False, keep_accents=True
  )
  return AlbertTokenizer.from_pretrained(path)


@pytest.mark.parametrize("language", TEXTS)
def test_text_survives(cased: AlbertTokenizer, language: str):
  text = TEXTS[language]
  assert cased.decode(cased.encode(text)) == text
  plain = AlbertTokenizer(cased.model_bytes, TokenizerConfig())
  assert (plain.encode(text) == cased.encode(text)) == (language == "Chinese")


def test_a_cased_vocabulary_that_is_read_in_lower_case_is_named(tmp_path, caplog):
  path = train_model(tmp_path / "spm.model", do_lower_case=False, keep_accents=True)
  load_tokenizer(path)  # Its settings lie beside it.
  assert not caplog.text
  pathlib.Path(path).with_suffix(".json").unlink()
  load_tokenizer(path)
  assert "tokens have capitals" in caplog.text
  caplog.clear()
  (tmp_path / "tokenizer.json").write_text('{"format": "albert_tf", "do_lower_case": false}')
  assert load_tokenizer(path).encode("Paris") != load_tokenizer(path).encode("paris")
  assert not caplog.text
