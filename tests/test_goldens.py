"""The recorded files themselves: small, described, and compared element by element."""

import numpy as np
import pytest
from support.goldens import GOLDENS, golden


def test_every_file_is_described_and_all_are_small():
  files = [path for path in GOLDENS.iterdir() if path.name not in ("README.md", "__pycache__")]
  guide = (GOLDENS / "README.md").read_text(encoding="utf-8")
  assert [path.name for path in files if path.name not in guide] == []
  assert sum(path.stat().st_size for path in GOLDENS.rglob("*") if path.is_file()) < 6_000_000


def test_kept_elements_are_those_compared():
  tiny, table = golden("tiny"), "grad/bert/embeddings/word_embeddings"
  with np.load(GOLDENS / "tiny.npz") as stored:
    kept = stored[f"{table}@13"]
  array = np.zeros([8000, 16], np.float32)
  array.reshape(-1)[::13] = kept
  tiny.assert_close(table, array, atol=0.0)
  array.reshape(-1)[13] += 1e-3
  with pytest.raises(AssertionError, match="word_embeddings"):
    tiny.assert_close(table, array, atol=1e-5)
  with pytest.raises(AssertionError):
    tiny.assert_close(table, array[:-1], atol=1.0)
  with pytest.raises(AssertionError, match="not recorded whole"):
    tiny[table]
