r"""Trains a SentencePiece unigram vocabulary with ALBERT's special ids.

Ids 0-4 are <pad>, <unk>, [CLS], [SEP], [MASK]; ids 5-12 are ( ) " - . – £ €; learned pieces follow. The
text goes through ALBERT's normalisation first. The same text and flags give the same bytes.

  python tfrecords_tools/train_vocab.py --input 'text/*.txt' --model_prefix vocab/spm --vocab_size 30000
"""

from collections.abc import Iterable, Iterator, Sequence
import dataclasses
import io
import math
import os
import random
import re
import time

from absl import app, flags
import sentencepiece
from tqdm import tqdm

from albert_tf import files
from albert_tf.errors import UserError, exit_on_user_error
from albert_tf.tokenization import AlbertTokenizer, TokenizerConfig, normalize_text
from albert_tf.tokenization.spm_model import load_processor
from tfrecords_tools.corpus import CorpusOptions, CorpusStats, iter_documents
from tfrecords_tools.corpus.options import BAD_TEXT_ACTIONS, FORMATS

# Passed as a list: as a comma-separated string, as in the original's README, the lone quote is read as the
# beginning of a quoted field and the vocabulary gets one wrong symbol in the place of six.
USER_SYMBOLS = ("(", ")", '"', "-", ".", "–", "£", "€")
CONTROL_SYMBOLS = ("[CLS]", "[SEP]", "[MASK]")
SPECIAL_PIECES = ("<pad>", "<unk>", *CONTROL_SYMBOLS)
_CHECKED_SENTENCES = 1000
_SHOW_LOG_ABOVE_BYTES = 50_000_000  # Training takes minutes: show SentencePiece's own progress.

_INPUT = flags.DEFINE_string("input", None, "Comma-separated globs of text files.", required=True)
_MODEL_PREFIX = flags.DEFINE_string(
  "model_prefix", None, "Writes PREFIX.model, PREFIX.vocab and PREFIX.json.", required=True
)
_VOCAB_SIZE = flags.DEFINE_integer("vocab_size", 30000, "Pieces, the special ones included.", lower_bound=16)
_DO_LOWER_CASE = flags.DEFINE_bool("do_lower_case", True, "Lower-case the text.")
_INPUT_SENTENCE_SIZE = flags.DEFINE_integer(
  "input_sentence_size",
  10_000_000,
  "Train on a uniform sample of this many sentences; 0: on all.",
  lower_bound=0,
)
_RANDOM_SEED = flags.DEFINE_integer("random_seed", 12345, "Seed of that sample.")
_CHARACTER_COVERAGE = flags.DEFINE_float(
  "character_coverage",
  0.99995,
  "Share of the text's characters that get a piece.",
  lower_bound=0.9,
  upper_bound=1.0,
)
_USER_SYMBOL = flags.DEFINE_multi_string(
  "user_symbol", list(USER_SYMBOLS), "A piece that is always there; repeatable."
)
_NUM_THREADS = flags.DEFINE_integer(
  "num_threads",
  8,
  "Threads; a fixed number, so that every machine trains the same vocabulary.",
  lower_bound=1,
)
_INPUT_FORMAT = flags.DEFINE_enum("input_format", "auto", FORMATS, "How the files hold documents.")
_TEXT_FIELD = flags.DEFINE_string("text_field", "text", "The column of the text (jsonl, parquet).")
_ON_BAD_TEXT = flags.DEFINE_enum(
  "on_bad_text", "error", BAD_TEXT_ACTIONS, "What to do with bytes that are not UTF-8."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class VocabularySpec:
  """What is trained; the defaults are those of the released English vocabulary."""

  vocab_size: int = 30000
  do_lower_case: bool = True
  character_coverage: float = 0.99995
  user_symbols: tuple[str, ...] = USER_SYMBOLS
  num_threads: int = 8


def read_sentences(paths: Sequence[str], options: CorpusOptions, stats: CorpusStats) -> Iterator[str]:
  """All sentences of all files, with progress."""
  total = sum(map(files.size, paths))
  with tqdm(total=total, unit="B", unit_scale=True, desc="Reading text", mininterval=1.0) as progress:
    for path in paths:
      for document in iter_documents(path, options, stats=stats):
        yield from document
      progress.update(files.size(path))


def sample(items: Iterable[str], size: int, *, rng: random.Random) -> list[str]:
  """A uniform sample without replacement, in the order of the stream; everything if it is no longer.

  Li's algorithm L: keeps `size` items in memory and draws a random number only where one is replaced.
  """
  stream = enumerate(items)
  if size == 0:
    return [item for _, item in stream]
  kept: list[tuple[int, str]] = []
  for numbered in stream:
    kept.append(numbered)
    if len(kept) == size:
      break
  else:
    return [item for _, item in kept]
  weight = math.exp(math.log(1.0 - rng.random()) / size)
  target = size + _skip(weight, rng)
  for index, item in stream:
    if index == target:
      kept[rng.randrange(size)] = (index, item)
      weight *= math.exp(math.log(1.0 - rng.random()) / size)
      target += 1 + _skip(weight, rng)
  return [item for _, item in sorted(kept)]


def _skip(weight: float, rng: random.Random) -> int:
  if weight >= 1.0:
    return 0
  return int(math.log(1.0 - rng.random()) / math.log1p(-weight)) if weight > 0 else 1 << 62


def normalize(raw: Sequence[str], spec: VocabularySpec) -> list[str]:
  """The sentences as the tokenizer will see them, without empty ones; a `UserError` if none is left."""
  sentences = [text for item in raw if (text := normalize_text(item, do_lower_case=spec.do_lower_case))]
  if not sentences:
    raise UserError("The input must hold text. Received: files without a single sentence. Check --input.")
  return sentences


def train(sentences: Sequence[str], spec: VocabularySpec) -> bytes:
  """Trains on normalised sentences.

  Returns:
    The serialized SentencePiece model.

  Raises:
    UserError: `vocab_size` does not fit the text; the message says what does.
  """
  writer = io.BytesIO()
  large = sum(map(len, sentences)) > _SHOW_LOG_ABOVE_BYTES
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
  """Checks a trained model: special ids, user symbols, size, and that text survives a round trip.

  Args:
    model: the serialized SentencePiece model.
    sentences: normalised sentences, of which some are tried.
    spec: what was asked for.

  Returns:
    The share of unknown pieces in the sentences tried.

  Raises:
    RuntimeError: the model is not what was asked for; a fault of this program or of SentencePiece.
  """
  tokenizer = AlbertTokenizer.from_model_bytes(model, TokenizerConfig(do_lower_case=spec.do_lower_case))
  expected = [*SPECIAL_PIECES, *spec.user_symbols]
  if tokenizer.pieces[: len(expected)] != expected or tokenizer.vocab_size != spec.vocab_size:
    raise RuntimeError(
      f"The vocabulary must have {spec.vocab_size} pieces and begin with {expected}. Received: "
      f"{tokenizer.vocab_size} pieces that begin with {tokenizer.pieces[: len(expected)]}."
    )
  processor = load_processor(model, source="the trained model")
  unknown = total = 0
  for sentence in sentences[:: max(1, len(sentences) // _CHECKED_SENTENCES)]:
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
    ".json": TokenizerConfig(do_lower_case=spec.do_lower_case).to_json().encode(),
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


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise UserError(f"This command takes flags alone. Received: {argv[1:]}. Quote a glob, or see --help.")
  spec = VocabularySpec(
    vocab_size=_VOCAB_SIZE.value,
    do_lower_case=_DO_LOWER_CASE.value,
    character_coverage=_CHARACTER_COVERAGE.value,
    user_symbols=tuple(_USER_SYMBOL.value),
    num_threads=_NUM_THREADS.value,
  )
  stats = CorpusStats()
  options = CorpusOptions(
    input_format=_INPUT_FORMAT.value, on_bad_text=_ON_BAD_TEXT.value, text_field=_TEXT_FIELD.value
  )
  paths = files.expand_globs(_INPUT.value)
  files.makedirs(os.path.dirname(_MODEL_PREFIX.value) or ".")
  raw = sample(
    read_sentences(paths, options, stats), _INPUT_SENTENCE_SIZE.value, rng=random.Random(_RANDOM_SEED.value)
  )
  sentences = normalize(raw, spec)
  print(
    f"Training {spec.vocab_size:,} pieces on {len(sentences):,} of {stats.sentences:,} sentences "
    f"from {stats.files} files …", flush=True
  )  # fmt: skip
  start = time.monotonic()
  model = train(sentences, spec)
  unknown = check(model, sentences, spec)
  write(model, model_prefix=_MODEL_PREFIX.value, spec=spec)
  print(
    f"Wrote {_MODEL_PREFIX.value}.model, .vocab, .json in {time.monotonic() - start:.0f} s. Checked: special "
    f"ids 0-4, {len(spec.user_symbols)} user symbols, round trip; unknown pieces {unknown:.4%}."
  )
  if stats.empty_files:
    print(f"Files without text: {stats.empty_files} of {stats.files}.")
  if stats.bad_text_skipped or stats.bad_text_replaced:
    print(f"Lines that were not UTF-8: {stats.bad_text_skipped} left out, {stats.bad_text_replaced} mended.")


if __name__ == "__main__":
  app.run(exit_on_user_error(main))
