"""Normalisation against its definition, and the form of it that keeps positions."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st
from reference.offsets import normalize_with_alignment

from albert_tf.tokenization import normalize_text

_TEXT = st.text(st.characters(codec="utf-8"), max_size=30) | st.text(
  "aΣσ ́̈`'\u00a0\u2003İ½①ﬁが각 B", max_size=30
)


@given(text=_TEXT, lower=st.booleans(), quotes=st.booleans())
def test_equals_the_definition_and_the_aligned_form(text: str, lower: bool, quotes: bool):
  expected = " ".join(text.strip().split())
  if quotes:
    expected = expected.replace("``", '"').replace("''", '"')
  expected = "".join(c for c in unicodedata.normalize("NFKD", expected) if not unicodedata.combining(c))
  expected = expected.lower() if lower else expected
  settings = {"do_lower_case": lower, "normalize_quotes": quotes}
  assert normalize_text(text, **settings) == expected
  assert normalize_with_alignment(text, **settings).text == expected
