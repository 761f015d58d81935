r"""Makes pretraining records (TFRecords) from text: n-gram masked-LM and sentence order instances.

  python tfrecords_tools/create_pretraining_data.py --input 'corpus/*.txt' \
      --spm_model_file 30k.model --output_dir records

The output directory gets train-*.tfrecord, eval-*.tfrecord (held out by document), manifest.json and the
tokenizer. The same input, settings and seed give the same bytes, whatever the number of workers. A run that
was cut short continues when the same command is given again.
"""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import dataclasses
import os
import sys
import time
from typing import Any

from absl import app, flags
import tqdm

from albert_tf import files
from albert_tf.errors import UserError, exit_on_user_error
from albert_tf.records import Manifest
from albert_tf.tokenization import WORD_RULES, load_tokenizer
from tfrecords_tools.corpus import BAD_TEXT_ACTIONS, FORMATS, CorpusOptions
from tfrecords_tools.pretraining.job import Progress, Runner, create_records
from tfrecords_tools.pretraining.local_runner import LocalRunner
from tfrecords_tools.pretraining.settings import (
  COMPATIBILITY,
  RECORD_LAYOUTS,
  SENTENCE_PAIRS,
  PretrainingSettings,
)
from tfrecords_tools.pretraining.statistics import torn_words_warning

_INPUT = flags.DEFINE_list(
  "input", None, "Input files: glob patterns with commas. Quote them.", required=True
)
_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Directory for the records.", required=True)
_SPM_MODEL_FILE = flags.DEFINE_string(
  "spm_model_file", None, "SentencePiece model, from train_vocab.py or a release."
)
_VOCAB_FILE = flags.DEFINE_string("vocab_file", None, "WordPiece vocabulary (.txt) instead.")
flags.mark_flags_as_mutual_exclusive(["spm_model_file", "vocab_file"], required=True)
_DO_LOWER_CASE = flags.DEFINE_bool(
  "do_lower_case", None, "Default: as noted beside the vocabulary, else true."
)
_KEEP_ACCENTS = flags.DEFINE_bool(
  "keep_accents", None, "Keep accents and other marks. Default: as noted beside the vocabulary, else false."
)
_INPUT_FORMAT = flags.DEFINE_enum("input_format", "auto", FORMATS, "How documents and sentences are marked.")
_TEXT_FIELD = flags.DEFINE_string("text_field", "text", "Field or column of the text (jsonl, parquet).")
_LANGUAGE = flags.DEFINE_string("language", "en", "Language of the sentence splitter.")
_ON_BAD_TEXT = flags.DEFINE_enum(
  "on_bad_text", "error", BAD_TEXT_ACTIONS, "What to do with text that is not UTF-8."
)
_MAX_SEQ_LENGTH = flags.DEFINE_integer("max_seq_length", 512, "Tokens of a sequence, with [CLS] and [SEP].")
_MAX_PREDICTIONS = flags.DEFINE_integer("max_predictions_per_seq", 20, "Most pieces masked in a sequence.")
_MASKED_LM_PROB = flags.DEFINE_float("masked_lm_prob", 0.15, "Share of the tokens that is masked.")
_DUPE_FACTOR = flags.DEFINE_integer(
  "dupe_factor", 40, "Passes over the text, each with other cuts and masks."
)
_SHORT_SEQ_PROB = flags.DEFINE_float(
  "short_seq_prob", 0.1, "Share of instances with a random shorter length."
)
_SENTENCE_PAIR = flags.DEFINE_enum(
  "sentence_pair",
  "sop",
  SENTENCE_PAIRS,
  "sop: label 1 is the two segments swapped. nsp: B of another document. none: one segment, label 0.",
)
_NGRAM = flags.DEFINE_integer("ngram", 3, "Longest n-gram that is masked together, in words.")
_NGRAM_DISTRIBUTION = flags.DEFINE_string(
  "ngram_distribution",
  "inverse",
  "p(n): inverse (1/n, the paper), uniform, reverse (longest most often), or --ngram weights with commas.",
)
_WHOLE_WORD = flags.DEFINE_enum(
  "whole_word",
  "original",
  WORD_RULES,
  "Where a word begins, whose pieces are masked together. original: every piece with letters beyond ASCII is a word. "
  "sentencepiece: where a space was. none: mask single pieces.",
)
_EVAL_FRACTION = flags.DEFINE_float(
  "eval_fraction", 0.01, "Share of the documents that is held out. 0: none."
)
_RANDOM_SEED = flags.DEFINE_integer("random_seed", 12345, "Seed of everything random.")
_NUM_SHARDS = flags.DEFINE_integer("num_shards", 4, "Number of train files.", lower_bound=1)
_NUM_EVAL_SHARDS = flags.DEFINE_integer("num_eval_shards", 1, "Number of eval files.", lower_bound=1)
_COMPATIBILITY = flags.DEFINE_enum(
  "compatibility",
  "none",
  COMPATIBILITY,
  "original: follow google-research/albert where the default differs from it (docs/data.md lists how).",
)
_RECORD_LAYOUT = flags.DEFINE_enum(
  "record_layout",
  "example",
  RECORD_LAYOUTS,
  "example: as google-research/albert reads it. compact: under half the size and several times as fast to read; "
  "only this project reads it.",
)
_NUM_WORKERS = flags.DEFINE_integer(
  "num_workers", 1, "Processes. The records do not depend on it.", lower_bound=1
)
_RUNNER = flags.DEFINE_enum(
  "runner",
  "local",
  ("local", "beam"),
  "local: processes of this machine. beam: Apache Beam; its own options follow after a lone --.",
)
_WORK_DIR = flags.DEFINE_string("work_dir", None, "Directory for unfinished work; default in --output_dir.")

_READING_FLAGS = (
  "input",
  "spm_model_file",
  "vocab_file",
  "do_lower_case",
  "keep_accents",
  "input_format",
  "text_field",
  "language",
  "on_bad_text",
)
_SETTINGS = [field.name for field in dataclasses.fields(PretrainingSettings)]


@contextlib.contextmanager
def progress_bars() -> Iterator[Progress]:
  """A bar with rate and time left for reading, then one for writing."""
  bars: dict[str, tqdm.tqdm] = {}

  def report(stage: str, done: int, total: int) -> None:
    if stage not in bars:
      text = stage == "read"
      close()
      bars[stage] = tqdm.tqdm(
        total=total,
        desc="making instances" if text else "writing files",
        unit="B" if text else "file",
        unit_scale=text,
        mininterval=0.5 if sys.stderr.isatty() else 10,
        dynamic_ncols=True,
      )
    bars[stage].update(done - bars[stage].n)

  def close() -> None:
    for bar in bars.values():
      bar.close()

  try:
    yield report
  finally:
    close()


def _runner(arguments: Sequence[str]) -> Runner:
  if _RUNNER.value == "beam":
    from tfrecords_tools.pretraining.beam_runner import BeamRunner  # Apache Beam takes seconds to import.

    return BeamRunner(arguments)
  if arguments:
    raise UserError(
      f"Everything is given by flags. Received: {arguments[0]!r}. Quote glob patterns, so that the shell does "
      "not expand them."
    )
  if files.is_remote(_OUTPUT_DIR.value) and (not _WORK_DIR.value or files.is_remote(_WORK_DIR.value)):
    raise UserError(
      f"Unfinished work must be on a local disk. Received: --output_dir={_OUTPUT_DIR.value}, "
      f"--work_dir={_WORK_DIR.value}. Name a local directory as --work_dir; the records go to --output_dir."
    )
  return LocalRunner(num_workers=_NUM_WORKERS.value)


def write_flags(output_dir: str) -> None:
  """flags.txt: what to give as --flagfile to make the same records again; without what does not change them."""
  with files.atomic_writer(os.path.join(output_dir, "flags.txt"), "w") as stream:
    given = [name for name in (*_READING_FLAGS, *_SETTINGS) if flags.FLAGS[name].value is not None]
    stream.write("".join(f"{flags.FLAGS[name].serialize()}\n" for name in given))


def _format_corpus(corpus: Mapping[str, Any]) -> str:
  noted = [
    f"{corpus[name]:,} {what}"
    for name, what in (
      ("empty_files", "empty files"),
      ("bad_text_skipped", "lines or records not UTF-8, dropped"),
      ("bad_text_replaced", "lines or records not UTF-8, repaired"),
      ("long_lines", "overlong lines cut"),
      ("long_documents", "overlong documents cut"),
      ("skipped_records", "records without an article"),
    )
    if corpus[name]
  ]
  read = (
    f"read   {corpus['bytes_read'] / 1e6:,.1f} MB in {corpus['files']:,} file(s): {corpus['documents']:,} documents, "
    f"{corpus['sentences']:,} sentences"
  )
  return "; ".join([read, *noted])


def format_summary(manifest: Manifest, seconds: float) -> str:
  """What was made, for a person to read."""
  lines = [_format_corpus(manifest.statistics["corpus"])]
  for split in ("train", "eval"):
    s = manifest.statistics[split]
    if not s["instances"]:
      continue
    shares = " ".join(f"{n}:{share:.3f}" for n, share in enumerate(s["ngram_shares"], 1) if share is not None)
    lines.append(
      f"{split:5}  {s['instances']:,} instances of {s['documents']:,} documents in "
      f"{len(manifest.files_of(split))} file(s); mean length {s['mean_length']:.1f}; label 1 "
      f"{s['label_1_share']:.3f}; predictions {s['mean_predictions']:.1f}; unknown pieces "
      f"{s['unknown_share'] or 0:.5f}; cut off {s['truncated_share'] or 0:.4f}"
    )
    if s["masked_share"] is not None:
      lines.append(
        f"       masked {s['masked_share']:.3f} kept {s['kept_share']:.3f} random {s['random_share']:.3f}; "
        f"n-grams {shares}"
      )
  if manifest.baseline is not None:
    b = manifest.baseline
    held_out = "" if b.eval_share is None else f", {b.eval_share:.4f} of eval"
    lines.append(f"always answering {b.piece!r} is right for {b.train_share:.4f} of train{held_out}")
  lines += filter(None, [torn_words_warning(manifest.statistics["train"].get("torn_share"))])
  rate = sum(manifest.statistics[split]["instances"] for split in ("train", "eval")) / max(seconds, 1e-9)
  lines.append(f"{seconds:.1f} s, {rate:,.0f} instances/s")
  return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
  runner = _runner(argv[1:])
  begin = time.monotonic()
  values: dict[str, Any] = {name: flags.FLAGS[name].value for name in _SETTINGS}
  settings = PretrainingSettings(**values)
  options = CorpusOptions(
    input_format=_INPUT_FORMAT.value,
    on_bad_text=_ON_BAD_TEXT.value,
    language=_LANGUAGE.value,
    text_field=_TEXT_FIELD.value,
  )
  choices = {"do_lower_case": _DO_LOWER_CASE.value, "keep_accents": _KEEP_ACCENTS.value}
  tokenizer = load_tokenizer(
    _SPM_MODEL_FILE.value or _VOCAB_FILE.value or "",
    **{name: value for name, value in choices.items() if value is not None},
  )
  with progress_bars() as progress:
    manifest = create_records(
      files.expand_globs(_INPUT.value),
      _OUTPUT_DIR.value,
      tokenizer=tokenizer,
      settings=settings,
      options=options,
      runner=runner,
      work_dir=_WORK_DIR.value,
      progress=progress,
    )
  write_flags(_OUTPUT_DIR.value)
  print(format_summary(manifest, time.monotonic() - begin))
  return 0


if __name__ == "__main__":
  app.run(exit_on_user_error(main))
