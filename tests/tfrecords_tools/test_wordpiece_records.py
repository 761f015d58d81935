"""Records of a WordPiece vocabulary, from the text to a pretraining run with fresh masks and what it leaves."""

import json
import string

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from support import tiny_corpus
from support.commands.child_processes import words
from support.commands.script_runs import run_command
from support.tiny_pretraining import tiny_settings
from support.tiny_records import tiny_config

from albert_tf.checkpoints.convert import convert
from albert_tf.checkpoints.settings import ConvertOptions
from albert_tf.finetuning.initialize import read_start
from albert_tf.keras_api.exports import export_saved_model
from albert_tf.pretraining.record_source import describe_records
from albert_tf.pretraining.run import run_pretraining
from albert_tf.records import Manifest
from albert_tf.serving.loaded_model import LoadedModel
from albert_tf.tokenization import WordPieceTokenizer, load_tokenizer
from tfrecords_tools.inspection import Findings, inspect_files, render, views
from tfrecords_tools.pretraining.documents import BlockTokenizer

_SYLLABLES = ("ka", "to", "mi", "ren", "sol", "vi", "an", "tur", "pel", "go", "ish", "er")


@pytest.fixture(scope="module")
def vocab_file(tmp_path_factory):
  parts = [*_SYLLABLES, *string.ascii_letters, *string.digits, "é", "ü", "Ü"]
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
  flags |= {"vocab_file": vocab_file, "nodo_lower_case": True, "dupe_factor": 2}
  flags |= {"max_seq_length": 16, "max_predictions_per_seq": 3, "eval_fraction": 0.1}
  done = run_command("tfrecords_tools/create_pretraining_data.py", *words(flags))
  assert done.returncode == 0, done.stderr
  return directory / "out", Manifest.find(str(directory / "out"))


def _paths(records, split):
  return [str(records[0] / file.name) for file in records[1].files_of(split)]


def test_records_are_valid_and_shown_as_text(records, vocab_file):
  tokenizer = load_tokenizer(str(records[0]))
  assert tokenizer.config == load_tokenizer(vocab_file, do_lower_case=False).config
  paths = [*_paths(records, "train"), *_paths(records, "eval")]
  findings = inspect_files(paths, tokenizer, validate=True)
  assert findings.problems == []
  shown = []
  for path in paths:
    shown += [render(view, tokenizer) for _, view in views(path, tokenizer, Findings(tokenizer))]
  assert any("Ü" in text for text in shown)  # Case and accents are there.
  assert all(text.count("[SEP]") == 2 and "##" not in text for text in shown)
  assert records[1].vocab_sha256 == tokenizer.model_sha256


def _settings(records, folder):
  """Two updates with fresh masks, as the records say."""
  train, held_out = _paths(records, "train"), _paths(records, "eval")
  lengths = {"max_seq_length": None, "max_predictions_per_seq": None}
  source = describe_records(train, held_out, spm_model_file="", **lengths)
  # The same vocabulary, named: case and accents stay those of the records.
  named = describe_records(train, [], spm_model_file=str(records[0] / "vocab.txt"), **lengths)
  assert named.tokenizer_path == source.tokenizer_path == str(records[0])
  return tiny_settings(
    folder,
    "run",
    input_files=tuple(train),
    eval_input_files=(),
    num_train_steps=2,
    num_warmup_steps=1,
    save_checkpoints_steps=2,
    model=tiny_config(vocab_size=source.vocab_size, num_hidden_layers=1),
    max_seq_length=16,
    max_predictions_per_seq=3,
    masking=source.masking(None),
    tokenizer_path=source.tokenizer_path,
  )


@pytest.mark.slow
def test_pretraining_with_fresh_masks_and_what_follows(records, vocab_file, tmp_path):
  tokenizer, run = load_tokenizer(vocab_file, do_lower_case=False), _settings(records, tmp_path)
  assert run.masking.vocab_sha256 == tokenizer.model_sha256
  assert run_pretraining(run).step == 2
  # The run has the vocabulary with its choices; fine-tuning and conversion find it there.
  start = read_start(run.output_dir)
  assert isinstance(start.tokenizer, WordPieceTokenizer)
  assert start.tokenizer.config == tokenizer.config
  assert start.tokenizer.encode("Über café") == tokenizer.encode("Über café")
  convert(run.output_dir, str(tmp_path / "theirs"), ConvertOptions(output_format="huggingface"))
  theirs = json.loads((tmp_path / "theirs" / "tokenizer_config.json").read_text())
  assert theirs.pop("model_max_length") == run.model.max_position_embeddings
  choices = {"do_lower_case": False, "strip_accents": None}
  assert theirs == {"tokenizer_class": "BertTokenizer", **choices}
  assert load_tokenizer(str(tmp_path / "theirs")).config == tokenizer.config
  served = export_saved_model(
    model="fill_mask", init_checkpoint=run.output_dir, output_dir=str(tmp_path / "served")
  )
  text = np.array(["Über [MASK] café".encode()], object)
  outputs = LoadedModel(served).run("serving_default", {"text": text})
  assert {word.decode() for word in outputs["words"].ravel()} <= set(tokenizer.pieces[5:])
