"""A small made-up language and a SentencePiece vocabulary of it, for tests of the data tools."""

from collections.abc import Iterable
import gzip
import io
import pathlib
from typing import Any

import numpy as np
import sentencepiece

SYLLABLES = ("ka", "to", "mi", "ren", "sol", "vi", "an", "tur", "pel", "go", "ish", "er")


def words(rng: np.random.Generator, count: int) -> list[str]:
  """Words of one to four syllables, now and then a number, an apostrophe or punctuation."""
  result = []
  for _ in range(count):
    word = "".join(rng.choice(SYLLABLES, rng.integers(1, 5)))
    match rng.integers(0, 20):
      case 0:
        word = str(rng.integers(0, 5000)) + ","
      case 1:
        word += "'s"
      case 2:
        word = f"({word})"
      case 3:
        word = "Ü" + word.upper()
    result.append(word)
  return result


def sentence(rng: np.random.Generator) -> str:
  return " ".join(words(rng, int(rng.integers(1, 13)))) + "."


def documents(rng: np.random.Generator, count: int, *, max_sentences: int = 9) -> list[list[str]]:
  return [[sentence(rng) for _ in range(rng.integers(1, max_sentences + 1))] for _ in range(count)]


def as_text(docs: Iterable[Iterable[str]]) -> str:
  """One sentence a line, a blank line between documents."""
  return "\n\n".join("\n".join(doc) for doc in docs) + "\n"


def write_documents(path: pathlib.Path, count: int, *, seed: int) -> str:
  """Writes some documents to `path`, compressed if its name says so."""
  data = as_text(documents(np.random.default_rng(seed), count)).encode()
  path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
  return str(path)


def trained_model(sentences: Iterable[str], *, vocab_size: int, **options: Any) -> bytes:
  """A unigram vocabulary with ALBERT's special ids."""
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(sentences),
    model_writer=model,
    vocab_size=vocab_size,
    pad_id=0,
    unk_id=1,
    bos_id=-1,
    eos_id=-1,
    control_symbols=["[CLS]", "[SEP]", "[MASK]"],
    hard_vocab_limit=False,
    minloglevel=2,
    **options,
  )
  return model.getvalue()


def train_model(path: str, *, vocab_size: int = 150, **options: Any) -> str:
  """Writes a vocabulary of the language to `path`."""
  rng = np.random.default_rng(0)
  sentences = [sentence(rng).lower() for _ in range(2000)]
  marks = ["(", ")", "."]
  model = trained_model(sentences, vocab_size=vocab_size, user_defined_symbols=marks, **options)
  with open(path, "wb") as stream:
    stream.write(model)
  return path
