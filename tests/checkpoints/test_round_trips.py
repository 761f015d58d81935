"""Conversions to every format and back keep every bit."""

import dataclasses
import json
import os
import pathlib

import numpy as np
import pytest
import safetensors.numpy
from support.goldens import SPM_MODEL, TINY_CONFIG, golden_checkpoint
from support.synthetic_checkpoint import CONFIG, random_variables, write_tf1
from support.wordpiece import SPECIAL
import tensorflow as tf

from albert_tf import AlbertEncoder
from albert_tf.checkpoints.checkpoint import read_checkpoint
from albert_tf.checkpoints.convert import convert
from albert_tf.checkpoints.load import load_weights
from albert_tf.checkpoints.settings import ConvertOptions
from albert_tf.configs import albert_config
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.modeling import AlbertForPreTraining, named_variables
from albert_tf.modeling.name_map import ALL_HEADS, variable_entries
from albert_tf.tokenization.config import TokenizerConfig

BOTH_HEADS = ("masked_lm", "sentence_order")


def assert_same(got, want):
  assert set(got) == set(want)
  for name, value in want.items():
    assert got[name].dtype == value.dtype
    assert got[name].tobytes() == value.tobytes(), name


@pytest.mark.parametrize(
  "config",
  [
    CONFIG,
    dataclasses.replace(CONFIG, embedding_size=CONFIG.hidden_size),  # No mapping.
    dataclasses.replace(CONFIG, num_hidden_groups=2, inner_group_num=2),
    dataclasses.replace(CONFIG, sharing="attention"),
    dataclasses.replace(CONFIG, sharing="ffn", inner_group_num=2),
    dataclasses.replace(CONFIG, sharing="none"),
  ],
)
def test_name_map_is_the_models_and_the_formulas(config):
  entries = variable_entries(config, BOTH_HEADS)
  variables = named_variables(AlbertForPreTraining(config))
  assert {entry.name: entry.shape for entry in entries} == {
    n: tuple(v.shape) for n, v in variables.items()
  }
  assert sum(int(np.prod(entry.shape)) for entry in entries) == config.param_count(heads=BOTH_HEADS)
  assert len({entry.huggingface for entry in entries}) == len(entries)
  assert [e.name for e in variable_entries(config)] == list(named_variables(AlbertEncoder(config)))


@pytest.mark.parametrize(
  ("heads", "changes"),
  [
    ((), {"embedding_size": CONFIG.hidden_size}),
    (BOTH_HEADS, {}),
    (BOTH_HEADS, {"num_hidden_groups": 3, "inner_group_num": 2}),
    (("masked_lm",), {"embedding_size": CONFIG.hidden_size}),
    (("classifier",), {}),
    (("span",), {}),
    (("squad2",), {}),
  ],
)
def test_every_format_and_back(heads, changes, tmp_path):
  config = dataclasses.replace(CONFIG, **changes)
  variables = random_variables(config, heads)
  path = write_tf1(tmp_path / "start", config, variables)
  for i, output_format in enumerate(
    ["albert_tf", "huggingface", "tf1", "huggingface", "albert_tf"]
  ):
    output = str(tmp_path / f"{i}_{output_format}")
    report = convert(path, output, ConvertOptions(output_format=output_format))
    assert (len(report.matched), report.missing, report.unused) == (len(variables), (), ())
    assert report.heads == tuple(head for head in ALL_HEADS if head in heads)
    path = output
    checkpoint = read_checkpoint(path)
    assert_same(checkpoint.variables, variables)
    assert checkpoint.config == config


def test_a_mapping_where_none_can_be_is_left_out_only_as_the_identity(tmp_path):
  """Hugging Face has a mapping from E to H even if E = H, and would give a missing one random values."""
  config = dataclasses.replace(CONFIG, embedding_size=CONFIG.hidden_size)
  path = write_tf1(tmp_path / "start", config, random_variables(config))
  convert(path, str(tmp_path / "hf"), ConvertOptions(output_format="huggingface"))
  weights = str(tmp_path / "hf" / "model.safetensors")
  tensors = safetensors.numpy.load_file(weights)
  name = "albert.encoder.embedding_hidden_mapping_in.weight"
  np.testing.assert_array_equal(tensors[name], np.eye(config.hidden_size))
  tensors[name][0, 1] = 0.5
  safetensors.numpy.save_file(tensors, weights)
  with pytest.raises(ValueError, match="not the identity"):
    read_checkpoint(str(tmp_path / "hf"))


def test_recorded_training_checkpoint_keeps_its_optimizer(tmp_path):
  source = golden_checkpoint("tiny_training") + ".index"  # A known suffix is taken off.
  convert(source, str(tmp_path / "run"), ConvertOptions())
  convert(str(tmp_path / "run"), str(tmp_path / "tf1"), ConvertOptions(output_format="tf1"))
  first, last = read_checkpoint(source), read_checkpoint(str(tmp_path / "tf1"))
  assert (first.global_step, last.global_step) == (10, 10)
  assert len(first.slots) == 2 * len(first.variables) == 64
  assert_same(last.variables, first.variables)
  assert_same(last.slots, first.slots)
  report = convert(source, str(tmp_path / "hf"), ConvertOptions(output_format="huggingface"))
  assert report.lines()[-2] == "64 left out: optimizer state"
  got = tf.train.list_variables(str(tmp_path / "tf1" / "model.ckpt-best"))
  assert sorted(got) == sorted(tf.train.list_variables(golden_checkpoint("tiny_training")))


@pytest.mark.parametrize("name", ["tiny_mnli", "tiny_race", "tiny_squad_v2"])
def test_recorded_fine_tuned_heads(name, tmp_path):
  source = golden_checkpoint(name)
  before = read_checkpoint(source, config_file=TINY_CONFIG)
  convert(
    source,
    str(tmp_path / "hf"),
    ConvertOptions(output_format="huggingface", config_file=TINY_CONFIG),
  )
  assert_same(read_checkpoint(str(tmp_path / "hf")).variables, before.variables)


def test_module_prefix(tmp_path):
  got = read_checkpoint(
    os.path.dirname(golden_checkpoint("tiny_module_prefix")), config_file=TINY_CONFIG
  )
  assert_same(got.variables, read_checkpoint(golden_checkpoint("tiny")).variables)

  one, two = random_variables(CONFIG, seed=1), random_variables(CONFIG, seed=2)
  both = {f"module/{name}": value for name, value in one.items()}
  both |= {f"module_1/{name}": value for name, value in two.items()}
  path = write_tf1(tmp_path / "two", CONFIG, both)
  with pytest.raises(ValueError, match="one model"):
    read_checkpoint(path)


def test_saved_models(tmp_path):
  """A TF1 SavedModel (of TensorFlow Hub) has variable names, a TF2 SavedModel has an object graph."""
  variables = random_variables(CONFIG, ("masked_lm",))
  hub = tmp_path / "hub"
  write_tf1(hub / "variables", CONFIG, variables, name="variables")
  (hub / "assets").mkdir()
  (hub / "variables" / "albert_config.json").rename(hub / "assets" / "albert_config.json")
  (hub / "saved_model.pb").write_bytes(b"")
  assert_same(read_checkpoint(str(hub)).variables, variables)

  module = tf.Module()
  module.all = [tf.Variable(value, name=name) for name, value in variables.items()]
  tf.saved_model.save(module, str(tmp_path / "tf2"))
  (tmp_path / "tf2" / "albert_config.json").write_text(CONFIG.to_json_string())
  assert_same(read_checkpoint(str(tmp_path / "tf2")).variables, variables)


def test_run_directory_prefers_its_best_copy_and_drops_host_state(tmp_path):
  late, best = random_variables(CONFIG, seed=1), random_variables(CONFIG, seed=2)
  state = {"albert_tf/data_position": np.array(7), "global_step": np.array(12)}
  write_tf1(tmp_path / "run" / "checkpoints", CONFIG, {**late, **state}, name="model.ckpt-12")
  (tmp_path / "run" / "checkpoints" / "albert_config.json").rename(
    tmp_path / "run" / "albert_config.json"
  )
  run = str(tmp_path / "run")
  latest = read_checkpoint(run)
  assert latest.global_step == 12
  assert [name for name, _ in latest.dropped] == ["albert_tf/data_position"]
  assert_same(latest.variables, late)
  write_tf1(tmp_path / "run" / "checkpoints" / "best", CONFIG, best, name="model.ckpt-8")
  (
    tmp_path / "run" / "checkpoints" / "best" / "albert_config.json"
  ).unlink()  # Found two folders up.
  assert_same(read_checkpoint(run).variables, best)
  assert_same(read_checkpoint(f"{run}/checkpoints/model.ckpt-12").variables, late)


@pytest.mark.parametrize("sharing", ["attention", "ffn", "none"])
def test_expanded_sharing_computes_the_same(sharing, tmp_path):
  config = dataclasses.replace(CONFIG, sharing=sharing, inner_group_num=2)
  path = write_tf1(tmp_path / "shared", config, random_variables(config))
  inputs = {"input_ids": tf.constant([[1, 2, 3, 4, 5], [6, 7, 8, 0, 0]])}
  inputs["input_mask"] = tf.cast(inputs["input_ids"] > 0, tf.int32)
  want = AlbertEncoder.from_pretrained(path)(inputs)["sequence_output"]
  for output_format in ("albert_tf", "tf1", "huggingface"):
    options = ConvertOptions(output_format=output_format, expand_sharing=sharing != "none")
    convert(path, str(tmp_path / output_format), options)
    got = AlbertEncoder.from_pretrained(str(tmp_path / output_format))(inputs)["sequence_output"]
    np.testing.assert_allclose(got, want, atol=2e-6)


def test_original_configuration_file(tmp_path):
  """The original's reader needs net_structure_type for --init_from_group0, and refuses this project's keys."""
  path = write_tf1(tmp_path / "a", CONFIG, random_variables(CONFIG))
  convert(path, str(tmp_path / "b"), ConvertOptions(output_format="tf1"))
  keys = set(json.loads((tmp_path / "b" / "albert_config.json").read_text()))
  assert {"net_structure_type", "num_hidden_groups"} <= keys
  assert not {"sharing", "layer_norm_eps"} & keys


def test_the_original_configuration_under_python_o():
  """Python's -O removes each `assert`, and what is done in it."""
  path = pathlib.Path(albert_config.__file__)
  names = {}
  exec(compile(path.read_text(encoding="utf-8"), str(path), "exec", optimize=1), names)
  assert "sharing" not in names["AlbertConfig"].to_original_dict(CONFIG)


def test_tokenizer_travels(tmp_path):
  source, spm = golden_checkpoint("tiny"), pathlib.Path(SPM_MODEL)
  convert(
    source,
    str(tmp_path / "hf"),
    ConvertOptions(output_format="huggingface", spm_model_file=str(spm)),
  )
  convert(str(tmp_path / "hf"), str(tmp_path / "run"), ConvertOptions())
  convert(str(tmp_path / "run"), str(tmp_path / "tf1"), ConvertOptions(output_format="tf1"))
  # Only the released vocabulary is called by the released name.
  for name in ("hf/spiece.model", "run/spm.model", "tf1/spm.model"):
    assert (tmp_path / name).read_bytes() == spm.read_bytes()
  settings = [
    read_checkpoint(str(tmp_path / folder)).tokenizer[1] for folder in ("hf", "run", "tf1")
  ]
  assert (
    settings == [TokenizerConfig()] * 3
  )  # The quote rule of Hugging Face is not taken on, on the way.


@pytest.mark.parametrize(
  ("kind", "architecture", "problem", "names"),
  [
    ("classification", "SequenceClassification", "single_label_classification", ("no", "yes")),
    ("multi_label", "SequenceClassification", "multi_label_classification", ("news", "sport")),
    ("regression", "SequenceClassification", "regression", ()),
    ("token_classification", "TokenClassification", None, ("O", "B", "I")),
    ("multiple_choice", "MultipleChoice", None, ()),
    ("question_answering", "QuestionAnswering", None, ()),
  ],
)
def test_tasks_of_hugging_face_out_and_in(kind, architecture, problem, names, tmp_path):
  head = "span" if kind == "question_answering" else "classifier"
  path = write_tf1(
    tmp_path / "a", CONFIG, random_variables(CONFIG, (head,), num_labels=len(names) or 1)
  )
  version = "1.1" if head == "span" else ""
  task = TaskSpec(
    kind=kind, name="x", label_names=names, max_seq_length=6, doc_stride=9, squad_version=version
  )
  task.save(path)
  vocabulary, folder = tmp_path / "x.txt", tmp_path / "hf"
  vocabulary.write_text("\n".join([*SPECIAL, *(f"piece{i}" for i in range(24))]), encoding="utf-8")
  convert(
    path, str(folder), ConvertOptions(output_format="huggingface", spm_model_file=str(vocabulary))
  )
  config = json.loads((folder / "config.json").read_text())
  assert (config["architectures"], config.get("problem_type")) == (
    [f"AlbertFor{architecture}"],
    problem,
  )
  if names:
    assert config["id2label"] == {str(i): name for i, name in enumerate(names)}
    assert config["label2id"] == {name: i for i, name in enumerate(names)}
  convert(str(folder), str(tmp_path / "b"), ConvertOptions())
  assert TaskSpec.load(str(tmp_path / "b")) == TaskSpec.load(str(folder)) == task
  (folder / "task.json").unlink()
  assert TaskSpec.load(str(folder)) == dataclasses.replace(task, name="custom", doc_stride=128)
  for change in ({"problem_type": "other"}, {"id2label": {"1": "one"}}):
    if problem or "id2label" in change:
      (folder / "config.json").write_text(json.dumps({**config, **change}))
      with pytest.raises(UserError, match="id2label name the labels from 0 on"):
        TaskSpec.load(str(folder))


def test_a_wordpiece_vocabulary_is_named_and_travels(tmp_path):
  """The Chinese models have a WordPiece vocabulary; `--spm_model_file` takes both kinds."""
  source = golden_checkpoint("tiny")
  size = read_checkpoint(source).config.vocab_size
  vocabulary = tmp_path / "x.txt"
  pieces = [*SPECIAL, *(f"piece{i}" for i in range(size - len(SPECIAL)))]
  vocabulary.write_text("\n".join(pieces) + "\n", encoding="utf-8")
  convert(source, str(tmp_path / "run"), ConvertOptions(spm_model_file=str(vocabulary)))
  assert (tmp_path / "run" / "vocab.txt").read_bytes() == vocabulary.read_bytes()
  assert not list((tmp_path / "run").glob("*.model"))
  convert(str(tmp_path / "run"), str(tmp_path / "hf"), ConvertOptions(output_format="huggingface"))
  assert (tmp_path / "hf" / "vocab.txt").read_bytes() == vocabulary.read_bytes()


def test_half_precision_is_widened_and_old_huggingface_files_load(tmp_path):
  """Older files have no `albert.` prefix, and contain position ids and the tied decoder."""
  safetensors = pytest.importorskip("safetensors.numpy")
  variables = random_variables(CONFIG)
  path = write_tf1(tmp_path / "a", CONFIG, variables)
  convert(path, str(tmp_path / "b"), ConvertOptions(output_format="huggingface"))
  file = tmp_path / "b" / "model.safetensors"
  tensors = safetensors.load_file(file)
  tensors["predictions.decoder.weight"] = tensors["albert.embeddings.word_embeddings.weight"].copy()
  tensors["predictions.decoder.bias"] = tensors.pop("predictions.bias")
  tensors["albert.embeddings.position_ids"] = np.arange(7)[None]
  tensors = {
    n.removeprefix("albert."): v.astype("f2") if v.dtype == "f4" else v for n, v in tensors.items()
  }
  safetensors.save_file(tensors, file)
  checkpoint = read_checkpoint(str(tmp_path / "b"))
  assert_same(checkpoint.variables, {n: v.astype("f2").astype("f4") for n, v in variables.items()})
  assert len(checkpoint.dropped) == 3


def test_load_weights_into_a_model(tmp_path):
  variables = random_variables(CONFIG)
  path = write_tf1(tmp_path / "a", CONFIG, variables)
  model = AlbertForPreTraining(CONFIG)
  assert len(load_weights(model, path).matched) == len(variables)
  assert_same({n: v.numpy() for n, v in named_variables(model).items()}, variables)
  before = {n: v.numpy().copy() for n, v in named_variables(model).items()}
  other = AlbertForPreTraining(dataclasses.replace(CONFIG, max_position_embeddings=8))
  with pytest.raises(ValueError, match="position_embeddings"):
    load_weights(other, path)
  assert_same({n: v.numpy() for n, v in named_variables(model).items()}, before)
