"""What a file holds, from its first bytes: refuses what is not text, finds the format and the layout."""

import itertools
import json
import re

from albert_tf.errors import UserError
from tfrecords_tools.corpus.sentences import split_sentences

PARQUET_MAGIC = b"PAR1"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_TEXT_CONTROLS = frozenset(b"\t\n\v\f\r\x1b\x1c\x1d\x1e\x1f\b")
_MAX_CONTROL_SHARE = 0.02
_WIKITEXT_TITLE = re.compile(r"^ ?= [^=].* = ?$", re.MULTILINE)
_SAMPLED_LINES = 400


def check_is_text(head: bytes, path: str) -> None:
  """Raises a `UserError` for a binary file: NUL or many control bytes, or another encoding."""
  if head.startswith(_UTF16):
    raise UserError(
      f"Text must be UTF-8. Received: {path}, which is UTF-16. Convert it: iconv -f UTF-16 -t UTF-8 FILE."
    )
  controls = sum(byte < 32 and byte not in _TEXT_CONTROLS for byte in head)
  if b"\0" in head or controls > _MAX_CONTROL_SHARE * len(head):
    raise UserError(
      "Input must be text (plain or compressed by gzip, bzip2, xz or zstd) or Parquet. Received: "
      f"{path}, which is binary. Leave it out of --input."
    )


def detect_format(head: bytes, path: str) -> str:
  """One of `FORMATS` but `auto`."""
  if head.startswith(PARQUET_MAGIC):
    return "parquet"
  check_is_text(head, path)
  text = head.decode("utf-8-sig", errors="replace").lstrip()
  if re.match(r"(<\?xml[^>]*>\s*)?<mediawiki\b", text):
    return "mediawiki"
  if re.match(r"<doc\s[^>]*\bid=", text):
    return "wikiextractor"
  if text.startswith("{") and _is_json_lines(text):
    return "jsonl"
  return "paragraphs" if _has_paragraphs(text) else "lines"


def _is_json_lines(text: str) -> bool:
  first, _, rest = text.partition("\n")
  try:
    return isinstance(json.loads(first), dict)
  except ValueError:
    return not rest  # A first record longer than the head.


def _has_paragraphs(text: str) -> bool:
  """Whether lines hold several sentences, or sentences go on over lines, or each line stands alone."""
  lines = text.split("\n")[:_SAMPLED_LINES]
  filled = [line for line in lines if line.strip()]
  if not filled:
    return False
  several = sum(len(split_sentences(line[:2000])) > 1 for line in filled)
  return several > 0.3 * len(filled) or _is_wrapped(lines) or _is_spaced(lines)


def _is_wrapped(lines: list[str]) -> bool:
  """Whether sentences go on over lines: many lines in the middle of one begin in lower case, and not all do."""
  lines = [line.strip() for line in lines]
  pairs = [(a, b) for a, b in itertools.pairwise(lines) if a and b]
  going_on = sum(after[0].islower() and before[-1] not in ".!?\"'”’" for before, after in pairs)
  capitals = sum(line[:1].isupper() for line in lines)  # None in text that was lower-cased before.
  return going_on > 0.2 * len(pairs) and capitals > 0.02 * len(lines)


def paragraph_layout(head: bytes) -> str:
  """How a file in `paragraphs` is laid out, from its first bytes.

  Returns:
    `wikitext`: lines " = Title = " begin documents; every other line is a paragraph.
    `wrapped`: a paragraph goes over several lines.
    `spaced`: a paragraph is one line, with a blank line after each.
    `dense`: a paragraph is one line; a blank line ends a document.
  """
  text = head.decode("utf-8-sig", errors="replace")
  if _WIKITEXT_TITLE.search(text):
    return "wikitext"
  lines = text.split("\n")
  if _is_wrapped(lines):
    return "wrapped"
  return "spaced" if _is_spaced(lines) else "dense"


def _is_spaced(lines: list[str]) -> bool:
  """Whether most lines have a blank one before and after them."""
  filled = [bool(line.strip()) for line in lines]
  before, after = [False, *filled[:-1]], [*filled[1:], False]
  alone = sum(b and not a and not c for a, b, c in zip(before, filled, after, strict=True))
  return sum(filled) > 2 and alone > 0.5 * sum(filled)
