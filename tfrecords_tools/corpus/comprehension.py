"""SQuAD and RACE as text: the paper's intrinsic development set is made of their passages (ALBERT section 4.2.1)."""

from collections.abc import Iterable, Iterator
import json
import re
from typing import Any

from albert_tf.errors import UserError
from tfrecords_tools.corpus.bytestreams import decode
from tfrecords_tools.corpus.options import CorpusOptions, CorpusStats
from tfrecords_tools.corpus.structured import text_document

_SQUAD_BEGIN = re.compile(r'\{\s*("version"\s*:\s*"[^"]*"\s*,\s*)?"data"\s*:\s*\[')
_SQUAD_PARTS = ('"paragraphs"', '"qas"')
_RACE_KEYS = {"article", "questions", "options"}


def comprehension_format(start: str) -> str | None:
  """`squad` or `race` where the first characters of a file leave no doubt; else None."""
  if _SQUAD_BEGIN.match(start) and all(part in start for part in _SQUAD_PARTS):
    return "squad"
  for text in (start, start.partition("\n")[0]):
    try:
      record = json.loads(text)
    except ValueError:
      continue
    return "race" if isinstance(record, dict) and record.keys() >= _RACE_KEYS else None
  return None


def read_squad(
  chunks: Iterable[bytes], head: bytes, path: str, *, options: CorpusOptions, stats: CorpusStats
) -> Iterator[list[str]]:
  """`squad`: an article is a document, its paragraphs one after the other; questions and answers are left out.

  The paragraphs follow one another in the encyclopedia, so segments and sequences longer than one of them are as in
  the text of pretraining.
  """
  for root in _objects(_whole(chunks, path, "squad", options=options, stats=stats), path, "squad"):
    try:
      articles = [[paragraph["context"] for paragraph in each["paragraphs"]] for each in root["data"]]
      texts = ["\n".join(contexts) for contexts in articles]
    except (KeyError, TypeError) as error:
      raise _wrong("squad", path, f"{type(error).__name__}: {error}") from error
    for text in texts:
      yield from text_document(text, path, options=options, stats=stats)


def read_race(
  chunks: Iterable[bytes], head: bytes, path: str, *, options: CorpusOptions, stats: CorpusStats
) -> Iterator[list[str]]:
  """`race`: a passage is a document; one JSON object a file, or, as in `all.txt`, one a line."""
  for passage in _objects(_whole(chunks, path, "race", options=options, stats=stats), path, "race"):
    article = passage.get("article") if isinstance(passage, dict) else None
    if not isinstance(article, str):
      raise _wrong("race", path, f"{json.dumps(passage)[:60]} without a text 'article'")
    yield from text_document(article, path, options=options, stats=stats)


def _whole(
  chunks: Iterable[bytes], path: str, kind: str, *, options: CorpusOptions, stats: CorpusStats
) -> str:
  """The text of a file, which ends before its JSON does only where it was cut; empty where bad text is skipped."""
  data = bytearray()
  for chunk in chunks:
    data += chunk
    stats.bytes_read += len(chunk)
    if len(data) > options.max_record_bytes:
      raise UserError(
        f"A file of --input_format={kind} is read whole and must not be larger than "
        f"{options.max_record_bytes >> 20} MiB. Received: {path}, which is. Cut it into several files."
      )
  text = decode(bytes(data), path, "", options=options, stats=stats)
  return (text or "").removeprefix("\ufeff").strip()


def _objects(text: str, path: str, kind: str) -> Iterator[Any]:
  """The JSON values that follow one another in a text, with white space between them."""
  decoder, at = json.JSONDecoder(), 0
  while at < len(text):
    try:
      value, at = decoder.raw_decode(text, at)
    except ValueError as error:
      raise _wrong(kind, path, str(error)) from error
    yield value
    while text[at : at + 1].isspace():
      at += 1


def _wrong(kind: str, path: str, reason: str) -> UserError:
  what = {
    "squad": 'one JSON object: {"data": [{"paragraphs": [{"context": …}, …]}, …]}',
    "race": 'JSON objects with an "article"',
  }
  return UserError(
    f"A file of --input_format={kind} must hold {what[kind]}. Received: {path} ({reason}). Copy it again, or "
    "choose the format that fits."
  )
