"""MediaWiki XML dumps: articles as plain text, through mwxml (XML) and mwparserfromhell (wiki markup)."""

import codecs
from collections.abc import Iterable, Iterator
import re
from typing import Any

from albert_tf.errors import UserError, optional_package
from tfrecords_tools.corpus.options import CorpusOptions, CorpusStats
from tfrecords_tools.corpus.sentences import DocumentBuilder, split_sentences

_ARTICLES = 0  # The namespace of articles.
# Sections of links and lists, left out.
_APPENDICES = frozenset(
  """see also, references, external links, further reading, notes, bibliography, footnotes, sources,
  citations, notes and references, works cited, gallery, discography, filmography""".replace("\n ", "").split(
    ", "
  )
)
_NOT_TEXT = re.compile(r"[|{}]|__[A-Z]+__")  # Remains of broken markup after parsing.
# Brackets that a template for pronunciation or another script has left empty: "Alabama () is", "(; Greek".
_EMPTY_BRACKETS = re.compile(r"\s*\([\s,;:]*\)|(?<=\()(\s*[,;:])+\s*")
# Of a reference like &#xD800;, which is no character (HTML shows U+FFFD).
_SURROGATE = re.compile("[\ud800-\udfff]")
_BROKEN_LINE = re.compile(r"(?<=[\w,;)])\n(?=[a-z(])")  # A sentence that goes on in the next line.
_LINK_TO_FILE = re.compile(r"^\s*:?\s*(file|image|category|media)\s*:", re.IGNORECASE)
_DROPPED_TAGS = frozenset(
  ("table", "ref", "gallery", "math", "timeline", "source", "syntaxhighlight", "score")
)


def read_mediawiki(
  chunks: Iterable[bytes], head: bytes, path: str, *, options: CorpusOptions, stats: CorpusStats
) -> Iterator[list[str]]:
  """`mediawiki`: an article a document; redirects and pages outside the article namespace are skipped."""
  # Deferred, like the parser: only dumps need them.
  from xml.etree import ElementTree

  mwxml = optional_package("mwxml", extra="data", purpose=f"{path} is a dump of Wikipedia, which needs")
  number = 0
  try:
    dump = mwxml.Dump.from_file(_TextStream(chunks, stats))
    for number, page in enumerate(dump.pages, 1):  # noqa: B007
      revision = None
      for revision in page:  # noqa: B007  The last one is the newest.
        pass
      if page.namespace != _ARTICLES or page.redirect or revision is None or not revision.text:
        stats.skipped_records += 1
        continue
      builder = DocumentBuilder(options, stats)
      for paragraph in plain_paragraphs(revision.text):
        yield from builder.add(split_sentences(paragraph, language=options.language))
      yield from builder.end()
  except UserError:
    raise
  # The last four are of another root, a page without a title, or with an id or a time that is none.
  except (
    ElementTree.ParseError,
    mwxml.errors.MalformedXML,
    AssertionError,
    AttributeError,
    TypeError,
    ValueError,
  ) as error:
    raise UserError(
      f"A MediaWiki dump must be complete, well-formed XML in UTF-8. Received: {path}, in or behind page {number} "
      f"({error}). Download it again."
    ) from error


class _TextStream:
  """The text that mwxml reads: U+FFFD for what is not UTF-8, which is counted."""

  def __init__(self, chunks: Iterable[bytes], stats: CorpusStats):
    self._chunks, self._stats = chunks, stats
    self._texts = codecs.iterdecode(self._counted(), "utf-8", "replace")

  def _counted(self) -> Iterator[bytes]:
    for chunk in self._chunks:
      self._stats.bytes_read += len(chunk)
      yield chunk

  def read(self, size: int = -1) -> str:
    """The next part, of any size; empty at the end."""
    text = next(self._texts, "")
    self._stats.bad_text_replaced += text.count("\ufffd")
    return text


def plain_paragraphs(markup: str) -> Iterator[str]:
  """The running text of an article: without templates, tables, files, references, headings and appendices."""
  wiki = optional_package("mwparserfromhell", extra="data", purpose="Articles of Wikipedia need")

  code = wiki.parse(markup, skip_style_tags=True)
  kept: list[Any] = []
  skipping = 0  # Level of the appendix we are in; 0: in none.
  for node in code.nodes:
    if isinstance(node, wiki.nodes.Heading):
      if not skipping or node.level <= skipping:
        name = str(node.title).strip().lower()
        skipping = node.level if name in _APPENDICES else 0
      kept.append("\n\n")
    elif not skipping and not _is_dropped(node, wiki.nodes):
      kept.append(node)
  code.nodes = [node if not isinstance(node, str) else wiki.nodes.Text(node) for node in kept]
  text = _SURROGATE.sub("\ufffd", code.strip_code(normalize=True, collapse=False))
  for line in _BROKEN_LINE.sub(" ", text).split("\n"):
    line = line.replace("'''", "").replace("''", "")
    line = _EMPTY_BRACKETS.sub("", line).strip(" *#:;")
    if line and line[-1] in ".!?\"')”’" and not _NOT_TEXT.search(line):
      yield line


def _is_dropped(node: Any, nodes: Any) -> bool:
  if isinstance(node, nodes.Template | nodes.Comment | nodes.Argument):
    return True
  if isinstance(node, nodes.Wikilink):
    return bool(_LINK_TO_FILE.match(str(node.title)))
  return isinstance(node, nodes.Tag) and str(node.tag).strip().lower() in _DROPPED_TAGS
