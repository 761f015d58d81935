"""A SentencePiece unigram vocabulary with ALBERT's special ids: sample, normalise, train, check, write."""

import array
from collections.abc import Iterable, Iterator, Sequence
import dataclasses
import io
import itertools
import math
import random
import re

import numpy as np
import sentencepiece

from albert_tf import files, progress
from albert_tf.errors import UserError
from albert_tf.tokenization import AlbertTokenizer, TokenizerConfig, normalize_text
from albert_tf.tokenization.tokenizer import load_processor
from tfrecords_tools.corpus import CorpusOptions, CorpusStats, iter_documents
from tfrecords_tools.pretraining.sources import Source

# Passed as a list: as a comma-separated string, as in the original's README, the lone quote is read as the
# beginning of a quoted field and the vocabulary gets one wrong symbol in the place of six.
USER_SYMBOLS = ("(", ")", '"', "-", ".", "–", "£", "€")
CONTROL_SYMBOLS = ("[CLS]", "[SEP]", "[MASK]")
SPECIAL_PIECES = ("<pad>", "<unk>", *CONTROL_SYMBOLS)
_CHECKED_SENTENCES = 1000
_SHOW_LOG_ABOVE_BYTES = 50_000_000  # Training takes minutes: show SentencePiece's own progress.


@dataclasses.dataclass(frozen=True, kw_only=True)
class VocabularySpec:
  """What is trained; the defaults are those of the released English vocabulary."""

  vocab_size: int = 30000
  do_lower_case: bool = True
  keep_accents: bool = False
  character_coverage: float = 0.99995
  user_symbols: tuple[str, ...] = USER_SYMBOLS
  num_threads: int = 8

  @property
  def tokenizer(self) -> TokenizerConfig:
    """How text becomes what the vocabulary is trained on; it is noted beside the vocabulary."""
    return TokenizerConfig(do_lower_case=self.do_lower_case, keep_accents=self.keep_accents)


def read_sentences(
  paths: Sequence[str],
  options: CorpusOptions,
  spec: VocabularySpec,
  *,
  sources: Sequence[Source],
  size: int,
  seed: int,
  stats: CorpusStats,
) -> tuple[list[str], dict[Source, int]]:
  """A uniform sample of `size` sentences of all files (0: all), as the tokenizer will see them.

  A sentence is there as often as its source's weight says, the fraction by a draw: sampling is from these.

  Args:
    paths: the files.
    options: how they are read.
    spec: how the text is normalised.
    sources: of each file.
    size: sentences at most; 0 for all.
    seed: of all draws.
    stats: counts what is read.

  Returns:
    (the sample, how many sentences of each source it was drawn from).
  """
  sizes = list(map(files.size, paths))
  rng = random.Random(seed)
  drawn_from = dict.fromkeys(sources, 0)

  def sentences() -> Iterator[str]:
    with progress.bar(sum(sizes), desc="Reading text", unit="B") as shown:
      for path, source, num_bytes in zip(paths, sources, sizes, strict=True):
        whole, rest = source.passes(1)
        for sentence in itertools.chain.from_iterable(iter_documents(path, options, stats=stats)):
          times = whole + (rest > 0 and rng.random() < rest)
          drawn_from[source] += times
          yield from itertools.repeat(sentence, times)
        shown.update(num_bytes)

  return normalize(sample(sentences(), size, rng=rng), spec), drawn_from


def make(sentences: list[str], spec: VocabularySpec, *, model_prefix: str) -> float:
  """Trains on normalised sentences, checks, writes; returns the share of unknown pieces.

  `sentences` is empty afterwards: SentencePiece has its own copy, and there is no other while it trains.
  """
  checked = sentences[:: max(1, len(sentences) // _CHECKED_SENTENCES)]
  model = train(_taken(sentences), spec, large=sum(map(len, sentences)) > _SHOW_LOG_ABOVE_BYTES)
  unknown = check(model, checked, spec)
  write(model, model_prefix=model_prefix, spec=spec)
  return unknown


def sample(items: Iterable[str], size: int, *, rng: random.Random) -> list[str]:
  """A uniform sample without replacement, in the order of the stream; everything if it is no longer.

  Li's algorithm L: keeps `size` items in memory and draws a random number only where one is replaced.
  """
  stream = iter(items)
  kept = list(itertools.islice(stream, size or None))
  if len(kept) < size or size == 0:
    return kept
  places = array.array("q", range(size))  # In the stream, of what is kept.
  weight = math.exp(math.log(1.0 - rng.random()) / size)
  target = size + _skip(weight, rng)
  for index, item in enumerate(stream, size):
    if index == target:
      replaced = rng.randrange(size)
      kept[replaced], places[replaced] = item, index
      weight *= math.exp(math.log(1.0 - rng.random()) / size)
      target += 1 + _skip(weight, rng)
  order = np.argsort(np.frombuffer(places, np.int64))
  return [kept[place] for place in order]


def _skip(weight: float, rng: random.Random) -> int:
  """How many items are passed over before the next one that is kept."""
  if weight >= 1.0:
    return 0
  return int(math.log(1.0 - rng.random()) / math.log1p(-weight)) if weight > 0 else 1 << 62


def normalize(sentences: list[str], spec: VocabularySpec) -> list[str]:
  """The sentences as the tokenizer will see them, in the same list, without empty ones; `UserError` if none is left."""
  choices = {"do_lower_case": spec.do_lower_case, "keep_accents": spec.keep_accents}
  count = 0
  for item in sentences:
    if text := normalize_text(item, **choices):
      sentences[count] = text  # Never ahead of the one that is read.
      count += 1
  del sentences[count:]
  if not sentences:
    raise UserError("The input must hold text. Received: files without a single sentence. Check --input.")
  return sentences


def _taken(sentences: list[str]) -> Iterator[str]:
  """The sentences in their order; each leaves the list."""
  sentences.reverse()
  while sentences:
    yield sentences.pop()


def train(sentences: Iterable[str], spec: VocabularySpec, *, large: bool = False) -> bytes:
  """A serialized SentencePiece model, of normalised sentences; a `UserError` says which `vocab_size` would fit.

  Args:
    sentences: read once.
    spec: what is trained.
    large: it takes minutes; SentencePiece shows its progress.
  """
  writer = io.BytesIO()
  try:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(sentences),
      model_writer=writer,
      model_type="unigram",
      vocab_size=spec.vocab_size,
      pad_id=0,
      unk_id=1,
      bos_id=-1,
      eos_id=-1,
      pad_piece=SPECIAL_PIECES[0],
      unk_piece=SPECIAL_PIECES[1],
      control_symbols=list(CONTROL_SYMBOLS),
      user_defined_symbols=list(spec.user_symbols),
      character_coverage=spec.character_coverage,
      num_threads=spec.num_threads,
      shuffle_input_sentence=False,  # Sampled already.
      max_sentence_length=1 << 24,  # Bytes; longer sentences would be left out silently.
      minloglevel=0 if large else 2,
    )
  except RuntimeError as error:
    raise UserError(_explain(str(error), spec.vocab_size)) from error
  return writer.getvalue()


def _explain(message: str, vocab_size: int) -> str:
  if found := re.search(r"Vocabulary size too high .*<= (\d+)", message):
    return (
      f"vocab_size must fit the text. Received: {vocab_size}, but it gives at most {found[1]} "
      f"pieces. Pass --vocab_size={found[1]} or less, or add text."
    )
  if found := re.search(r"smaller than required_chars. \d+ vs (\d+)", message):
    return (
      f"vocab_size must hold the special pieces and the text's characters. Received: {vocab_size}, but "
      f"{found[1]} are needed. Pass --vocab_size={found[1]} or more, or a lower --character_coverage."
    )
  return (
    f"SentencePiece must be able to train on the text. Received from it: {message.strip()}. Check --input."
  )


def check(model: bytes, sentences: Sequence[str], spec: VocabularySpec) -> float:
  """Checks a trained model: special ids, user symbols, size, and that these sentences survive a round trip.

  Returns:
    The share of unknown pieces in the sentences.

  Raises:
    RuntimeError: the model is not what was asked for; a fault of this program or of SentencePiece.
  """
  tokenizer = AlbertTokenizer.from_model_bytes(model, spec.tokenizer)
  expected = [*SPECIAL_PIECES, *spec.user_symbols]
  if tokenizer.pieces[: len(expected)] != expected or tokenizer.vocab_size != spec.vocab_size:
    raise RuntimeError(
      f"The vocabulary must have {spec.vocab_size} pieces and begin with {expected}. Received: "
      f"{tokenizer.vocab_size} pieces that begin with {tokenizer.pieces[: len(expected)]}."
    )
  processor = load_processor(model, source="the trained model")
  unknown = total = 0
  for sentence in sentences:
    ids = processor.encode(sentence)
    total += len(ids)
    unknown += ids.count(processor.unk_id())
    normalized = processor.normalize(sentence).replace("▁", " ").strip()
    if processor.unk_id() not in ids and processor.decode(ids) != normalized:
      decoded = processor.decode(ids)
      raise RuntimeError(f"Text must survive encoding and decoding. Received: {decoded!r} for {sentence!r}.")
  return unknown / max(total, 1)


def write(model: bytes, *, model_prefix: str, spec: VocabularySpec) -> None:
  """Writes PREFIX.vocab (pieces and scores), PREFIX.json (settings) and, last, PREFIX.model."""
  processor = load_processor(model, source="the trained model")
  rows = (f"{processor.id_to_piece(i)}\t{processor.get_score(i):g}\n" for i in range(processor.vocab_size()))
  contents = {
    ".vocab": "".join(rows).encode(),
    ".json": spec.tokenizer.to_json().encode(),
    ".model": model,
  }
  try:
    for suffix, content in contents.items():
      with files.atomic_writer(model_prefix + suffix) as stream:
        stream.write(content)
  except OSError as error:
    raise UserError(
      f"The vocabulary must be writable. Received: {model_prefix} ({error.strerror or error}). "
      "Choose another --model_prefix, or make room."
    ) from error
