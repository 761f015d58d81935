"""The tokenizer as TensorFlow ops: the ids of the Python one, also out of a SavedModel and in a Session."""

import sys

import numpy as np
import pytest
from reference.tokenization import batch, is_character
from support.goldens import SPM_MODEL
import tensorflow as tf

from albert_tf.tokenization import AlbertTokenizer
from albert_tf.tokenization.graph import GraphTokenizer
from albert_tf.tokenization.graph_inputs import text_batch

_KEYS = ("input_ids", "input_mask", "segment_ids")
_MASKED = [
  "The capital of [MASK] is Paris, [MASK].",
  "[MASK]",
  "x [MASK][MASK]y",
  "",
  "un[MASK] able [MASK] 12,",
]
_PAIRS = ["hello there my friend", "", "one", "", "x"]


@pytest.fixture(scope="module")
def tokenizer() -> AlbertTokenizer:
  return AlbertTokenizer.from_pretrained(SPM_MODEL)


@pytest.fixture(scope="module")
def module(tokenizer: AlbertTokenizer) -> GraphTokenizer:
  return GraphTokenizer(tokenizer)


def test_every_character(tokenizer: AlbertTokenizer, module: GraphTokenizer):
  assigned = (*range(0x32000), *range(0xE0000, 0xE0200), 0xF0000, sys.maxunicode - 2)
  texts = [f"A{char}b" for char in filter(is_character, map(chr, assigned))]
  normalized = module.normalize(tf.constant(texts)).numpy()
  assert [text.decode() for text in normalized] == [tokenizer.normalize(text) for text in texts]
  assert module.tokenize(tf.constant(texts[::7])).to_list() == tokenizer.encode_batch(texts[::7])


def test_bytes_that_are_not_utf8(tokenizer: AlbertTokenizer, module: GraphTokenizer):
  raw = b"the \xff\xfe cat \xe2\x82"
  got = module.tokenize(tf.constant([raw, b""])).to_list()
  assert got[0] == tokenizer.encode(raw.decode(errors="replace"))
  assert got[1] == []


def test_bytes_that_are_not_utf8_behind_a_mask(module: GraphTokenizer):
  raw = [b"the [MASK] black cat \xff", b"the [MASK]\xffcat"]
  texts = [text.decode(errors="replace") for text in raw]
  got = module.tokenize(tf.constant(raw), allow_mask=True).to_list()
  assert got == module.tokenize(tf.constant(texts), allow_mask=True).to_list()


@pytest.mark.parametrize("max_length", [5, 6, 7, 8, 9, 12, 64])
@pytest.mark.parametrize("pairs", [None, _PAIRS])
def test_batches_equal_python(
  tokenizer: AlbertTokenizer, module: GraphTokenizer, max_length: int, pairs: list[str] | None
):
  for pad in (False, True):
    options = {"max_length": max_length, "allow_mask": True}
    expected = batch(tokenizer, _MASKED, pairs, pad_to_max_length=pad, **options)
    length = max_length if pad else None
    got = text_batch(module, tf.constant(_MASKED), pairs, length=length, **options)
    masks = got.pop("masked_lm_positions").numpy()
    assert tuple(got) == _KEYS
    for key in _KEYS:
      assert got[key].dtype == tf.int32
      np.testing.assert_array_equal(got[key], expected[key])
    for row, ids in zip(masks, expected["input_ids"], strict=True):
      assert row[row > 0].tolist() == np.flatnonzero(ids == tokenizer.mask_id).tolist()


def test_empty_batch(module: GraphTokenizer):
  """A model needs one position at least, even of no rows."""
  nothing = tf.constant([], tf.string)
  for pairs, asked, length in ((None, None, 1), (nothing, 16, 16)):
    got = text_batch(module, nothing, pairs, max_length=16, length=asked)
    assert {key: value.shape for key, value in got.items()} == dict.fromkeys(_KEYS, (0, length))
