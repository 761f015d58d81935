"""Sentence splitting: the one place that names the library which does it (sentencex)."""

from collections.abc import Iterator
import re

import sentencex

_LONE_NUMBER = re.compile(r"\(?(\d{1,3}|[A-Za-z])[.)]$")  # "1." of "1. First, open the box."


def split_sentences(paragraph: str, *, language: str = "en") -> list[str]:
  """Splits one paragraph of running text into sentences, stripped and never empty.

  Args:
    paragraph: running text. Line breaks in it are read as spaces.
    language: ISO 639 code; languages the library does not know fall back to a related one.

  Returns:
    The sentences in order. An enumerator that stands alone ("1.") stays with what follows it.

  Example:
    >>> split_sentences("Dr. Smith left. 2. He came back!")
    ['Dr. Smith left.', '2. He came back!']
  """
  sentences: list[str] = []
  pending = ""
  for sentence in _segment(" ".join(paragraph.split()), language):
    if _LONE_NUMBER.match(sentence):
      pending += sentence + " "
      continue
    sentences.append(pending + sentence)
    pending = ""
  if pending:
    sentences.append(pending.rstrip())
  return sentences


def _segment(text: str, language: str) -> Iterator[str]:
  for sentence in sentencex.segment(language, text):
    sentence = sentence.strip()
    if sentence:
      yield sentence
