"""Checkpoints that do not fit are refused with one message, and leave no partial output."""

import contextlib
import dataclasses
import json
import os
import resource
import shutil

import numpy as np
import pytest
import safetensors.numpy
from support.commands.script_runs import run_command
from support.goldens import SPM_MODEL, write_bundle
from support.synthetic_checkpoint import CONFIG, convert_to, random_variables, write_tf1

from albert_tf.checkpoints import huggingface
from albert_tf.checkpoints.checkpoint import read_checkpoint
from albert_tf.checkpoints.settings import ConvertOptions
from albert_tf.errors import UserError

QUERY = "bert/encoder/transformer/group_0/inner_group_0/attention_1/self/query/kernel"


def refuse(path, tmp_path, match, **options):
  before = sorted(os.listdir(tmp_path))
  with pytest.raises(UserError, match=match):
    convert_to(tmp_path / "output", path, **options)
  assert sorted(os.listdir(tmp_path)) == before  # No output, no temporary directory.


def test_missing_and_unused_variables_need_a_flag(tmp_path):
  variables = random_variables(CONFIG)
  del variables[QUERY]
  variables["bert/extra/kernel"] = np.zeros([2, 3], np.float32)
  path = write_tf1(tmp_path / "a", CONFIG, variables)
  refuse(path, tmp_path, rf"missing: {QUERY}\. .*--allow_unmatched")
  allowed = "query/kernel$"
  refuse(
    path,
    tmp_path,
    r"unused: bert/extra/kernel\. .*--allow_unmatched",
    allow_unmatched=allowed,
  )
  report = convert_to(tmp_path / "b", path, allow_unmatched=f"{allowed}|^bert/extra/")
  assert (report.missing, report.unused) == ([QUERY], ["bert/extra/kernel"])
  assert report.lines()[:2] == [f"{QUERY}  missing", "bert/extra/kernel  unused"]
  assert any("1 missing, 1 unused" in line for line in report.lines())


@pytest.mark.parametrize(
  ("changes", "match"),
  [
    ({"vocab_size": 30}, r"word_embeddings .*\[30, 4\].*Received: \[29, 4\]"),
    ({"num_hidden_groups": 2}, r"missing: bert/encoder/transformer/group_1"),
    # No such model is built.
    ({"hidden_size": 2**16}, r"\[4, 65536\].*Received: \[4, 6\]"),
    ({"num_hidden_layers": 1000, "sharing": "none"}, "missing: bert/.* 15983 .* 16009"),
  ],
)
def test_wrong_configuration(changes, match, tmp_path):
  path = write_tf1(tmp_path / "a", CONFIG, random_variables(CONFIG))
  config = dataclasses.replace(CONFIG, **changes)
  (tmp_path / "a" / "albert_config.json").write_text(config.to_json_string())
  refuse(path, tmp_path, match)


def test_an_unknown_key_of_the_configuration(tmp_path):
  path = write_tf1(tmp_path / "a", CONFIG, random_variables(CONFIG))
  config = tmp_path / "a" / "albert_config.json"
  config.write_text(json.dumps({**CONFIG.to_dict(), "num_atention_heads": 2}))
  refuse(path, tmp_path, "Received: num_atention_heads")


def test_a_missing_configuration(tmp_path):
  path = write_tf1(tmp_path / "a", CONFIG, random_variables(CONFIG))
  (tmp_path / "a" / "albert_config.json").unlink()
  refuse(path, tmp_path, r"Received: .*/a/model.*--albert_config_file")


@pytest.fixture
def hugging_face(tmp_path):
  """A folder in Hugging Face's format."""
  path = write_tf1(tmp_path / "a", CONFIG, random_variables(CONFIG))
  convert_to(tmp_path / "hf", path, "huggingface")
  return tmp_path / "hf"


def test_an_untied_decoder(hugging_face, tmp_path):
  weights = hugging_face / "model.safetensors"
  tensors = safetensors.numpy.load_file(weights)
  untied = {**tensors, "predictions.decoder.weight": np.ones([29, 4], np.float32)}
  safetensors.numpy.save_file(untied, weights)
  refuse(hugging_face, tmp_path, r"predictions\.decoder\.weight")


def test_weights_that_were_cut(hugging_face, tmp_path):
  weights = hugging_face / "model.safetensors"
  weights.write_bytes(weights.read_bytes()[:-5])
  refuse(hugging_face, tmp_path, rf"Received: {weights} .*metadata")
  weights.write_bytes(b"")
  refuse(hugging_face, tmp_path, rf"Received: {weights} .*header")


def test_a_bert_of_hugging_face(hugging_face, tmp_path):
  config = hugging_face / "config.json"
  config.write_text(json.dumps({**json.loads(config.read_text()), "model_type": "bert"}))
  refuse(hugging_face, tmp_path, "model_type='bert'")


def test_paths_of_nothing_that_is_a_checkpoint(tmp_path):
  write_tf1(tmp_path / "a", CONFIG, random_variables(CONFIG))
  refuse("", tmp_path, "Received: '',")
  refuse(tmp_path / "nowhere", tmp_path, f"Received: '{tmp_path}/nowhere',")
  refuse(tmp_path, tmp_path, f"Received: {tmp_path}")
  refuse(tmp_path / "x.safetensors", tmp_path, "x.safetensors',")
  refuse(tmp_path / "a/albert_config.json", tmp_path, "Received: '.*/a/albert_config.json',")


@pytest.mark.parametrize("path", [None, 3, b"a"])
def test_values_that_are_no_paths(path):
  with pytest.raises(UserError, match=f"Received: {path!r}"):
    read_checkpoint(path)


def test_an_unknown_format():
  with pytest.raises(UserError, match="'onnx'"):
    ConvertOptions(output_format="onnx")


def test_of_several_checkpoints_one_must_be_named(tmp_path):
  write_tf1(tmp_path / "b", CONFIG, random_variables(CONFIG), name="one")
  write_tf1(tmp_path / "b", CONFIG, random_variables(CONFIG), name="two")
  refuse(tmp_path / "b", tmp_path, "one, two")


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_weights_that_are_not_finite_are_neither_written_nor_read(value, tmp_path):
  variables = random_variables(CONFIG)
  variables[QUERY][1, 2] = value
  with pytest.raises(UserError, match=f"Received: {tmp_path}/ours/.* {QUERY} "):
    write_tf1(tmp_path / "ours", CONFIG, variables)
  assert os.listdir(tmp_path / "ours") == []
  shutil.rmtree(tmp_path / "ours")
  # Files of others, which may hold them.
  path = write_tf1(tmp_path / "a", CONFIG, random_variables(CONFIG))
  write_bundle(f"{path}/model.ckpt-best", variables)
  refuse(path, tmp_path, f"a/model.ckpt-best, .* {QUERY} ", output_format="huggingface")
  huggingface.write_directory(path, variables, CONFIG)
  refuse(f"{path}/model.safetensors", tmp_path, f"a/model.safetensors, .* {QUERY} ")


@contextlib.contextmanager
def files_of_at_most(size):
  """As `ulimit -f` sets it."""
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("output_format", ["huggingface", "tf1"])
def test_a_limit_of_the_size_of_files_is_told(output_format, tmp_path):
  path = write_tf1(tmp_path / "a", CONFIG, random_variables(CONFIG))
  with files_of_at_most(2000):
    refuse(path, tmp_path, f"{tmp_path}.*(?i:file too large)", output_format=output_format)


def test_output_is_never_overwritten(tmp_path):
  path = write_tf1(tmp_path / "a", CONFIG, random_variables(CONFIG))
  (tmp_path / "full").mkdir()
  (tmp_path / "full" / "mine.txt").write_text("mine")
  with pytest.raises(UserError, match=f"Received: {tmp_path}/full,"):
    convert_to(tmp_path / "full", path)
  assert os.listdir(tmp_path / "full") == ["mine.txt"]
  (tmp_path / "empty").mkdir()
  convert_to(tmp_path / "empty", path)
  assert sorted(os.listdir(tmp_path / "empty")) == ["albert_config.json", "checkpoints"]


def test_a_link_to_nothing_is_refused_before_the_work(tmp_path):
  (tmp_path / "output").symlink_to("nowhere")
  refuse(tmp_path / "missing", tmp_path, f"Received: {tmp_path}/output, .*{tmp_path}/nowhere")


@pytest.mark.parametrize("output_format", ["tf1", "huggingface"])
def test_what_a_format_cannot_say(output_format, tmp_path):
  config = dataclasses.replace(CONFIG, sharing="ffn")
  path = write_tf1(tmp_path / "a", config, random_variables(config))
  refuse(path, tmp_path, "sharing='ffn'.*--expand_sharing", output_format=output_format)
  if output_format == "tf1":
    exact = dataclasses.replace(CONFIG, hidden_act="gelu_exact")
    path = write_tf1(tmp_path / "b", exact, random_variables(exact))
    refuse(path, tmp_path, "gelu_exact", output_format="tf1")


def test_vocabulary_larger_than_the_table(tmp_path):
  path = write_tf1(tmp_path / "a", CONFIG, random_variables(CONFIG))
  refuse(path, tmp_path, " 8000 .* 29", spm_model_file=SPM_MODEL)


@pytest.mark.slow
def test_command(tmp_path):
  path = write_tf1(tmp_path / "a", CONFIG, random_variables(CONFIG))
  command = ("tpu_scripts/convert_checkpoint.py", "--input", path, "--output", tmp_path / "b")
  done = run_command(*command, "--output_format=huggingface")
  assert done.returncode == 0, done.stderr
  assert f"{QUERY}  matched" in done.stdout
  assert "32 variables matched, 0 missing, 0 unused" in done.stdout
  failed = run_command(*command)
  assert failed.returncode == 2
  assert "error: The output must not exist yet, or be an empty directory." in failed.stderr
  assert "Traceback" not in failed.stderr
  assert read_checkpoint(str(tmp_path / "b")).config == CONFIG
