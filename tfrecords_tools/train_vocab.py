r"""Trains a SentencePiece unigram vocabulary with ALBERT's special ids.

Ids 0-4 are <pad>, <unk>, [CLS], [SEP], [MASK]; ids 5-12 are ( ) " - . – £ €; learned pieces follow. The
text goes through ALBERT's normalisation first. The same text and flags give the same bytes. --input may name sources
with weights, as create_pretraining_data.py takes them, for a vocabulary of the mixture that is trained on.

  python tfrecords_tools/train_vocab.py --input 'text/*.txt' --model_prefix vocab/spm --vocab_size 30000
"""

from collections.abc import Sequence
import os
import time

from absl import app, flags

from albert_tf import files
from albert_tf.errors import UserError, exit_on_user_error
from tfrecords_tools import vocabulary
from tfrecords_tools.corpus import BAD_TEXT_ACTIONS, FORMATS, CorpusOptions, CorpusStats, describe_formats
from tfrecords_tools.pretraining.sources import expand_sources

_INPUT = flags.DEFINE_list(
  "input",
  None,
  "Input files: glob patterns with commas, quoted; or sources with weights, NAME=PATTERN:WEIGHT, as "
  "create_pretraining_data.py takes them: their sentences are drawn WEIGHT times as often.",
  required=True,
)
_MODEL_PREFIX = flags.DEFINE_string(
  "model_prefix", None, "Writes PREFIX.model, PREFIX.vocab and PREFIX.json.", required=True
)
_VOCAB_SIZE = flags.DEFINE_integer("vocab_size", 30000, "Tokens, the special ones included.", lower_bound=16)
_DO_LOWER_CASE = flags.DEFINE_bool("do_lower_case", True, "Lower-case the text.")
_KEEP_ACCENTS = flags.DEFINE_bool("keep_accents", False, "Keep accents and other marks on letters.")
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
  "Share of the text's characters that get a token.",
  lower_bound=0.9,
  upper_bound=1.0,
)
_USER_SYMBOL = flags.DEFINE_multi_string(
  "user_symbol", list(vocabulary.USER_SYMBOLS), "A token that is always there; repeatable."
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


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise UserError(f"This command takes flags alone. Received: {argv[1:]}. Quote a glob, or see --help.")
  spec = vocabulary.VocabularySpec(
    vocab_size=_VOCAB_SIZE.value,
    do_lower_case=_DO_LOWER_CASE.value,
    keep_accents=_KEEP_ACCENTS.value,
    character_coverage=_CHARACTER_COVERAGE.value,
    user_symbols=tuple(_USER_SYMBOL.value),
    num_threads=_NUM_THREADS.value,
  )
  stats = CorpusStats()
  options = CorpusOptions(
    input_format=_INPUT_FORMAT.value, on_bad_text=_ON_BAD_TEXT.value, text_field=_TEXT_FIELD.value
  )
  files.makedirs(os.path.dirname(_MODEL_PREFIX.value) or ".")  # Before the long work.
  paths, sources = expand_sources(_INPUT.value)
  for line in describe_formats(paths, options):
    print(line, flush=True)
  sentences, drawn_from = vocabulary.read_sentences(
    paths,
    options,
    spec,
    sources=sources,
    size=_INPUT_SENTENCE_SIZE.value,
    seed=_RANDOM_SEED.value,
    stats=stats,
  )
  print(
    f"Training {spec.vocab_size:,} pieces on {len(sentences):,} of {sum(drawn_from.values()):,} sentences "
    f"from {stats.files} files …", flush=True
  )  # fmt: skip
  for source, count in drawn_from.items():
    if source.name:
      share = count / max(1, sum(drawn_from.values()))
      print(f"source {source.name}, weight {source.weight:g}: {share:.1%} of the sentences drawn from")
  start = time.monotonic()
  unknown = vocabulary.make(sentences, spec, model_prefix=_MODEL_PREFIX.value)
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
