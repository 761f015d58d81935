"""Vocabulary training: ALBERT's ids, the same bytes, samples, and messages for what cannot be."""

import gzip
import os
import pathlib
import random
import shutil

import pytest
from support.commands.script_runs import run_command

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.tokenization import AlbertTokenizer
from tfrecords_tools import vocabulary
from tfrecords_tools.corpus import CorpusOptions, CorpusStats

_COMMAND = "tfrecords_tools/train_vocab.py"
_FILES = {"spm.json", "spm.model", "spm.vocab"}
_WORDS = "sun moon star river stone bread water light green house winter summer paper".split()
_WORDS += ["Café", "naïve"]


@pytest.fixture(scope="module")
def sentences():
  rng = random.Random(7)
  return [
    " ".join(rng.choices(_WORDS, k=9)) + f' {rng.randrange(3000)}, "q" (x) - 5 £.'
    for _ in range(400)
  ]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, sentences):
  """The folder of a vocabulary that the command has made of two files, and what it printed."""
  folder = tmp_path_factory.mktemp("trained")
  for index, part in enumerate((sentences[:200], sentences[200:])):
    (folder / f"part{index}.txt").write_text("\n".join(part), encoding="utf-8")
  return folder, train_by_command(folder, "one/spm")


def train_by_command(folder, prefix):
  paths = (f"--input={folder}/part*.txt", f"--model_prefix={folder}/{prefix}")
  result = run_command(_COMMAND, *paths, "--vocab_size=120")
  assert result.returncode == 0, result.stderr
  return result


def test_the_command_says_what_it_reads_and_writes(trained):
  folder, result = trained
  assert "120 tokens from 400 sentences in 2 files" in result.stdout
  assert "training on 400 of 400 sentences, which takes about " in result.stderr
  assert "part0.txt is read as lines" in result.stderr
  assert {path.name for path in (folder / "one").iterdir()} == _FILES


def test_the_same_text_gives_the_same_bytes(trained):
  folder, _ = trained
  train_by_command(folder, "two/other")
  models = [(folder / f"{prefix}.model").read_bytes() for prefix in ("one/spm", "two/other")]
  assert models[0] == models[1]


def test_a_vocabulary_has_the_ids_of_albert(trained):
  folder, _ = trained
  tokenizer = AlbertTokenizer.from_pretrained(str(folder / "one" / "spm.model"))
  first = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "(", ")", '"', "-", ".", "–", "£", "€"]
  assert tokenizer.pieces[:13] == first
  assert tokenizer.vocab_size == 120
  assert tokenizer.decode(tokenizer.encode("Café WINTER")) == "cafe winter"  # Normalised.
  vocab = (folder / "one" / "spm.vocab").read_text(encoding="utf-8").splitlines()
  assert [line.split("\t")[0] for line in vocab] == tokenizer.pieces


def test_a_large_text_is_sampled(tmp_path, sentences, capsys):
  path = tmp_path / "in.txt"
  path.write_text("\n".join(sentences), encoding="utf-8")
  spec = vocabulary.VocabularySpec(vocab_size=120, num_sampled_sentences=300)
  models = []
  for _ in range(2):
    read = vocabulary.read_sentences(
      [str(path)], CorpusOptions(input_format="lines"), spec, stats=CorpusStats()
    )
    models.append(vocabulary.train(read, spec))
  assert "300 of 400 sentences" in capsys.readouterr().err
  assert models[0] == models[1] != vocabulary.train(iter(sentences), spec)


def test_sizes_that_cannot_be(tmp_path, sentences):
  for size, received in ((5000, r"5000.* <= \d+.*--vocab_size"), (20, "required_chars")):
    with pytest.raises(UserError, match=received):
      vocabulary.train(iter(sentences), vocabulary.VocabularySpec(vocab_size=size))
  (tmp_path / "in.txt").write_text("\n".join(sentences), encoding="utf-8")
  result = run_command(
    _COMMAND, f"--input={tmp_path}/in.txt", f"--model_prefix={tmp_path}/out", "--vocab_size=5000"
  )
  assert result.returncode == 2
  assert "Change --vocab_size" in result.stderr
  assert "Traceback" not in result.stderr
  assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]
  (tmp_path / "in.txt").write_text(" \n\n")
  result = run_command(_COMMAND, f"--input={tmp_path}/in.txt", f"--model_prefix={tmp_path}/out")
  assert "without a single sentence" in result.stderr


def test_the_bounds_of_the_coverage_are_those_of_sentencepiece(sentences):
  for coverage in (0.98, 1.0):
    spec = vocabulary.VocabularySpec(vocab_size=100, character_coverage=coverage)
    assert vocabulary.train(iter(sentences), spec)
  with pytest.raises(UserError, match=r"character_coverage.* 0\.97"):
    vocabulary.VocabularySpec(vocab_size=120, character_coverage=0.97)


@pytest.mark.parametrize(
  ("flag", "value", "received"),
  [
    ("model_prefix", "", "Received: ''. Give a value to --model_prefix"),
    ("model_prefix", "{}/vocab/", "Received: '{}/vocab/'. Give the files a name, such as --model_"),
  ],
  ids=["no prefix", "no name"],
)
def test_what_is_empty_is_refused_before_anything_is_written(
  tmp_path, texts, flag, value, received
):
  given = {"model_prefix": f"{tmp_path}/spm", flag: value.format(tmp_path)}
  words = [f"--{name}={text}" for name, text in given.items()]
  result = run_command(_COMMAND, f"--input={texts}/a.txt", "--vocab_size=100", *words)
  assert result.returncode == 2, result.stderr
  assert received.format(tmp_path) in result.stderr
  assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.fixture
def texts(tmp_path, sentences):
  """A folder with one good file."""
  (tmp_path / "in").mkdir()
  (tmp_path / "in" / "a.txt").write_text("\n".join(sentences), encoding="utf-8")
  return tmp_path / "in"


def _make(folder):
  spec = vocabulary.VocabularySpec(vocab_size=100)
  paths, options = files.expand_globs(f"{folder}/in/*"), CorpusOptions()
  vocabulary.make(paths, options, spec, model_prefix=f"{folder}/spm", stats=CorpusStats())


_CUT = gzip.compress(random.Random(1).randbytes(9000).hex().encode())[:-2000]


@pytest.mark.parametrize(
  ("name", "content", "received"),
  [
    ("b.txt", b'<doc id="1" url="u" title="T">\nT\n\nText.\n</doc>\n', r"in/b\.txt, .*'<'"),
    ("b.txt.gz", _CUT, r"b\.txt\.gz"),
  ],
  ids=["markup", "truncated"],
)
def test_a_broken_file_is_told_before_training(tmp_path, texts, name, content, received, capfd):
  """The first file is sound and would be enough text for this vocabulary."""
  (texts / name).write_bytes(content)
  with pytest.raises(UserError, match=received):
    _make(tmp_path)
  assert [path.name for path in tmp_path.iterdir()] == ["in"]
  assert "training on" not in capfd.readouterr().err


@pytest.mark.parametrize(
  ("change", "received"),
  [
    (pathlib.Path.unlink, r"in/b\.txt:"),
    (lambda path: os.truncate(path, 90), r"in/b\.txt, .* 90 .* 29,937 "),
  ],
  ids=["removed", "cut"],
)
def test_a_file_that_changes_while_another_is_read_is_named(
  tmp_path, texts, monkeypatch, change, received
):
  shutil.copy(texts / "a.txt", texts / "b.txt")
  read, changed = vocabulary.iter_documents, []

  def change_and_read(path, *arguments, **more):
    if not changed:
      changed.append(path)
      change(texts / "b.txt")
    return read(path, *arguments, **more)

  monkeypatch.setattr(vocabulary, "iter_documents", change_and_read)
  with pytest.raises(UserError, match=received):
    _make(tmp_path)
  assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_one_process_at_a_time_makes_a_prefix(tmp_path, texts, monkeypatch):
  train, refusals = vocabulary.train, []

  def train_while_another_starts(*arguments, **more):
    monkeypatch.setattr(vocabulary, "train", train)
    with pytest.raises(UserError, match=r"Received: .*/spm\.lock, .*--model_prefix") as refused:
      _make(tmp_path)
    refusals.append(refused)
    return train(*arguments, **more)

  monkeypatch.setattr(vocabulary, "train", train_while_another_starts)
  _make(tmp_path)
  assert len(refusals) == 1
  assert {path.name for path in tmp_path.iterdir()} == {"in", *_FILES}
