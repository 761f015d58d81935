"""A good file of every kind, and its reader; a child process imports this module."""

from collections.abc import Callable
import functools
import gzip
import json
import os
import pathlib
import shutil
import tempfile
import types
from typing import Any

from support.tiny_records import RULES, SPEC, VOCAB_SIZE, encode_example, random_examples

from albert_tf.configs import AlbertConfig
from albert_tf.configs.albert_config import count_parameters
from albert_tf.configs.task import TaskSpec, best_run
from albert_tf.errors import UserError
from albert_tf.finetuning import data
from albert_tf.finetuning.tasks.choices import read_race
from albert_tf.finetuning.tasks.squad.read import read_squad
from albert_tf.finetuning.tasks.tables import table_examples
from albert_tf.records import Manifest, frame_record, read_records
from albert_tf.records.manifest import Baseline, RecordFile, check_agreement
from albert_tf.records.parse import decode_example
from albert_tf.records.shard_index import scan_shard
from albert_tf.tokenization import TokenizerConfig, load_tokenizer
from tfrecords_tools.corpus import CorpusOptions, CorpusStats, iter_documents

TEXTS = ["", "katomi 12, (Ren) SOL's 1,2,", "\u0130 \u00bd \U0001f600 \u3042", "a\0b", "x" * 3000]
TEXTS += ["[MASK] <pad>"]
EXAMPLES = [encode_example(example) for example in random_examples(70, seed=1)]
SHARD = b"".join(map(frame_record, EXAMPLES))


def records(path: str) -> None:
  from albert_tf.pipelines.record_index import build_record_index, check_records

  shutil.rmtree(os.path.join(os.path.dirname(path), "index"), ignore_errors=True)
  assert build_record_index([path]).num_records == len(list(read_records(path)))
  check_records([path], RULES)
  for features in map(decode_example, read_records(path)):
    ids = [*features["input_ids"], *features["masked_lm_ids"]]
    assert set(ids) <= set(range(VOCAB_SIZE))
    assert set(features["masked_lm_positions"]) <= set(range(SPEC.max_seq_length))


def batches(path: str, split: str) -> None:
  """Training or evaluation has the values of the file, each record once."""
  from support.tiny_pretraining import tiny_settings
  from support.tiny_step import one_device
  import tensorflow as tf

  from albert_tf.pretraining.inputs import checked_input
  from albert_tf.records.parse import parse_pretraining_batch

  folder = pathlib.Path(path).parent
  shutil.rmtree(folder / "index", ignore_errors=True)
  settings = tiny_settings(folder, "run", eval_input_files=(path,) if split == "eval" else ())
  inputs = checked_input(settings, one_device())
  records = list(read_records(path))
  if split == "eval":
    found = [parse_pretraining_batch(tf.constant(records), settings.record_rules)]
  else:
    batch_size = settings.step.global_batch_size
    with inputs.locate_damaged_record(0, len(records)):
      iterator = inputs.training_iterator(0)
      found = [next(iterator) for _ in range(len(records) // batch_size)]
  expected = [decode_example(record) for record in records]
  for features in expected:
    features["sentence_order_labels"] = features["next_sentence_labels"][0]
  ends = {"input_ids": VOCAB_SIZE, "masked_lm_ids": VOCAB_SIZE}
  ends["masked_lm_positions"] = SPEC.max_seq_length
  for name in found[0]:
    assert all((batch[name] >= 0).numpy().all() for batch in found)
    assert all((batch[name] <= ends.get(name, 2) - 1).numpy().all() for batch in found)
    rows = [row.tobytes() for batch in found for row in batch[name].numpy().astype("<f8")]
    assert sorted(rows) == sorted(features[name].astype("<f8").tobytes() for features in expected)


def index(path: str) -> None:
  """Reads an index; a damaged one is made again."""
  from albert_tf.pipelines.record_index import build_record_index

  shard = path.replace("index/offsets-", "").removesuffix(".npy")
  used, whole = build_record_index([shard]), scan_shard(shard)
  assert used.block_bytes.tolist() == [*whole.offsets, whole.num_bytes]
  assert used.num_records == whole.num_records
  shutil.rmtree(os.path.dirname(path))
  assert used.content == build_record_index([shard]).content


def vocabulary(path: str) -> None:
  tokenizer = load_tokenizer(path if path.endswith(".model") else os.path.dirname(path))
  rows = tokenizer.encode_batch(TEXTS)
  assert all(0 <= each < tokenizer.vocab_size for row in rows for each in row)
  list(map(tokenizer.decode, rows))


def checkpoint(path: str) -> None:
  from support.synthetic_checkpoint import CONFIG, random_variables

  from albert_tf.checkpoints.checkpoint import read_checkpoint

  read, good = read_checkpoint(path).variables, random_variables(CONFIG)
  assert all((read[name] == good[name]).all() for name in {*good} & {*read})


def config(path: str) -> None:
  read = AlbertConfig.from_json_file(path)
  count_parameters(read)
  assert AlbertConfig.from_dict(read.to_dict()) == read


def manifest(path: str) -> None:
  read = Manifest.find(os.path.dirname(path))
  read.check(vocab_size=37, source=path)
  check_agreement({path: read})
  assert read.num_records("train") >= 0
  assert [read.spec, read.sentence_task, read.whole_word]


def task(path: str) -> None:
  read = TaskSpec.load(os.path.dirname(path))
  assert [read.export_kind, read.num_labels, read.with_thresholds({})]


def results(path: str) -> None:
  best_run(os.path.dirname(path))


def metrics(path: str) -> None:
  from albert_tf.runs.metrics_log import read_metrics

  read_metrics(path)


def run(path: str) -> None:
  from albert_tf.runs import run_directory

  try:
    run_directory.check(os.path.dirname(path), {})
  except UserError as error:
    if "holds one run" not in str(error):  # Other settings are no damage.
      raise


def description(path: str) -> None:
  """Of a finished part of the records."""
  from tfrecords_tools.pretraining.stages import read_description

  folder, name = os.path.split(path)
  read_description(
    types.SimpleNamespace(stage_dir=folder, plan_sha256="p"), name.removesuffix(".json")
  )


def race(path: str) -> None:
  read_race(path.removesuffix("train/high/all.txt"), "train")


def table(path: str) -> None:
  columns = data.TableColumns()
  table_examples(data.read_table(path), columns, labelled=True)


def corpus(path: str) -> None:
  kind = os.path.basename(path).split(".")[1]
  options = CorpusOptions(input_format=kind, max_line_bytes=200, max_document_bytes=500)
  for document in iter_documents(path, options, stats=CorpusStats()):
    assert all(sentence.strip() == sentence != "" and "\n" not in sentence for sentence in document)
    "".join(document).encode()  # No lone surrogate.


def make_records(path: str, values: dict[str, Any]) -> None:
  """Makes records of a text with these settings: they are valid, have a summary, and are found again."""
  from tfrecords_tools.inspection import inspect_files
  from tfrecords_tools.pretraining.create import create_records
  from tfrecords_tools.pretraining.job import make_job
  from tfrecords_tools.pretraining.local import make_locally
  from tfrecords_tools.pretraining.settings import RecordSettings
  from tfrecords_tools.pretraining.statistics import format_summary

  options = {name: values.pop(name) for name in ("input_format", "language") if name in values}
  folder = os.path.dirname(path)
  tokenizer = load_tokenizer(f"{folder}/spm.model")
  job = make_job(
    [path],
    f"{folder}/records",
    tokenizer=tokenizer,
    settings=RecordSettings(**values),
    options=CorpusOptions(**options),
  )
  manifest = create_records(job, make_locally)
  assert "train   instances" in format_summary(manifest)
  paths = [f"{folder}/records/{file.name}" for file in manifest.files]
  assert inspect_files(paths, tokenizer).problems == []
  assert create_records(job, make_locally) == manifest


@functools.cache
def made(name: str) -> bytes:
  """A file that a library writes."""
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, name)
    if name == "spm.model":
      from support.tiny_corpus import train_model

      train_model(str(path))
    elif name == "parquet":
      import pyarrow
      from pyarrow import parquet

      parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    elif name == "offsets":
      path.write_bytes(SHARD)
      return scan_shard(str(path)).to_bytes()
    else:
      from support.synthetic_checkpoint import CONFIG, random_variables, write_tf1

      write_tf1(path.parent, CONFIG, random_variables(CONFIG), name="a")
    return path.read_bytes()


ROWS = [{"text": f'a "b", {n}\u00e9', "label": n % 2, "id": str(n)} for n in range(5)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
PROSE = b"It was the best of times. It was the worst.\n\nAnother one begins here.\n" * 4
WIKI = b"""<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" version="0.10" xml:lang="en"><siteinfo>
<sitename>W</sitename><namespaces><namespace key="0" case="first-letter" /></namespaces></siteinfo>
<page><title>A</title><ns>0</ns><id>1</id><revision><id>1</id><timestamp>2014-10-26T04:50:23Z</timestamp><text>
'''A''' ({{IPA|a}}) is a [[letter (alphabet)|letter]].&lt;ref&gt;Not kept.&lt;/ref&gt; It is first.

== Use ==
* It begins [[word]]s.
</text></revision></page></mediawiki>"""
CONFIG = AlbertConfig.from_name("tiny").to_dict()
CLASSES = TaskSpec(kind="classification", name="t", label_names=("no", "yes"), pair=True)
SPANS = TaskSpec(kind="question_answering", name="squad", squad_version="2.0")
FILE = RecordFile("train-0", "train", 70, 7000, "0")
MANIFEST = Manifest(
  37, "ab", 10, 3, "sop", 1, (FILE,), Baseline(5, "x", 0.1, None),
  {"tokenizer": {"do_lower_case": True}},
)  # fmt: skip
ANSWER = {"id": "1", "question": "what?", "answers": [{"text": "sky", "answer_start": 4}]}
NO_ANSWER = {"id": "2", "question": "", "answers": [], "is_impossible": True}
PARAGRAPH = {"context": "the sky is blue", "qas": [ANSWER, NO_ANSWER]}
SQUAD = {"data": [{"title": "t", "paragraphs": [PARAGRAPH]}]}
RACE = {"id": "1", "article": "a b", "questions": ["q"], "options": [["a", "b"]], "answers": ["A"]}
_PIECES = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "▁", "a", "▁sky")
_SCORES = [[piece, -float(n)] for n, piece in enumerate(_PIECES)]
UNIGRAM = {
  "added_tokens": [{"content": "[MASK]", "special": True}],
  "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKD"}, {"type": "Lowercase"}]},
  "model": {"type": "Unigram", "unk_id": 1, "vocab": _SCORES},
}
_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b")
WORDPIECE = {
  "normalizer": {"type": "BertNormalizer", "lowercase": True, "strip_accents": None},
  "model": {"type": "WordPiece", "vocab": {token: n for n, token in enumerate(_TOKENS)}},
}
HUGGING_FACE = {"do_lower_case": True, "keep_accents": False, "tokenizer_class": "X"}

# Name → a good value of JSON, bytes, or what `made` makes; and what reads it.
FILES: dict[str, tuple[Any, Callable[[str], Any]]] = {
  "albert_config.json": (CONFIG, config),
  "config.json": ({**CONFIG, "model_type": "albert", "architectures": ["A"]}, config),
  "manifest.json": (json.loads(json.dumps(MANIFEST, default=vars)), manifest),
  "task.json": (CLASSES.to_dict(), task),
  "squad/task.json": (SPANS.to_dict(), task),
  "results.json": ({"best_run": "seed_1", "metrics": {"a": 0.5}}, results),
  "metrics.jsonl": ({"step": 3, "split": "train", "loss": 1.5}, metrics),
  "run.json": ({"identity": {}}, run),
  "part.json": ({"plan": "p", "file": FILE.to_dict()}, description),
  "squad.json": (SQUAD, lambda path: read_squad(path, version="2.0")),
  "train/high/all.txt": (RACE, race),
  "ours/tokenizer.json": (TokenizerConfig().to_dict(), vocabulary),
  "alone/tokenizer.json": (UNIGRAM, vocabulary),
  "alone/words/tokenizer.json": (WORDPIECE, vocabulary),
  "theirs/tokenizer_config.json": (HUGGING_FACE, vocabulary),
  "train-0.tfrecord": (SHARD, records),
  "index/offsets-train-0.tfrecord.npy": ("offsets", index),
  "spm.model": ("spm.model", vocabulary),
  "a.index": ("a.index", checkpoint),
  "a.data-00000-of-00001": ("a.data-00000-of-00001", checkpoint),
  "a.csv": (b'text,label,id\n"a ""b"", c",0,1\nd,1,2\n"e\nf",1,3\n', table),
  "a.tsv": (b"text\tlabel\tid\na b\t0\t1\nc\t1\t2\n", table),
  "a.jsonl": (LINES, table),
  "a.parquet": ("parquet", table),
  "text.parquet": ("parquet", corpus),
  "text.auto": (PROSE, corpus),
  "text.jsonl": (LINES, corpus),
  "text.lines": (PROSE, corpus),
  "text.lines.gz": (gzip.compress(PROSE), corpus),
  "text.paragraphs": (PROSE, corpus),
  "text.mediawiki": (WIKI, corpus),
  "wiki.auto.xml": (WIKI, corpus),
}


def read(path: str, name: str) -> None:
  FILES[name][1](path)
