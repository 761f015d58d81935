"""A corpus made of the documentation of installed packages: docstrings as English prose."""

import ast
from collections.abc import Iterator, Sequence
import concurrent.futures
import functools
import inspect
import itertools
import os
import re
import sysconfig
from typing import Literal
import warnings

from albert_tf import files, progress
from albert_tf.settings import Settings, setting
from tfrecords_tools.corpus.sentences import split_sentences

_MIN_SENTENCES = 3  # A document of fewer is no document.
# Tests and vendored copies are not documentation; generated files repeat one sentence.
_SKIPPED = re.compile(
  r"(^|[/\\])((tests?|testing|_?vendor(ed)?|lib2to3|idle_test)[/\\]|test_[^/\\]*$)|(_pb2|_pb2_grpc|_tests?)\.py$"
)
_BATCH = 32  # Source files a task of a worker process.
# Underlined, or "Args:".
_HEADING = re.compile(r"(?:.*\n([-=~^\"'*+#._])\1{2,}|[A-Za-z][A-Za-z ]{1,30}:)(?:\n|$)")
_NOT_TEXT = re.compile(r"\s|:\w|@\w|\.\.")  # Indented, ":param x:", ".. directive".
_BULLET = re.compile(r"^([-*+•]|\d{1,2}[.)])\s+")
_LOOKS_LIKE_CODE = re.compile(
  r"[={}<>\\|@~^]|__|::|->|\(\)|\[\w*\]|\.\.|//|%\w|\$\w|\w\(|[\w]+_\w+_\w+|\b(self|def|import|None)\b[.,(]"
)
_MARKUP = (
  (re.compile(r":[\w:+.-]+:`[~!]?(?:[^`<]*\.)?([^`<.]+?)(?:\s*<[^`>]*>)?`"), r"\1"),  # :class:`~a.b.C`
  (re.compile(r"`([^`<]+?)\s*<[^`>]*>`_{0,2}"), r"\1"),  # `text <link>`_
  (re.compile(r"\[([^\]]+)\]\([^)]*\)"), r"\1"),  # [text](link)
  (re.compile(r"`{1,2}([^`]+)`{1,2}_{0,2}"), r"\1"),
  (re.compile(r"(?<!\w)\*{1,2}([^*\s][^*]*)\*{1,2}(?!\w)"), r"\1"),  # *emphasis*
)
_MIN_WORDS = 4
_MAX_CHARS = 600


class Extraction(Settings):
  """Settings of the corpus of installed documentation."""

  output_dir: str = setting(help="Directory of the text files to write.")
  max_megabytes: float = setting(0.0, "Largest amount of text, in megabytes (10^6 bytes); 0: all.", minimum=0)
  # A docstring begins with what the thing does, so small models learn its order; over a module there is hardly any.
  documents: Literal["module", "docstring"] = setting(
    "module",
    "A document is all text of a module, or one docstring. Sentence order is easier to learn in docstrings.",
  )
  num_files: int = setting(
    4, "Number of files that the documents are divided into.", minimum=1, maximum=99_999
  )


def source_files() -> list[str]:
  """Python files of the standard library and site-packages, in a fixed order."""
  found: dict[str, str] = {}  # Path below its root → path.
  for root in dict.fromkeys(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")):
    for directory, subdirectories, names in os.walk(root):
      subdirectories[:] = [name for name in subdirectories if not re.match(r"\.|(site|dist)-packages$", name)]
      for path in (os.path.join(directory, name) for name in names if name.endswith(".py")):
        relative = os.path.relpath(path, root)
        if not _SKIPPED.search(relative):
          found.setdefault(relative, path)
  return [found[relative] for relative in sorted(found)]


def read_documents(paths: Sequence[str], *, documents: str) -> list[list[str]]:
  """The documents of some source files, each a list of sentences: one a `module`, or one a `docstring`."""
  found: list[list[str]] = []
  for path in paths:
    try:
      with open(path, encoding="utf-8") as stream, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Invalid escapes and the like in the sources of others.
        texts = list(map(prose, docstrings(ast.parse(stream.read()))))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
      continue  # Not this Python's syntax (templates, Python 2), or not text.
    found += texts if documents == "docstring" else [list(itertools.chain.from_iterable(texts))]
  return found


def docstrings(node: ast.AST) -> Iterator[str]:
  """Docstrings of a module, its classes and functions, in the order of the file."""
  if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
    yield ast.get_docstring(node, clean=False) or ""
  if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):  # Functions inside functions are details.
    for child in getattr(node, "body", ()):
      yield from docstrings(child)


def prose(docstring: str) -> list[str]:
  """The sentences of running text in a docstring.

  Headings and everything that is indented (code, lists of parameters) are left out, inline markup is removed, and a
  sentence that still looks like code is dropped.
  """
  sentences: list[str] = []
  text = re.sub(r"^```.*?^```", "", inspect.cleandoc(docstring).expandtabs(), flags=re.DOTALL | re.MULTILINE)
  for block in re.split(r"\n\s*\n", text):
    if block.startswith(">>>"):
      continue
    lines = _HEADING.sub("", block, count=1).split("\n") if _HEADING.match(block) else block.split("\n")
    paragraph = " ".join(_BULLET.sub("", line) for line in lines if not _NOT_TEXT.match(line))
    paragraph = re.sub("::$", ":", paragraph)
    for pattern, replacement in _MARKUP:
      paragraph = pattern.sub(replacement, paragraph)
    sentences += filter(is_prose, split_sentences(paragraph))
  return sentences


def is_prose(sentence: str) -> bool:
  """Whether a sentence reads as English: enough words, begins and ends as one, hardly any symbols."""
  words = sentence.split()
  if len(words) < _MIN_WORDS or len(sentence) > _MAX_CHARS or _LOOKS_LIKE_CODE.search(sentence):
    return False
  first = sentence.lstrip("\"'(“")[:1]
  if not first.isupper() or sentence.rstrip("\"')”")[-1:] not in (".", "!", "?", ":", ";"):
    return False
  return sum(map(str.isalpha, sentence)) + len(words) >= 0.85 * len(sentence)


def extract(settings: Extraction) -> str:
  """Writes the documents, each sentence only at its first place; returns a summary."""
  files.makedirs(settings.output_dir)
  sources = source_files()
  batches = [sources[start : start + _BATCH] for start in range(0, len(sources), _BATCH)]
  chosen: list[list[str]] = []
  seen: set[str] = set()
  size = 0
  with concurrent.futures.ProcessPoolExecutor(min(os.cpu_count() or 1, 8)) as pool:
    found = pool.map(functools.partial(read_documents, documents=settings.documents), batches)
    shown = progress.track(found, len(batches), desc="Reading documentation", unit="batches of files")
    for document in itertools.chain.from_iterable(shown):
      sentences = [sentence for sentence in dict.fromkeys(document) if sentence not in seen]
      seen.update(sentences)
      if len(sentences) < _MIN_SENTENCES:
        continue
      chosen.append(sentences)
      size += sum(len(sentence.encode()) + 1 for sentence in sentences) + 1
      if settings.max_megabytes and size >= settings.max_megabytes * 1e6:
        pool.shutdown(wait=False, cancel_futures=True)
        break
  total = settings.num_files
  for index in range(total):
    text = "".join("\n".join([*document, "", ""]) for document in chosen[index::total])
    files.write_text(os.path.join(settings.output_dir, f"docs-{index:05d}-of-{total:05d}.txt"), text)
  return (
    f"{len(chosen):,} documents with {sum(map(len, chosen)):,} sentences, {size / 1e6:.1f} MB, from {len(sources):,} "
    f"source files in {total} file(s) of {settings.output_dir}"
  )
