"""Documentation in Python source as English prose: a docstring without its code and its tables."""

import ast
from collections.abc import Iterator
import inspect
import re

from tfrecords_tools.corpus.sentences import split_sentences

# Sections that are tables of names, or code. "Note:", "Warning:" and free headings stay.
_TABLE_SECTIONS = frozenset(
  """arg, args, arguments, parameters, params, attributes, members, methods, properties, keywords, raises,
  returns, return, yields, yield, example, examples, usage, references, reference, see also, input, inputs,
  output, outputs, shape, call, doctest, signature, keyword args, keyword arguments, other parameters,
  input shape, output shape""".replace("\n ", "").split(", ")
)
_SECTION = re.compile(r"^(?P<name>[A-Za-z][A-Za-z ]{1,30})\s*:{0,2}\s*$")
_UNDERLINE = re.compile(r"^\s*([-=~^\"'*+#._])\1{2,}\s*$")
_FIELD = re.compile(r"^\s*(:\w[\w\s*.,]*:|@\w+|\.\.)")  # ":param x:", "@param", ".. directive"
_BULLET = re.compile(r"^(\s*)([-*+•]|\d{1,2}[.)])\s+")
_FENCE = re.compile(r"^\s*```")
_LOOKS_LIKE_CODE = re.compile(
  r"[={}<>\\|@~^]|__|::|->|\(\)|\[\w*\]|\.\.|//|%\w|\$\w|\w\(|[\w]+_\w+_\w+|\b(self|def|import|None)\b[.,(]"
)
_MARKUP = (
  (re.compile(r":[\w:+.-]+:`[~!]?(?:[^`<]*\.)?([^`<.]+?)(?:\s*<[^`>]*>)?`"), r"\1"),  # :class:`~a.b.C`
  (re.compile(r"`([^`<]+?)\s*<[^`>]*>`_{0,2}"), r"\1"),  # `text <link>`_
  (re.compile(r"\[([^\]]+)\]\([^)]*\)"), r"\1"),  # [text](link)
  (re.compile(r"`{1,2}([^`]+)`{1,2}_{0,2}"), r"\1"),
  (re.compile(r"(?<!\w)\*{1,2}([^*\s][^*]*)\*{1,2}(?!\w)"), r"\1"),  # *emphasis*
  (re.compile(r"(?<!\w)\|([\w ]+)\|(?!\w)"), r"\1"),
)
_MIN_WORDS = 4
_MAX_CHARS = 600


def source_docstrings(source: str) -> Iterator[str]:
  """Docstrings of a module, its classes and functions, in the order of the file.

  Raises:
    SyntaxError, ValueError, RecursionError: `source` is not this Python's syntax.
  """
  yield from _node_docstrings(ast.parse(source))


def _node_docstrings(node: ast.AST) -> Iterator[str]:
  body = getattr(node, "body", None)
  if not isinstance(body, list):
    return
  if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
    docstring = ast.get_docstring(node, clean=False)
    if docstring:
      yield docstring
  if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
    return  # Functions inside functions are details.
  for child in body:
    yield from _node_docstrings(child)


def topic_texts(source: str) -> list[str]:
  """The texts of `pydoc_data/topics.py`: the language reference that `help()` shows."""
  for node in ast.parse(source).body:
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
      topics: dict[str, str] = ast.literal_eval(node.value)
      return [topics[name] for name in sorted(topics)]
  return []


def prose_paragraphs(docstring: str) -> list[list[str]]:
  """The paragraphs of running text in a docstring, each a list of sentences.

  Code blocks, doctests, literal blocks, tables, parameter lists and sections of such (Args, Returns …) are
  left out, inline markup is removed, and a sentence that still looks like code is dropped.
  """
  paragraphs: list[list[str]] = []
  for paragraph in _paragraphs(inspect.cleandoc(docstring).expandtabs().split("\n")):
    for pattern, replacement in _MARKUP:
      paragraph = pattern.sub(replacement, paragraph)
    sentences = [sentence for sentence in split_sentences(paragraph) if is_prose(sentence)]
    if sentences:
      paragraphs.append(sentences)
  return paragraphs


def is_prose(sentence: str) -> bool:
  """Whether a sentence reads as English: enough words, begins and ends as one, hardly any symbols."""
  words = sentence.split()
  if len(words) < _MIN_WORDS or len(sentence) > _MAX_CHARS:
    return False
  first = sentence.lstrip("\"'(“")[:1]
  if not first.isupper() or sentence.rstrip("\"')”")[-1:] not in (".", "!", "?", ":", ";"):
    return False
  if _LOOKS_LIKE_CODE.search(sentence):
    return False
  letters = sum(map(str.isalpha, sentence))
  return letters + len(words) >= 0.85 * len(sentence)


def _paragraphs(lines: list[str]) -> Iterator[str]:
  """Joins the lines of each paragraph of text; leaves out blocks that are not running text."""
  current: list[str] = []
  skip_deeper_than: int | None = None  # Inside a literal block or a table section.
  skip_section = False  # Inside a section with an underlined heading; ends at the next heading.
  fenced = False
  doctest = False  # From ">>>" to the next blank line.
  position = 0
  while position < len(lines):
    line = lines[position]
    following = lines[position + 1] if position + 1 < len(lines) else ""
    position += 1
    if _FENCE.match(line):
      fenced = not fenced
      line = ""
    stripped = line.strip()
    indent = len(line) - len(line.lstrip())
    doctest = stripped.startswith(">>>") or (doctest and bool(stripped))
    if fenced or doctest or not stripped:
      if current:
        yield " ".join(current)
      current = []
      continue
    if _UNDERLINE.match(following) and not _UNDERLINE.match(line):
      skip_section = stripped.rstrip(":").lower() in _TABLE_SECTIONS
      skip_deeper_than = None
      current = []
      position += 1
      continue
    if skip_section or (skip_deeper_than is not None and indent > skip_deeper_than):
      continue
    skip_deeper_than = None
    section = _SECTION.match(stripped)
    is_table = section and section["name"].strip().lower() in _TABLE_SECTIONS
    if is_table or _FIELD.match(line):
      skip_deeper_than = indent
    elif not _UNDERLINE.match(line):
      bullet = _BULLET.match(line)
      if bullet and current:
        yield " ".join(current)
        current = []
      current.append(line[bullet.end() :].strip() if bullet else stripped)
      if not stripped.endswith("::"):
        continue
      skip_deeper_than = indent
      current[-1] = current[-1].removesuffix(":")
    if current:
      yield " ".join(current)
    current = []
  if current:
    yield " ".join(current)
