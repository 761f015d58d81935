"""A corpus made of the documentation of installed packages: docstrings as English prose.

The work of `extract_installed_docs.py`.
"""

import ast
from collections.abc import Iterable, Iterator
import concurrent.futures
import functools
import gc
import inspect
import itertools
import os
import re
import sysconfig
from typing import Literal
import warnings

from albert_tf import files, progress
from albert_tf.settings import Settings, setting
from tfrecords_tools.corpus.text import split_sentences

_MIN_SENTENCES = 3  # A document of fewer is no document.
# Tests and vendored copies are not documentation; generated files repeat one sentence.
_SKIPPED = re.compile(
  r"(^|[/\\])((tests?|testing|_?vendor(ed)?|lib2to3|idle_test)[/\\]|test_[^/\\]*$)"
  r"|(_pb2|_pb2_grpc|_tests?)\.py$"
)
_SKIPPED_FOLDERS = re.compile(r"\.|(site|dist)-packages$")
_NUM_FILES = 4  # That the documents are divided into.
_FILES_AT_ONCE = 32  # Of a worker process.
# Underlined, or "Args:".
_HEADING = re.compile(r"\A(?:.*\n([-=~^\"'*+#._])\1{2,}|[A-Za-z][A-Za-z ]{1,30}:)(?:\n|$)")
_NOT_TEXT = re.compile(r"\s|:\w|@\w|\.\.")  # Indented, ":param x:", ".. directive".
_BULLET = re.compile(r"^([-*+•]|\d{1,2}[.)])\s+")
_FENCED_CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
# NUL: the commands that read the text would take it for binary.
_LOOKS_LIKE_CODE = re.compile(
  r"[={}<>\\|@~^\0]|__|::|->|\(\)|\[\w*\]|\.\.|//|%\w|\$\w|\w\(|[\w]+_\w+_\w+"
  r"|\b(self|def|import|None)\b[.,(]"
)
_MARKUP = (
  # :class:`~a.b.C`
  (re.compile(r":[\w:+.-]+:`[~!]?(?:[^`<]*\.)?([^`<.]+?)(?:\s*<[^`>]*>)?`"), r"\1"),
  # `text <link>`_
  (re.compile(r"`([^`<]+?)\s*<[^`>]*>`_{0,2}"), r"\1"),
  # [text](link)
  (re.compile(r"\[([^\]]+)\]\([^)]*\)"), r"\1"),
  # `code` or ``code``
  (re.compile(r"`{1,2}([^`]+)`{1,2}_{0,2}"), r"\1"),
  # *emphasis*
  (re.compile(r"(?<!\w)\*{1,2}([^*\s][^*]*)\*{1,2}(?!\w)"), r"\1"),
)
_MIN_WORDS = 4
_MAX_CHARS = 600


class Extraction(Settings):
  """Settings of the corpus of installed documentation."""

  output_dir: str = setting(help="Directory of the text files to write.")
  max_megabytes: float = setting(
    0.0, "Largest amount of text, in megabytes (10^6 bytes); 0: all.", minimum=0
  )
  # A docstring begins with what the thing does, so small models learn its order; over a module
  # there is hardly any.
  documents: Literal["module", "docstring"] = setting(
    "module",
    "A document is all text of a module, or one docstring. Sentence order is easier to learn in "
    "docstrings.",
  )


def extract(settings: Extraction) -> str:
  """Writes the documents, each sentence only at its first place; returns a summary."""
  files.makedirs(settings.output_dir)
  sources = source_files()
  documents: list[list[str]] = []
  known_sentences: set[str] = set()
  size = 0
  num_workers = min(os.cpu_count() or 1, 8)
  # Trees are many objects without cycles: looking for cycles takes a fifth of the time.
  with concurrent.futures.ProcessPoolExecutor(num_workers, initializer=gc.disable) as pool:
    read_file = functools.partial(read_documents, documents=settings.documents)
    documents_of_files = progress.track(
      pool.map(read_file, sources, chunksize=_FILES_AT_ONCE),
      len(sources),
      desc="Reading documentation",
      unit="files",
    )
    for document in itertools.chain.from_iterable(documents_of_files):
      # Many packages repeat the sentences of others.
      sentences = [text for text in dict.fromkeys(document) if text not in known_sentences]
      known_sentences.update(sentences)
      if len(sentences) < _MIN_SENTENCES:
        continue
      documents.append(sentences)
      size += len(_as_text(sentences).encode())
      if settings.max_megabytes and size >= settings.max_megabytes * 1e6:
        pool.shutdown(wait=False, cancel_futures=True)
        break

  for index in range(_NUM_FILES):
    text = "".join(_as_text(document) for document in documents[index::_NUM_FILES])
    name = f"docs-{index:05d}-of-{_NUM_FILES:05d}.txt"
    files.write_text(os.path.join(settings.output_dir, name), text)
  return (
    f"{len(documents):,} documents with {sum(map(len, documents)):,} sentences, "
    f"{size / 1e6:.1f} MB, from {len(sources):,} source files in {_NUM_FILES} files of "
    f"{settings.output_dir}"
  )


def _as_text(sentences: Iterable[str]) -> str:
  """One sentence a line, and a blank line."""
  return "\n".join(sentences) + "\n\n"


def source_files() -> list[str]:
  """Python files of the standard library and site-packages, in a fixed order."""
  paths: dict[str, str] = {}  # Path below its root → path.
  # The last two are usually one folder.
  roots = dict.fromkeys(map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))
  for root in roots:
    for directory, subdirectories, names in os.walk(root):
      # What is removed from the list is not walked. The packages have a root of their own.
      subdirectories[:] = [name for name in subdirectories if not _SKIPPED_FOLDERS.match(name)]
      for name in names:
        path = os.path.join(directory, name)
        relative = path.removeprefix(root + os.sep)
        if name.endswith(".py") and not _SKIPPED.search(relative):
          paths.setdefault(relative, path)
  return [paths[relative] for relative in sorted(paths)]


def read_documents(path: str, *, documents: str) -> list[list[str]]:
  """The documents of a source file, each a list of sentences.

  Args:
    path: of the source file.
    documents: `module` or `docstring`: what one document is.
  """
  try:
    with open(path, encoding="utf-8") as stream, warnings.catch_warnings():
      # Invalid escapes and the like in the sources of others.
      warnings.simplefilter("ignore")
      texts = [prose(docstring) for docstring in docstrings(ast.parse(stream.read()))]
  except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
    return []  # Not this Python's syntax (templates, Python 2), or not text.
  if documents == "docstring":
    return texts
  return [list(itertools.chain.from_iterable(texts))]


def docstrings(node: ast.AST) -> Iterator[str]:
  """Docstrings of a module, its classes and functions, in the order of the file."""
  if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
    yield ast.get_docstring(node, clean=False) or ""
  # Functions inside functions are details.
  if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
    for child in getattr(node, "body", ()):
      yield from docstrings(child)


def prose(docstring: str) -> list[str]:
  """The sentences of running text in a docstring.

  Headings and everything that is indented (code, lists of parameters) are left out, inline markup
  is removed, and a sentence that still looks like code is dropped.
  """
  sentences: list[str] = []
  text = _FENCED_CODE.sub("", inspect.cleandoc(docstring).expandtabs())
  for block in re.split(r"\n\s*\n", text):
    if block.startswith(">>>"):
      continue
    text_lines = _HEADING.sub("", block).split("\n")
    lines = [_BULLET.sub("", line) for line in text_lines if not _NOT_TEXT.match(line)]
    paragraph = re.sub("::$", ":", " ".join(lines))
    for pattern, replacement in _MARKUP:
      paragraph = pattern.sub(replacement, paragraph)
    sentences += filter(is_prose, split_sentences(paragraph))
  return sentences


def is_prose(sentence: str) -> bool:
  """Whether a sentence reads as English: enough words, begins and ends as one, few symbols."""
  words = sentence.split()
  if len(words) < _MIN_WORDS or len(sentence) > _MAX_CHARS or _LOOKS_LIKE_CODE.search(sentence):
    return False
  begins_well = sentence.lstrip("\"'(“")[:1].isupper()
  ends_well = sentence.rstrip("\"')”").endswith((".", "!", "?", ":", ";"))
  num_letters = sum(map(str.isalpha, sentence)) + len(words)  # With the spaces.
  return begins_well and ends_well and num_letters >= 0.85 * len(sentence)
