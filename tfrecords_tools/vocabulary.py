"""A SentencePiece unigram vocabulary with ALBERT's special ids: read, normalise, train, check, write."""

from collections.abc import Iterator, Sequence
import dataclasses
import io
import itertools

import sentencepiece

from albert_tf import files, progress
from albert_tf.errors import UserError
from albert_tf.settings import Settings, setting
from albert_tf.tokenization import AlbertTokenizer, TokenizerConfig, normalize_text
from albert_tf.tokenization.tokenizer import load_processor
from tfrecords_tools.corpus import CorpusOptions, CorpusStats, iter_documents

# Passed as a list: as a comma-separated string, as in the original's README, the lone quote is read as the
# beginning of a quoted field and the vocabulary gets one wrong symbol in the place of six.
USER_SYMBOLS = ("(", ")", '"', "-", ".", "–", "£", "€")
CONTROL_SYMBOLS = ("[CLS]", "[SEP]", "[MASK]")
SPECIAL_PIECES = ("<pad>", "<unk>", *CONTROL_SYMBOLS)
_CHECKED_SENTENCES = 1000
_SHOW_LOG_ABOVE_BYTES = 50_000_000  # Training takes minutes: show SentencePiece's own progress.


@dataclasses.dataclass(frozen=True, kw_only=True)
class VocabularySpec(Settings):
  """What is trained; the defaults are those of the released English vocabulary."""

  vocab_size: int = setting(30000, minimum=16, help="Tokens, the special ones included.")
  do_lower_case: bool = setting(True, help="Lower-case the text.")
  keep_accents: bool = setting(False, help="Keep accents and other marks on letters.")
  character_coverage: float = setting(
    0.99995, minimum=0.9, maximum=1.0, help="Share of the text's characters that get a token."
  )
  input_sentence_size: int = setting(
    10_000_000,
    minimum=0,
    help="Train on a uniform sample of this many sentences, the same for the same text; 0: on all.",
  )
  num_threads: int = setting(
    8, minimum=1, help="Threads; a fixed number, so that every machine trains the same vocabulary."
  )
  user_symbols: tuple[str, ...] = USER_SYMBOLS

  @property
  def tokenizer(self) -> TokenizerConfig:
    """How text becomes what the vocabulary is trained on; it is written beside the vocabulary."""
    return TokenizerConfig(do_lower_case=self.do_lower_case, keep_accents=self.keep_accents)


def make(
  paths: Sequence[str], options: CorpusOptions, spec: VocabularySpec, *, model_prefix: str, stats: CorpusStats
) -> float:
  """Trains on the text of all files, checks, writes; returns the share of unknown pieces in its first sentences.

  Args:
    paths: the files.
    options: how they are read.
    spec: what is trained.
    model_prefix: begins the paths that are written.
    stats: counts what is read.
  """
  sentences = read_sentences(paths, options, spec, stats=stats)
  first = list(itertools.islice(sentences, _CHECKED_SENTENCES))
  if not first:
    raise UserError("The input must hold text. Received: files without a single sentence. Check --input.")
  large = sum(map(files.size, paths)) > _SHOW_LOG_ABOVE_BYTES
  model = train(itertools.chain(first, sentences), spec, large=large)
  unknown = check(model, first, spec)
  write(model, model_prefix=model_prefix, spec=spec)
  return unknown


def read_sentences(
  paths: Sequence[str], options: CorpusOptions, spec: VocabularySpec, *, stats: CorpusStats
) -> Iterator[str]:
  """Yields the sentences of all files as the tokenizer will see them, without empty ones."""
  with progress.bar(sum(map(files.size, paths)), desc="Reading text", unit="B") as shown:
    for path in paths:
      for sentence in itertools.chain.from_iterable(iter_documents(path, options, stats=stats)):
        if text := normalize_text(sentence, do_lower_case=spec.do_lower_case, keep_accents=spec.keep_accents):
          yield text
      shown.update(files.size(path))


def train(sentences: Iterator[str], spec: VocabularySpec, *, large: bool = False) -> bytes:
  """A serialized SentencePiece model, of normalised sentences; SentencePiece samples them by a fixed seed of its own.

  Args:
    sentences: read once.
    spec: what is trained.
    large: it takes minutes; SentencePiece shows its progress.

  Raises:
    UserError: SentencePiece cannot make such a vocabulary of the text; it says which `vocab_size` would fit.
  """
  writer = io.BytesIO()
  try:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=sentences,
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
      input_sentence_size=spec.input_sentence_size,
      shuffle_input_sentence=True,
      max_sentence_length=1 << 24,  # Bytes; longer sentences would be left out silently.
      minloglevel=0 if large else 2,
    )
  except RuntimeError as error:
    raise UserError(
      f"SentencePiece must be able to train {spec.vocab_size:,} pieces on the text. Received from it: "
      f"{str(error).strip()}. Change --vocab_size or --character_coverage, or add text."
    ) from error
  return writer.getvalue()


def check(model: bytes, sentences: Sequence[str], spec: VocabularySpec) -> float:
  """Checks a trained model: special ids, user symbols and size.

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
  for suffix, content in contents.items():
    with files.atomic_writer(model_prefix + suffix) as stream:
      stream.write(content)
