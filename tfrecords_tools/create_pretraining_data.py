r"""Makes pretraining records (TFRecords) from text: n-gram masked-LM and sentence order instances.

  python tfrecords_tools/create_pretraining_data.py --input 'corpus/*.txt' \
      --spm_model_file 30k.model --output_dir records

The output directory gets train-*.tfrecord, eval-*.tfrecord (held out by document), manifest.json and the
tokenizer. The same input, settings and seed give the same bytes, whatever the number of workers. A run that
was cut short continues when the same command is given again.
"""

from collections.abc import Iterator, Sequence
import contextlib
import dataclasses
import os
import sys
import time
from typing import Any

from absl import app, flags

from albert_tf import files, progress
from albert_tf.errors import UserError, exit_on_user_error
from albert_tf.records.manifest import MANIFEST_NAME
from albert_tf.tokenization import WORD_RULES, load_tokenizer
from tfrecords_tools.corpus import BAD_TEXT_ACTIONS, FORMATS, CorpusOptions
from tfrecords_tools.pretraining.job import STAGE_DIR_NAME, Progress, Runner, create_records
from tfrecords_tools.pretraining.local.runner import LocalRunner
from tfrecords_tools.pretraining.local.share import Share, WaitForOthersError
from tfrecords_tools.pretraining.settings import (
  COMPATIBILITY,
  DEDUP,
  RECORD_LAYOUTS,
  SENTENCE_PAIRS,
  SPLITS,
  RecordSettings,
)
from tfrecords_tools.pretraining.sources import expand_sources
from tfrecords_tools.pretraining.summary import format_summary

_INPUT = flags.DEFINE_list(
  "input",
  None,
  "Input files: glob patterns with commas, quoted; or sources with weights, NAME=PATTERN:WEIGHT, whose documents are "
  "gone through WEIGHT times as often.",
  required=True,
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
_MAX_PREDICTIONS = flags.DEFINE_integer("max_predictions_per_seq", 20, "Most tokens masked in a sequence.")
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
  "sop: label 1 is the two segments swapped. nsp: B of another document. ordered: two segments, never swapped. "
  "none: one segment. Of the last two there is no label to learn.",
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
  "Where a word begins, whose tokens are masked together. original: every token with letters beyond ASCII is a word. "
  "sentencepiece: where a space was. none: mask single tokens.",
)
_EVAL_FRACTION = flags.DEFINE_float(
  "eval_fraction", 0.01, "Share of the documents that is held out. 0: none."
)
_RANDOM_SEED = flags.DEFINE_integer("random_seed", 12345, "Seed of everything random.")
_NUM_SHARDS = flags.DEFINE_integer(
  "num_shards",
  RecordSettings.num_shards,
  "Number of train files. 0: as many of 128 to 256 MB as the input's size asks for.",
)
_NUM_EVAL_SHARDS = flags.DEFINE_integer(
  "num_eval_shards", RecordSettings.num_eval_shards, "Number of eval files. 0: likewise."
)
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
  "example: as google-research/albert reads it. compact: under half the size and read two to three times as fast; "
  "only this project reads it.",
)
_DEDUP = flags.DEFINE_enum(
  "dedup", "none", DEDUP, "exact: of documents with the same words only the first is used."
)
_NUM_WORKERS = flags.DEFINE_integer(
  "num_workers", 1, "Processes. The records do not depend on it.", lower_bound=1
)
_TASK_INDEX = flags.DEFINE_integer(
  "task_index",
  None,
  "Which of --num_tasks machines this one is, from 0; they share --output_dir and --work_dir.",
)
_NUM_TASKS = flags.DEFINE_integer("num_tasks", None, "Number of machines that share the job, without Beam.")
_RUNNER = flags.DEFINE_enum(
  "runner",
  "local",
  ("local", "beam"),
  "local: processes of this machine. beam: Apache Beam; its own options follow after a lone --.",
)
_WORK_DIR = flags.DEFINE_string("work_dir", None, "Directory for unfinished work; default in --output_dir.")
_VERIFY_INPUT = flags.DEFINE_bool(
  "verify_input",
  False,
  "Read all input before the work, and compare its content with that of an earlier run, not only sizes and times.",
)

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
_STAGES = {
  "compare": "comparing documents",
  "read": "making instances",
  "merge": "merging",
  "write": "writing files",
}
_SETTINGS = [field.name for field in dataclasses.fields(RecordSettings)]


@contextlib.contextmanager
def progress_bars() -> Iterator[Progress]:
  """A bar with rate and time left for reading, then one for writing."""
  bars: dict[str, Any] = {}

  def report(stage: str, done: int, total: int) -> None:
    if stage not in bars:
      close()
      bars[stage] = progress.bar(total, desc=_STAGES[stage], unit="B" if stage == "read" else "files")
    bars[stage].update(done - bars[stage].n)

  def close() -> None:
    for bar in bars.values():
      bar.close()

  try:
    yield report
  finally:
    close()


def _share() -> Share:
  index, count = _TASK_INDEX.value, _NUM_TASKS.value
  if (index is None) != (count is None) or (index is not None and _RUNNER.value == "beam"):
    raise UserError(
      "--task_index and --num_tasks go together, and with --runner=local. "
      f"Received: task_index={index}, num_tasks={count}, runner={_RUNNER.value}. Pass both, or neither."
    )
  return Share() if index is None or count is None else Share(index, count)


def _runner(arguments: Sequence[str], paths: Sequence[str]) -> Runner:
  share = _share()
  if _RUNNER.value == "beam":
    from tfrecords_tools.pretraining.beam.options import check_reach  # Apache Beam takes seconds to import.
    from tfrecords_tools.pretraining.beam.runner import BeamRunner

    check_reach(arguments, [*paths, _OUTPUT_DIR.value, *filter(None, [_WORK_DIR.value])])
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
  return LocalRunner(num_workers=_NUM_WORKERS.value, share=share, notice=_notice)


def _notice(text: str) -> None:
  print(text, file=sys.stderr, flush=True)


def write_flags(output_dir: str) -> None:
  """flags.txt: what to give as --flagfile to make the same records again; without what does not change them."""
  with files.atomic_writer(os.path.join(output_dir, "flags.txt"), "w") as stream:
    given = [name for name in (*_READING_FLAGS, *_SETTINGS) if flags.FLAGS[name].value is not None]
    stream.write("".join(f"{flags.FLAGS[name].serialize()}\n" for name in given))


def main(argv: Sequence[str]) -> int:
  begin = time.monotonic()
  paths, sources = expand_sources(_INPUT.value)
  runner = _runner(argv[1:], paths)
  values: dict[str, Any] = {name: flags.FLAGS[name].value for name in _SETTINGS}
  settings = RecordSettings(**values)
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
  finished = files.exists(os.path.join(_OUTPUT_DIR.value, MANIFEST_NAME))
  begun = files.exists(os.path.join(_OUTPUT_DIR.value, STAGE_DIR_NAME))
  try:
    with progress_bars() as report:
      manifest = create_records(
        paths,
        _OUTPUT_DIR.value,
        tokenizer=tokenizer,
        settings=settings,
        options=options,
        runner=runner,
        sources=sources,
        work_dir=_WORK_DIR.value,
        verify_input=_VERIFY_INPUT.value,
        progress=report,
        notice=_notice,
      )
  except WaitForOthersError as done:
    print(done)
    return 0
  write_flags(_OUTPUT_DIR.value)
  print(format_summary(manifest))
  if not finished:
    seconds = time.monotonic() - begin
    instances = sum(manifest.statistics[split]["instances"] for split in SPLITS)
    rate = "" if begun else f", {instances / seconds:,.0f} instances/s"
    print(f"{seconds:.1f} s{rate}")
  return 0


if __name__ == "__main__":
  app.run(exit_on_user_error(main))
