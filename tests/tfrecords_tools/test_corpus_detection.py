"""What `--input_format=auto` takes a file for: certain, told to the user, or refused."""

import pathlib

import pytest
from support.corpora import read_corpus as _read

from albert_tf.errors import UserError
from tfrecords_tools.corpus import CorpusOptions, describe_formats

_SENTENCES = [f"This is sentence number {n} of the text." for n in range(500)]
_SPACED = "\n\n".join(_SENTENCES)


def test_single_sentences_with_blank_lines_between_are_refused(tmp_path: pathlib.Path):
  """500 documents of a sentence, or one of 500: nothing in the file tells."""
  path = tmp_path / "in.txt"
  with pytest.raises(UserError, match=r"in\.txt, .*--input_format=lines.*--input_format=paragraphs"):
    _read(path, _SPACED.encode())
  assert len(_read(path, input_format="lines")[0]) == 500
  assert len(_read(path, input_format="paragraphs")[0]) == 1
  some_longer = [f"{text}\n{text}" if n % 3 == 0 else text for n, text in enumerate(_SENTENCES)]
  with pytest.raises(UserError, match="must be certain"):
    _read(path, "\n\n".join(some_longer).encode())


@pytest.mark.parametrize(
  ("text", "kind", "documents"),
  [
    ("\n".join(_SENTENCES), "lines", 1),
    ("\n\n".join("\n".join(_SENTENCES[n : n + 5]) for n in range(0, 500, 5)), "lines", 100),
    ("\n\n".join(f"{text} {text}" for text in _SENTENCES), "paragraphs", 1),
    (f"CHAPTER I\n\n{_SPACED}", "paragraphs", 1),
    (f"{_SPACED}\n\n\n\n\n{_SPACED}", "paragraphs", 1),  # The large gap is beyond the first bytes.
    ("\n\n\n\n".join(_SENTENCES), "paragraphs", 500),
    (f"{_SPACED[:2000]}\f{_SPACED[2000:]}", "paragraphs", 2),
    ("One sentence.\n\nAnother one.", "lines", 2),
  ],
)
def test_what_is_certain_is_read(tmp_path: pathlib.Path, text: str, kind: str, documents: int):
  if "\n\n\n\n\n" in text:
    text, documents = f"{_SENTENCES[0]}\n\n\n\n\n{text}", 3
  found, stats = _read(tmp_path / "in.txt", text.encode())
  assert (dict(stats.formats), len(found)) == ({kind: 1}, documents)


def test_the_format_is_told_once_a_format(tmp_path: pathlib.Path):
  contents = {"a.txt": "One.\nTwo.\n\nFour.\n", "b.txt": "One.\n", "c.jsonl": '{"text": "One. Two."}\n'}
  contents |= {f"d{n:03}.txt": "One.\nTwo.\n" for n in range(200)} | {"empty.txt": ""}
  for name, content in contents.items():
    (tmp_path / name).write_text(content)
  paths = [str(tmp_path / name) for name in contents]
  lines, json_lines = describe_formats(paths[:3], CorpusOptions())
  assert lines == f"--input_format=auto: {paths[0]} and 1 more of the files looked at are read as lines"
  assert json_lines == f"--input_format=auto: {paths[2]} is read as jsonl"
  (line,) = describe_formats(
    paths, CorpusOptions()
  )  # Of many files some are looked at, the first in any case.
  assert line.startswith(f"--input_format=auto: {paths[0]} and 63 more of")
  assert describe_formats(paths, CorpusOptions(input_format="lines")) == []
  (tmp_path / "b.txt").write_text(_SPACED)
  with pytest.raises(UserError, match="must be certain"):  # Before the first record is made of the others.
    describe_formats(paths[:3], CorpusOptions())
