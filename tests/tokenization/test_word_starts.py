"""Word starts against the original's recorded table and token boundaries."""

import numpy as np
from support.goldens import SPM_MODEL, golden_rows

from albert_tf.tokenization import AlbertTokenizer
from albert_tf.tokenization.word_starts import is_marked_start, is_word_start


def test_golden_table_and_boundaries():
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
