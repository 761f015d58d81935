"""MediaWiki XML dumps: articles as plain text, by mwxml (XML) and mwparserfromhell (wiki markup)."""

import codecs
from collections.abc import Iterator
import re
from typing import Any

from albert_tf.errors import UserError, optional_package
from tfrecords_tools.corpus.options import CorpusFile, Part
from tfrecords_tools.corpus.text import split_sentences

_ARTICLES = 0  # The namespace of articles.
# Sections of links and lists, left out.
_APPENDICES = frozenset(
  (
    "see also,references,external links,further reading,notes,bibliography,footnotes,sources,"
    "citations,notes and references,works cited,gallery,discography,filmography"
  ).split(",")
)
_DROPPED_TAGS = frozenset("table ref gallery math timeline source syntaxhighlight score".split())
_LINK_TO_FILE = re.compile(r"^\s*:?\s*(file|image|category|media)\s*:", re.IGNORECASE)
_NOT_TEXT = re.compile(r"[|{}]|__[A-Z]+__")  # Remains of broken markup after parsing.
# Brackets that a template for pronunciation or another script has left empty: "Alabama () is",
# "(; Greek".
_EMPTY_BRACKETS = re.compile(r"\s*\([\s,;:]*\)|(?<=\()(\s*[,;:])+\s*")
# Of a reference like &#xD800;, which is no character (HTML shows U+FFFD).
_SURROGATE = re.compile("[\ud800-\udfff]")
_BROKEN_LINE = re.compile(r"(?<=[\w,;)])\n(?=[a-z(])")  # A sentence that goes on in the next line.


def read_mediawiki(file: CorpusFile) -> Iterator[Part]:
  """`mediawiki`: an article a document; redirects and pages that are no articles are skipped."""
  purpose = f"{file.path} is a dump of Wikipedia, which needs"
  mwxml = optional_package("mwxml", extra="data", purpose=purpose)
  number = 0
  try:
    dump = mwxml.Dump.from_file(_TextStream(file))
    for number, page in enumerate(dump.pages, start=1):  # noqa: B007
      revision = None
      for revision in page:  # noqa: B007  The last one is the newest.
        pass
      is_article = page.namespace == _ARTICLES and not page.redirect
      if not is_article or revision is None or not revision.text:
        file.stats.skipped_records += 1
        continue
      for paragraph in plain_paragraphs(revision.text):
        yield split_sentences(paragraph, language=file.options.language)
      yield None
  except UserError:
    raise
  # The first is of bad XML. The last four are of another root, a page without a title, or with an
  # id or a time that is none.
  except (
    SyntaxError,
    mwxml.errors.MalformedXML,
    AssertionError,
    AttributeError,
    TypeError,
    ValueError,
  ) as error:
    raise UserError(
      "A MediaWiki dump must be complete, well-formed XML in UTF-8. Received: "
      f"{file.path}, in or behind page {number} ({error}). Download it again."
    ) from error


class _TextStream:
  """The text that mwxml reads: U+FFFD for what is not UTF-8, which is counted."""

  def __init__(self, file: CorpusFile):
    self._stats = file.stats
    self._texts = codecs.iterdecode(file.chunks, "utf-8", "replace")

  def read(self, size: int = -1) -> str:
    """The next part, of any size; empty at the end."""
    text = next(self._texts, "")
    self._stats.bad_text_replaced += text.count("\ufffd")
    return text


def plain_paragraphs(markup: str) -> Iterator[str]:
  """The running text of an article.

  Templates, tables, files, references, headings and appendices are left out.
  """
  wiki = optional_package("mwparserfromhell", extra="data", purpose="Articles of Wikipedia need")

  # Parse, and keep the nodes of running text.
  code = wiki.parse(markup, skip_style_tags=True)
  nodes: list[Any] = []
  appendix_level = 0  # Of the heading of the appendix that is being left out; 0: none is.
  for node in code.nodes:
    if isinstance(node, wiki.nodes.Heading):
      nodes.append(wiki.nodes.Text("\n\n"))
      if appendix_level == 0 or node.level <= appendix_level:
        appendix_level = 0
        if str(node.title).strip().lower() in _APPENDICES:
          appendix_level = node.level
    elif appendix_level == 0 and not _is_dropped(node, wiki.nodes):
      nodes.append(node)
  code.nodes = nodes

  # Lines that end as sentences do are paragraphs.
  text = _SURROGATE.sub("\ufffd", code.strip_code(normalize=True, collapse=False))
  for line in _BROKEN_LINE.sub(" ", text).split("\n"):
    line = line.replace("'''", "").replace("''", "")  # Bold and italic.
    line = _EMPTY_BRACKETS.sub("", line).strip(" *#:;")  # Marks of lists.
    if line.endswith(tuple(".!?\"')”’")) and not _NOT_TEXT.search(line):
      yield line


def _is_dropped(node: Any, nodes: Any) -> bool:
  if isinstance(node, nodes.Template | nodes.Comment | nodes.Argument):
    return True
  if isinstance(node, nodes.Wikilink):
    return _LINK_TO_FILE.match(str(node.title)) is not None
  return isinstance(node, nodes.Tag) and str(node.tag).strip().lower() in _DROPPED_TAGS
