"""The demo's corpus has only prose, each sentence once, and is always the same."""

import sysconfig
import textwrap

import pytest

from tfrecords_tools.corpus.installed_docs import Extraction, extract

_SOURCE = textwrap.dedent('''
  """Tools for trees.

  A tree has roots and leaves. See :class:`~forest.Tree` for the `whole <http://a.b>`_ story::

      tree = Tree(5)
      It is a literal block and not a sentence.

  Both stay after it. Text with a \\0 byte is binary.
  """
  class Tree:
    """One tree that grows in the forest.

    Args:
      height: The height is a parameter and not kept.

    Example:

    >>> Tree(3)
    This output is not kept either.

    The paragraph after the example is kept.

    * The first bullet is a sentence.
    * The second bullet is one too.
    """
    def grow(self):
      """Makes the tree *much* higher than before.

      Parameters
      ----------
      speed : float
          The speed is in a table and not kept.

      Notes
      -----
      Growth needs water and light.
      ```
      This line is inside a fence.
      ```
      """
      def inner():
        """Functions inside functions are left out."""
''')
_OTHER = "Others are read as well. They have many sentences. This is one of them."
_PROSE = [
  "A tree has roots and leaves.",
  "See Tree for the whole story:",
  "Both stay after it.",
  "One tree that grows in the forest.",
  "The paragraph after the example is kept.",
  "The first bullet is a sentence.",
  "The second bullet is one too.",
  "Makes the tree much higher than before.",
  "Growth needs water and light.",
]


@pytest.fixture
def environment(tmp_path, monkeypatch):
  root = tmp_path / "lib"
  for name, body in {
    "trees.py": _SOURCE,
    "copy_of_trees.py": _SOURCE,
    "package/tests/test_trees.py": '"""Tests are left out here. They say nothing new. Not one word of it."""',
    "zoo.py": f"'{_OTHER}'",
    "broken.py": "print 'Python 2'",
    "binary.py": "\udcff",
  }.items():
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(body, encoding="utf-8", errors="surrogateescape")
  monkeypatch.setattr(sysconfig, "get_path", lambda name: str(root))
  return root


def _extract(output, **changes):
  """The texts of the files that are written, without empty ones."""
  settings = Extraction(output_dir=str(output), **changes)
  assert f"4 files of {output}" in extract(settings)
  texts = [path.read_text() for path in sorted(output.iterdir())]
  assert len(texts) == 4
  return [text for text in texts if text]


def test_each_sentence_once_and_the_same_bytes_again(tmp_path, environment):
  texts = _extract(tmp_path / "one")
  assert texts == ["\n".join(_PROSE) + "\n\n", _OTHER.replace(". ", ".\n") + "\n\n"]
  assert _extract(tmp_path / "two") == texts
  assert _extract(tmp_path / "three", max_megabytes=1e-5) == texts[:1]


def test_a_docstring_can_be_a_document(tmp_path, environment):
  texts = _extract(tmp_path / "out", documents="docstring")
  documents = [
    _PROSE[:3],
    _PROSE[3:7],
    _OTHER.replace(". ", ".\n").split("\n"),
  ]  # One has two sentences only.
  assert texts == ["\n".join([*document, "", ""]) for document in documents]
