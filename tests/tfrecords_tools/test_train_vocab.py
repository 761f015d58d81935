"""Vocabulary training: ALBERT's ids, the same bytes, samples, and messages for what cannot be."""

import collections
import pathlib
import random
import subprocess
import sys
import tracemalloc

import pytest

from albert_tf.errors import UserError
from albert_tf.tokenization import AlbertTokenizer
from tfrecords_tools import train_vocab, vocabulary
from tfrecords_tools.corpus import CorpusOptions, CorpusStats
from tfrecords_tools.pretraining.sources import expand_sources

_WORDS = "sun moon star river stone bread water light green house winter summer paper Café naïve".split()


@pytest.fixture(scope="module")
def sentences() -> list[str]:
  rng = random.Random(7)
  return [" ".join(rng.choices(_WORDS, k=9)) + f' {rng.randrange(3000)}, "q" (x) - 5 £.' for _ in range(400)]


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
  script = pathlib.Path(train_vocab.__file__)
  return subprocess.run(
    [sys.executable, str(script), *arguments], capture_output=True, text=True, timeout=120, check=False
  )


def test_command_makes_albert_ids_and_the_same_bytes(tmp_path: pathlib.Path, sentences: list[str]):
  for index, part in enumerate((sentences[:200], sentences[200:])):
    (tmp_path / f"part{index}.txt").write_text("\n".join(part), encoding="utf-8")
  models = []
  for prefix in ("one/spm", "two/other"):
    flags = [
      f"--input=one={tmp_path}/part0.txt:1,two={tmp_path}/part1.txt:1",
      f"--model_prefix={tmp_path}/{prefix}",
      "--vocab_size=120",
    ]
    result = _run(*flags)
    assert result.returncode == 0, result.stderr
    assert "on 400 of 400 sentences from 2 files" in result.stdout
    assert "source two, weight 1: 50.0% of the sentences" in result.stdout
    assert "Checked: special ids 0-4, 8 user symbols, round trip" in result.stdout
    models.append((tmp_path / f"{prefix}.model").read_bytes())
  assert models[0] == models[1]
  assert sorted(path.name for path in (tmp_path / "one").iterdir()) == ["spm.json", "spm.model", "spm.vocab"]
  tokenizer = AlbertTokenizer.from_pretrained(str(tmp_path / "one" / "spm.model"))
  first = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "(", ")", '"', "-", ".", "–", "£", "€"]
  assert tokenizer.pieces[:13] == first
  assert tokenizer.vocab_size == 120
  assert tokenizer.decode(tokenizer.encode("Café WINTER")) == "cafe winter"  # Trained on normalised text.
  vocab = (tmp_path / "one" / "spm.vocab").read_text(encoding="utf-8").splitlines()
  assert [line.split("\t")[0] for line in vocab] == tokenizer.pieces


def test_settings_travel_with_the_model(tmp_path: pathlib.Path, sentences: list[str]):
  spec = vocabulary.VocabularySpec(vocab_size=130, do_lower_case=False)
  model = vocabulary.train(sentences, spec)
  assert vocabulary.check(model, sentences, spec) < 0.01
  vocabulary.write(model, model_prefix=str(tmp_path / "cased"), spec=spec)
  assert not AlbertTokenizer.from_pretrained(str(tmp_path / "cased.model")).config.do_lower_case


def test_check_finds_the_wrong_vocabulary_of_a_comma_string(sentences: list[str]):
  """The original's README passes ( ) , " and the rest as one string; then the quote swallows the others."""
  broken = vocabulary.VocabularySpec(vocab_size=120, user_symbols=("(", ")", ",-,.,–,£,€"))
  model = vocabulary.train(sentences, broken)
  with pytest.raises(RuntimeError, match="must have 120 pieces and begin with"):
    vocabulary.check(model, sentences, vocabulary.VocabularySpec(vocab_size=120))


def test_sizes_that_cannot_be(tmp_path: pathlib.Path, sentences: list[str]):
  with pytest.raises(UserError, match=r"Received: 5000, but it gives at most \d+ pieces"):
    vocabulary.train(sentences, vocabulary.VocabularySpec(vocab_size=5000))
  with pytest.raises(UserError, match=r"Received: 20, but \d+ are needed"):
    vocabulary.train(sentences, vocabulary.VocabularySpec(vocab_size=20))
  (tmp_path / "in.txt").write_text("\n".join(sentences), encoding="utf-8")
  result = _run(f"--input={tmp_path}/in.txt", f"--model_prefix={tmp_path}/out", "--vocab_size=5000")
  assert result.returncode == 2
  assert "Pass --vocab_size=" in result.stderr
  assert "Traceback" not in result.stderr
  assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


def test_no_text():
  with pytest.raises(UserError, match="without a single sentence"):
    vocabulary.normalize([" ", ""], vocabulary.VocabularySpec())


def test_sample_is_uniform_ordered_and_seeded():
  items = [str(index) for index in range(40)]
  assert vocabulary.sample(items, 0, rng=random.Random(1)) == items
  assert vocabulary.sample(items, 40, rng=random.Random(1)) == items
  assert vocabulary.sample(items, 99, rng=random.Random(1)) == items
  counts: collections.Counter[str] = collections.Counter()
  rounds = 4000
  for seed in range(rounds):
    kept = vocabulary.sample(items, 10, rng=random.Random(seed))
    assert len(kept) == 10
    assert kept == sorted(set(kept), key=int)
    counts.update(kept)
  expected = rounds * 10 / 40
  assert all(abs(counts[item] - expected) < 5 * (expected * 0.75) ** 0.5 for item in items)
  assert vocabulary.sample(items, 10, rng=random.Random(3)) == vocabulary.sample(
    items, 10, rng=random.Random(3)
  )


@pytest.mark.parametrize("size", [0, 1000])
def test_sources_are_drawn_from_by_weight(tmp_path: pathlib.Path, size: int):
  """Of one size, weights 2.5, 0.5 and 1 (unnamed) give five, one and two eighths; each sentence has its part."""
  for name in "abc":
    (tmp_path / f"{name}.txt").write_text("\n".join(f"{name} {i}" for i in range(2000)), encoding="utf-8")
  paths, sources = expand_sources(
    [f"many={tmp_path}/a.txt:2.5", f"few={tmp_path}/b.txt:0.5", f"{tmp_path}/c.txt"]
  )
  found, drawn_from = vocabulary.read_sentences(
    paths,
    CorpusOptions(input_format="lines"),
    vocabulary.VocabularySpec(),
    sources=sources,
    size=size,
    seed=3,
    stats=CorpusStats(),
  )
  assert len(found) == (size or sum(drawn_from.values()))
  shares = collections.Counter(sentence[0] for sentence in found)
  for name, eighths in zip("abc", (5, 1, 2), strict=True):
    assert shares[name] / len(found) == pytest.approx(eighths / 8, abs=0.02 if size == 0 else 0.06)
  if size == 0:
    times = collections.Counter(found)
    assert {times[f"{name} {i}"] for name in "abc" for i in range(2000)} == {0, 1, 2, 3}
    assert {times[f"c {i}"] for i in range(2000)} == {1}
    assert {source.name: count for source, count in drawn_from.items()} == {
      "many": shares["a"], "few": shares["b"], "unnamed": 2000,
    }  # fmt: skip


def test_one_copy_of_the_sample_is_held(monkeypatch):
  """Not the raw one beside the normalised one, and none of ours while SentencePiece has its own."""
  raw = (f"{number:06d} A Sentence, as LONG as others are. " * 12 for number in range(6000))
  size = 6000 * 12 * 40
  spec = vocabulary.VocabularySpec()
  held = []

  def train(sentences, spec, *, large):
    assert sum(map(len, sentences)) > 0.9 * size
    held.append(tracemalloc.get_traced_memory()[0])

  monkeypatch.setattr(vocabulary, "train", train)
  monkeypatch.setattr(vocabulary, "check", lambda model, sentences, spec: len(sentences) / 1e6)
  monkeypatch.setattr(vocabulary, "write", lambda model, **more: None)
  tracemalloc.start()
  try:
    sentences = vocabulary.normalize(vocabulary.sample(raw, 5900, rng=random.Random(1)), spec)
    assert sentences[0].startswith("0000")
    assert sentences[0].islower()
    assert vocabulary.make(sentences, spec, model_prefix="unused") == pytest.approx(0.00118)
    peak = tracemalloc.get_traced_memory()[1]
  finally:
    tracemalloc.stop()
  assert peak < 1.5 * size
  assert held[0] < 0.4 * size  # The thousand that are checked.
