"""Word starts against the original's recorded table and token boundaries."""

import json
import pathlib

import numpy as np

from albert_tf.tokenization import AlbertTokenizer, is_word_start


def test_golden_table_and_boundaries(oracle_dir: pathlib.Path):
  golden = json.loads((oracle_dir / "golden_start_piece.json").read_text(encoding="utf-8"))
  tokenizer = AlbertTokenizer(spm_model_file=str(oracle_dir / "spm" / "spm8k.model"))
  expected = np.array([flag == "1" for flag in golden["start_piece"]["spm8k"]])
  np.testing.assert_array_equal(tokenizer.word_starts, expected)
  for row in golden["token_boundary"]:
    for piece, boundary in zip(row["tokens"], row["token_boundary"], strict=True):
      assert (piece in ("[CLS]", "[SEP]") or is_word_start(piece)) == bool(boundary), piece


def test_rule_by_example():
  starts = ["▁", "▁a", "<unk>", ".", "5", "é", "'", "a'b", "=", "中", "x2"]
  continues = ["s", "Ab", "..", "a.b", "-x"]
  assert all(map(is_word_start, starts))
  assert not any(map(is_word_start, continues))
