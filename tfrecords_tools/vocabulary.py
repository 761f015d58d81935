"""A SentencePiece unigram vocabulary with ALBERT's special ids: read, normalise, train, write.

The work of `train_vocab.py`.
"""

from collections.abc import Iterator, Sequence
import contextlib
import io
import itertools
import sys

import sentencepiece

from albert_tf import files, json_files, progress
from albert_tf.errors import UserError
from albert_tf.lock import DirectoryLock
from albert_tf.settings import Settings, setting
from albert_tf.tokenization import TokenizerConfig, normalize_text
from albert_tf.tokenization.tokenizer import load_processor
from tfrecords_tools.corpus import CorpusOptions, CorpusStats, iter_documents

# Passed as a list: as a comma-separated string, as in the original's README, the lone quote is read
# as the beginning of a quoted field and the vocabulary gets one wrong symbol in the place of six.
_USER_SYMBOLS = ("(", ")", '"', "-", ".", "–", "£", "€")
_NUM_THREADS = 8  # On any machine: another number may give another vocabulary.
_MEMORY_PER_CHARACTER = 25  # Bytes; SentencePiece sorts all suffixes of its sample.
_SHOW_LOG_ABOVE_BYTES = 50_000_000  # Training takes minutes: show SentencePiece's own progress.


class VocabularySpec(Settings):
  """Settings of a vocabulary; the defaults are those of the released English one."""

  vocab_size: int = setting(
    30000,
    "Number of tokens, including the special ones. Each is E + 1 parameters: base has 11.8 million with "
    "30,000 and 20.8 million with 100,000 (count_parameters.py). For the step's time and memory ask "
    "compile_for_tpu.py. Which number learns best was not measured.",
    minimum=16,
    maximum=1 << 20,
  )
  do_lower_case: bool = setting(True, "Lower-case the text.")
  keep_accents: bool = setting(False, "Keep accents on letters.")
  # SentencePiece refuses less than 0.98.
  character_coverage: float = setting(
    0.99995,
    "Share of the text's characters that the vocabulary covers; each one takes a token. The rarest become "
    "<unk>, and 0.00005 of 10^9 characters are 50,000: for rare signs give 1. If SentencePiece says "
    '"smaller than required_chars", give less, such as 0.9995, or take scripts that you do not need '
    "out of the text.",
    minimum=0.98,
    maximum=1.0,
  )
  # A million take about 3 GiB of memory; more would hardly change the vocabulary.
  num_sampled_sentences: int = setting(
    1_000_000, "Train on a random sample of this many sentences.", minimum=1, flag=""
  )

  @property
  def tokenizer(self) -> TokenizerConfig:
    """The normalisation of the training text; written next to the vocabulary."""
    return TokenizerConfig(do_lower_case=self.do_lower_case, keep_accents=self.keep_accents)


def make(
  paths: Sequence[str],
  options: CorpusOptions,
  spec: VocabularySpec,
  *,
  model_prefix: str,
  stats: CorpusStats,
) -> None:
  """Trains on the text of all files and writes the model to `model_prefix`.

  Args:
    paths, options: the text.
    spec: settings of the vocabulary.
    model_prefix: path and name of the output, without its extensions.
    stats: counts what is read.

  Raises:
    UserError: a file cannot be read, the vocabulary cannot be made, or another process makes one of
      this prefix.
  """
  log_level = 2  # Only errors.
  if sum(map(files.size, paths)) > _SHOW_LOG_ABOVE_BYTES:
    log_level = 0
  # A folder of the prefix, because other vocabularies may be made beside it.
  lock_directory = f"{model_prefix}.lock"
  # Two that train at once would mix their files.
  lock = DirectoryLock(lock_directory, flag="--model_prefix")
  lock.acquire()
  try:
    sentences = read_sentences(paths, options, spec, stats=stats)
    model = train(sentences, spec, log_level=log_level)
    lock.check()
    write(model, model_prefix=model_prefix, spec=spec)
  finally:
    with contextlib.suppress(OSError):
      files.remove(lock_directory)
    lock.release()


def read_sentences(
  paths: Sequence[str], options: CorpusOptions, spec: VocabularySpec, *, stats: CorpusStats
) -> Iterator[str]:
  """Yields the normalised sentences of all files, without empty ones.

  At the end it prints the memory that training will take.
  """
  num_sentences = 0
  num_characters = 0
  sizes_and_times = list(map(files.size_and_time, paths))
  num_bytes = sum(size for size, _ in sizes_and_times)
  with progress.bar(num_bytes, desc="Reading text", unit="B") as bar:
    for path, (size, time) in zip(paths, sizes_and_times, strict=True):
      for sentence in itertools.chain.from_iterable(iter_documents(path, options, stats=stats)):
        text = normalize_text(
          sentence, do_lower_case=spec.do_lower_case, keep_accents=spec.keep_accents
        )
        if text:
          num_sentences += 1
          num_characters += len(text)
          yield text
      # A file that was cut short looks as if it ended there.
      size_now, time_now = files.size_and_time(path)
      if (size_now, time_now) != (size, time):
        raise UserError(
          f"Input files must not change while they are read. Received: {path}, of {size_now:,} "
          f"bytes now and {size:,} at the start. Give the command again when it is complete."
        )
      bar.update(size)

  # SentencePiece takes a random sample, and memory for that alone.
  num_sampled = min(num_sentences, spec.num_sampled_sentences)
  sampled_characters = num_characters * num_sampled / max(1, num_sentences)
  print(
    f"training on {num_sampled:,} of {num_sentences:,} sentences, which takes about "
    f"{_MEMORY_PER_CHARACTER * sampled_characters / 2**20:,.0f} MiB of memory",
    file=sys.stderr,
    flush=True,
  )


def train(sentences: Iterator[str], spec: VocabularySpec, *, log_level: int = 2) -> bytes:
  """A serialized SentencePiece model of normalised sentences, sampled with a fixed seed.

  Args:
    sentences: normalised; read once.
    spec: settings of the vocabulary.
    log_level: of SentencePiece's own messages.

  Raises:
    UserError: there is no text, or SentencePiece cannot make such a vocabulary of it.
    BaseException: whatever the iterator of sentences raised; nothing was trained then.
  """
  # SentencePiece's own message for no text is hard to understand.
  first = next(sentences, None)
  if first is None:
    raise UserError(
      "The input must hold text. Received: files without a single sentence. Check --input."
    )
  failures: list[BaseException] = []

  def guarded_sentences() -> Iterator[str | None]:
    # SentencePiece takes an exception for the end of the text and trains on what it has. At an item
    # that is no string it stops with an error of its own, so that is what it gets.
    try:
      yield first
      yield from sentences
    except (Exception, KeyboardInterrupt, SystemExit) as error:
      failures.append(error)
      yield None

  writer = io.BytesIO()
  try:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=guarded_sentences(),
      model_writer=writer,
      model_type="unigram",
      vocab_size=spec.vocab_size,
      pad_id=0,
      unk_id=1,
      bos_id=-1,
      eos_id=-1,
      pad_piece="<pad>",
      unk_piece="<unk>",
      control_symbols=["[CLS]", "[SEP]", "[MASK]"],
      user_defined_symbols=list(_USER_SYMBOLS),
      character_coverage=spec.character_coverage,
      num_threads=_NUM_THREADS,
      input_sentence_size=spec.num_sampled_sentences,
      shuffle_input_sentence=True,
      max_sentence_length=1 << 24,  # Bytes; longer sentences would be left out silently.
      minloglevel=log_level,
    )
  except RuntimeError as error:
    for failure in failures:
      raise failure from error
    raise UserError(
      f"SentencePiece must be able to train {spec.vocab_size:,} tokens on the text. Received from "
      f"it: {str(error).strip()}. Change --vocab_size or --character_coverage, or add text."
    ) from error
  return writer.getvalue()


def write(model: bytes, *, model_prefix: str, spec: VocabularySpec) -> None:
  """Writes PREFIX.vocab (tokens and scores), PREFIX.json (settings) and, last, PREFIX.model."""
  processor = load_processor(model, source="the trained model")
  lines = ""
  for i in range(processor.vocab_size()):
    lines += f"{processor.id_to_piece(i)}\t{processor.get_score(i):g}\n"
  files.write_text(f"{model_prefix}.vocab", lines)
  json_files.write(f"{model_prefix}.json", spec.tokenizer.to_dict())
  # The model last: whoever finds it finds the rest too.
  files.write_bytes(f"{model_prefix}.model", model)
