"""A corpus made of the documentation of installed packages: docstrings as English prose."""

import ast
from collections.abc import Iterable, Iterator, Sequence
import concurrent.futures
import dataclasses
import functools
import inspect
import itertools
import os
import re
import sysconfig
import warnings

from albert_tf import files, progress
from albert_tf.errors import UserError
from tfrecords_tools.corpus.sentences import split_sentences

# A docstring begins with what the thing does, so small models learn its order; between functions there is hardly any.
DOCUMENTS = ("module", "docstring")
_MAX_SOURCE_BYTES = 4_000_000  # Larger ones are generated tables.
_MIN_SENTENCES = 3  # A document of fewer is no document.
_TOPICS = os.path.join("pydoc_data", "topics.py")
# Tests and vendored copies are not documentation; generated files repeat one sentence.
_SKIPPED = re.compile(
  r"(^|[/\\])((tests?|testing|_?vendor(ed)?|lib2to3|idle_test)[/\\]|test_[^/\\]*$)|(_pb2|_pb2_grpc|_tests?)\.py$"
)
_BATCH = 32  # Source files a task of a worker process.
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


@dataclasses.dataclass(frozen=True)
class Summary:
  """What was written."""

  sources: int
  documents: int
  sentences: int
  megabytes: float
  paths: list[str]


def source_files() -> list[str]:
  """Python files of the standard library and site-packages, in a fixed order, packages' own first."""
  roots = dict.fromkeys(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
  found: dict[str, str] = {}  # Path below its root → path.
  for root in roots:
    for directory, subdirectories, names in os.walk(root):
      subdirectories[:] = sorted(
        name
        for name in subdirectories
        if name not in ("site-packages", "dist-packages") and not name.startswith(".")
      )
      for name in names:
        path = os.path.join(directory, name)
        relative = os.path.relpath(path, root)
        if name.endswith(".py") and not _SKIPPED.search(relative):
          found.setdefault(relative, path)
  return [found[relative] for relative in sorted(found)]


def read_documents(paths: Sequence[str], *, documents: str = "module") -> list[list[list[list[str]]]]:
  """For each source file its documents; a document is paragraphs of sentences."""
  return [_read_source(path, documents) for path in paths]


def _read_source(path: str, documents: str) -> list[list[list[str]]]:
  try:
    if os.path.getsize(path) > _MAX_SOURCE_BYTES:
      return []
    with open(path, encoding="utf-8") as stream:
      source = stream.read()
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")  # Invalid escapes and the like in the sources of others.
      if path.endswith(_TOPICS):
        return [prose_paragraphs(text) for text in topic_texts(source)]
      docstrings = [prose_paragraphs(text) for text in source_docstrings(source)]
      return docstrings if documents == "docstring" else [list(itertools.chain.from_iterable(docstrings))]
  except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
    return []  # Not this Python's syntax (templates, Python 2), or not text.


def unique_documents(documents: Iterable[list[list[str]]]) -> Iterator[list[str]]:
  """Documents as sentences, each sentence only where it is first met; short documents are left out."""
  seen: set[str] = set()
  for paragraphs in documents:
    sentences: list[str] = []
    for sentence in (sentence for paragraph in paragraphs for sentence in paragraph):
      if sentence not in seen:
        seen.add(sentence)
        sentences.append(sentence)
    if len(sentences) >= _MIN_SENTENCES:
      yield sentences


def extract(
  *, output_dir: str, max_megabytes: float, num_files: int, num_workers: int, documents: str = "module"
) -> Summary:
  """Writes `docs-?????-of-?????.txt`, in the place of those of an earlier run, and says what they hold.

  Args:
    output_dir: directory of the files.
    max_megabytes: stop after this much text (10^6 bytes); 0 takes all there is.
    num_files: files to spread the documents over.
    num_workers: processes; 0 is one a core, at most 8.
    documents: one of `DOCUMENTS`, what a document is.

  Raises:
    UserError: the directory cannot be written, or no documentation was found.
  """
  files.makedirs(output_dir)
  sources = source_files()
  batches = [sources[start : start + _BATCH] for start in range(0, len(sources), _BATCH)]
  limit = max_megabytes * 1e6 or float("inf")
  chosen, size = list[list[str]](), 0
  read = functools.partial(read_documents, documents=documents)
  workers = num_workers or min(os.cpu_count() or 1, 8)
  with (
    concurrent.futures.ProcessPoolExecutor(workers) as pool,
    progress.bar(len(sources), desc="Reading documentation", unit="files") as shown,
  ):

    def results() -> Iterator[list[list[str]]]:
      for batch, found in zip(batches, pool.map(read, batches), strict=True):
        shown.update(len(batch))
        yield from (document for source in found for document in source)

    for document in unique_documents(results()):
      chosen.append(document)
      size += sum(len(sentence.encode()) + 1 for sentence in document) + 1
      if size >= limit:
        pool.shutdown(wait=False, cancel_futures=True)
        break
  if not chosen:
    raise UserError(
      "The installed packages must hold documentation. Received: none in "
      f"{sysconfig.get_path('stdlib')} and {sysconfig.get_path('purelib')}. Use a Python with sources."
    )
  paths = _write(chosen, output_dir=output_dir, num_files=num_files)
  return Summary(len(sources), len(chosen), sum(map(len, chosen)), size / 1e6, paths)


def _write(documents: Sequence[list[str]], *, output_dir: str, num_files: int) -> list[str]:
  paths = [os.path.join(output_dir, f"docs-{index:05d}-of-{num_files:05d}.txt") for index in range(num_files)]
  try:
    for index, path in enumerate(paths):
      with files.atomic_writer(path) as stream:
        for document in documents[index::num_files]:
          stream.write("\n".join([*document, "", ""]).encode())
  except OSError as error:
    raise UserError(
      f"The output directory must be writable. Received: {output_dir} ({error.strerror or error}). "
      "Choose another --output_dir, or make room."
    ) from error
  for name in files.listdir(output_dir):
    path = os.path.join(output_dir, name)
    if re.fullmatch(r"docs-\d{5}-of-\d{5}\.txt", name) and path not in paths:
      files.remove(path)  # Of an earlier run with another number of files.
  return paths


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
  if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):  # Functions inside functions are details.
    return
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
