"""Splits running text into sentences with a library."""

import re

import sentencex

# ISO 639 codes of the languages that the library has rules for. Of any other text it takes it for
# English, without a word; Chinese is one of these, whose marks the English rules know.
LANGUAGES = tuple(
  "am ar bg bn ca da de el en es fi fr gu hi hy it ja kk kn ml mr my nl pa pl pt ru sk ta te uk "
  "zh".split()
)
_LONE_NUMBER = re.compile(r"\(?(\d{1,3}|[A-Za-z])[.)]$")  # "1." of "1. First, open the box."


def split_sentences(paragraph: str, *, language: str = "en") -> list[str]:
  """Splits one paragraph of running text into sentences, stripped and never empty.

  Args:
    paragraph: running text. Line breaks in it are read as spaces.
    language: one of `LANGUAGES`.

  Returns:
    The sentences in order. An enumerator that stands alone ("1.") stays with what follows it.

  Example:
    >>> split_sentences("Dr. Smith left. 2. He came back!")
    ['Dr. Smith left.', '2. He came back!']
  """
  # The library takes the number of a list for a sentence.
  sentences: list[str] = []
  pending = ""
  one_line = " ".join(paragraph.split())
  for segment in sentencex.segment(language, one_line):
    sentence = segment.strip()
    if _LONE_NUMBER.match(sentence):
      pending += sentence + " "
    elif sentence:
      sentences.append(pending + sentence)
      pending = ""
  if pending:
    sentences.append(pending.rstrip())
  return sentences
