"""Records of a WordPiece vocabulary: their ids, and the vocabulary that a run takes from them."""

import string

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from support import tiny_corpus
from support.commands.child_processes import words
from support.commands.script_runs import run_command

from albert_tf.pretraining.from_records import describe_records
from albert_tf.pretraining.settings import TrainingRecords
from albert_tf.records import Manifest
from albert_tf.tokenization import WordPieceTokenizer, load_tokenizer
from tfrecords_tools.inspection import Findings, inspect_files, render_first
from tfrecords_tools.pretraining.documents import BlockTokenizer


@pytest.fixture(scope="module")
def vocab_file(tmp_path_factory):
  parts = [*tiny_corpus.SYLLABLES, *string.ascii_letters, *string.digits, "é", "ü", "Ü"]
  pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *".,'()", "中", "文"]
  path = tmp_path_factory.mktemp("vocab") / "vocab_made.txt"
  path.write_text(
    "\n".join([*pieces, *parts, *(f"##{part}" for part in parts)]) + "\n", encoding="utf-8"
  )
  return str(path)


@settings(
  deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
  sentences=st.lists(
    st.text(
      "ka toÜüe\u0301中文、.'\t\n\v\f\x1c\x85\u2028\u200b\xad\u00a0\u3000\ufffd\x00", max_size=25
    ),
    max_size=8,
  ),
  lower=st.booleans(),
)
def test_word_by_word_gives_the_ids_of_whole_sentences(vocab_file, sentences, lower):
  tokenizer = WordPieceTokenizer.from_pretrained(vocab_file, do_lower_case=lower)
  (document,) = BlockTokenizer(tokenizer)([sentences])
  rows = [tokenizer.encode(sentence) for sentence in sentences]
  assert document.ids.tolist() == [index for row in rows for index in row]
  assert document.num_sentences == len([row for row in rows if row])
  starts = [not tokenizer.pieces[index].startswith("##") for index in document.ids]
  assert document.word_positions.tolist() == np.flatnonzero(starts).tolist()


@pytest.fixture(scope="module")
def records(tmp_path_factory, vocab_file):
  """Of cased text with accents, which is not what the vocabulary's folder would say."""
  directory = tmp_path_factory.mktemp("records")
  text = tiny_corpus.write_documents(directory / "text.txt", 60, seed=3)
  flags = {"input": text, "input_format": "lines", "output_dir": directory / "out"}
  flags |= {"spm_model_file": vocab_file, "nodo_lower_case": True, "dupe_factor": 2}
  flags |= {"max_seq_length": 16, "max_predictions_per_seq": 3, "eval_fraction": 0.1}
  done = run_command("tfrecords_tools/create_pretraining_data.py", *words(flags))
  assert done.returncode == 0, done.stderr
  return directory / "out", Manifest.find(str(directory / "out"))


def _paths(records, split):
  return [str(records[0] / file.name) for file in records[1].files_of(split)]


def test_records_are_valid_and_shown_as_text(records, vocab_file):
  tokenizer = load_tokenizer(str(records[0]))
  # The same vocabulary, named: case and accents stay those of the records.
  for named in ("", str(records[0] / "vocab.txt")):
    source = describe_records(
      TrainingRecords(input_file=",".join(_paths(records, "train")), spm_model_file=named)
    )
    assert source.tokenizer_path == str(records[0])
    assert source.masking(None).vocab_sha256 == tokenizer.model_sha256
  assert tokenizer.config == load_tokenizer(vocab_file, do_lower_case=False).config
  paths = [*_paths(records, "train"), *_paths(records, "eval")]
  findings = inspect_files(paths, tokenizer)
  assert findings.problems == []
  shown = list(render_first(paths, tokenizer, 10_000, Findings()))
  assert any("Ü" in text for text in shown)  # Case and accents are there.
  assert all(text.count("[SEP]") == 2 and "##" not in text for text in shown)
  assert records[1].vocab_sha256 == tokenizer.model_sha256
