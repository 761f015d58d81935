"""Conversions to every format and back keep every bit."""

import dataclasses
import json
import os
import pathlib

import numpy as np
import pytest
import safetensors.numpy
from support.goldens import SPM_MODEL, TINY_CONFIG, golden_checkpoint
from support.synthetic_checkpoint import CONFIG, convert_to, random_variables, write_tf1
from support.wordpiece import SPECIAL
import tensorflow as tf
import yaml

from albert_tf import AlbertEncoder
from albert_tf.checkpoints.checkpoint import load_weights, read_checkpoint
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.modeling import AlbertForPreTraining, named_variables
from albert_tf.modeling.name_map import ALL_HEADS, variable_entries
from albert_tf.tokenization.config import TokenizerConfig

BOTH_HEADS = ("masked_lm", "sentence_order")


def word_pieces(folder, size):
  """A WordPiece vocabulary of `size` tokens."""
  pieces = [*SPECIAL, *(f"piece{i}" for i in range(size - len(SPECIAL)))]
  (folder / "x.txt").write_text("\n".join(pieces) + "\n")
  return folder / "x.txt"


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
  formats = ["albert_tf", "huggingface", "tf1", "huggingface", "albert_tf"]
  for i, output_format in enumerate(formats):
    report = convert_to(tmp_path / str(i), path, output_format)
    assert (len(report.matched), report.missing, report.unused) == (len(variables), [], [])
    assert report.heads == tuple(head for head in ALL_HEADS if head in heads)
    path = str(tmp_path / str(i))
    checkpoint = read_checkpoint(path)
    assert_same(checkpoint.variables, variables)
    assert checkpoint.config == config


def test_a_mapping_where_none_can_be_is_left_out_only_as_the_identity(tmp_path):
  """Hugging Face has a mapping from E to H even if E = H, and would give a missing one random values."""
  config = dataclasses.replace(CONFIG, embedding_size=CONFIG.hidden_size)
  path = write_tf1(tmp_path / "start", config, random_variables(config))
  convert_to(tmp_path / "hf", path, "huggingface")
  weights = str(tmp_path / "hf" / "model.safetensors")
  tensors = safetensors.numpy.load_file(weights)
  name = "albert.encoder.embedding_hidden_mapping_in.weight"
  np.testing.assert_array_equal(tensors[name], np.eye(config.hidden_size))
  tensors[name][0, 1] = 0.5
  safetensors.numpy.save_file(tensors, weights)
  with pytest.raises(ValueError, match=f"Received: {name} in {weights}"):
    read_checkpoint(str(tmp_path / "hf"))


def test_recorded_training_checkpoint_keeps_its_optimizer(tmp_path):
  source = golden_checkpoint("tiny_training") + ".index"  # A known suffix is taken off.
  convert_to(tmp_path / "run", source)
  convert_to(tmp_path / "tf1", tmp_path / "run", "tf1")
  first, last = read_checkpoint(source), read_checkpoint(str(tmp_path / "tf1"))
  assert (first.global_step, last.global_step) == (10, 10)
  assert len(first.slots) == 2 * len(first.variables) == 64
  assert_same(last.variables, first.variables)
  assert_same(last.slots, first.slots)
  report = convert_to(tmp_path / "hf", source, "huggingface")
  assert report.lines()[-2] == "64 left out: optimizer state"
  got = tf.train.list_variables(str(tmp_path / "tf1" / "model.ckpt-best"))
  assert sorted(got) == sorted(tf.train.list_variables(golden_checkpoint("tiny_training")))


def test_module_prefix(tmp_path):
  folder = os.path.dirname(golden_checkpoint("tiny_module_prefix"))
  got = read_checkpoint(folder, config_file=TINY_CONFIG)
  assert_same(got.variables, read_checkpoint(golden_checkpoint("tiny")).variables)

  one, two = random_variables(CONFIG, seed=1), random_variables(CONFIG, seed=2)
  both = {f"module/{name}": value for name, value in one.items()}
  both |= {f"module_1/{name}": value for name, value in two.items()}
  path = write_tf1(tmp_path / "two", CONFIG, both)
  with pytest.raises(ValueError, match=r"Received: .* module/ and module_1/"):
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
  checkpoints = tmp_path / "checkpoints"
  write_tf1(checkpoints, CONFIG, {**late, **state}, name="model.ckpt-12")
  (checkpoints / "albert_config.json").rename(tmp_path / "albert_config.json")
  latest = read_checkpoint(tmp_path)
  assert latest.global_step == 12
  assert [name for name, _ in latest.dropped] == ["albert_tf/data_position"]
  assert_same(latest.variables, late)
  write_tf1(checkpoints / "best", CONFIG, best, name="model.ckpt-8")
  (checkpoints / "best/albert_config.json").unlink()  # Found two folders up.
  assert_same(read_checkpoint(tmp_path).variables, best)
  assert_same(read_checkpoint(checkpoints / "model.ckpt-12").variables, late)


@pytest.mark.parametrize(
  ("sharing", "output_format"),
  [("attention", "tf1"), ("ffn", "albert_tf"), ("none", "huggingface")],
)
def test_expanded_sharing_computes_the_same(sharing, output_format, tmp_path):
  config = dataclasses.replace(CONFIG, sharing=sharing, inner_group_num=2)
  path = write_tf1(tmp_path / "shared", config, random_variables(config))
  inputs = {"input_ids": tf.constant([[1, 2, 3, 4, 5], [6, 7, 8, 0, 0]])}
  inputs["input_mask"] = tf.cast(inputs["input_ids"] > 0, tf.int32)
  want = AlbertEncoder.from_pretrained(path)(inputs)["sequence_output"]
  convert_to(tmp_path / "expanded", path, output_format, expand_sharing=sharing != "none")
  got = AlbertEncoder.from_pretrained(tmp_path / "expanded")(inputs)["sequence_output"]
  np.testing.assert_allclose(got, want, atol=2e-6)


def test_original_configuration_file(tmp_path):
  """The original needs net_structure_type for --init_from_group0, and refuses this project's keys."""
  convert_to(tmp_path / "b", write_tf1(tmp_path / "a", CONFIG, random_variables(CONFIG)), "tf1")
  keys = json.loads((tmp_path / "b/albert_config.json").read_text()).keys()
  assert {"net_structure_type", "num_hidden_groups"} <= keys
  assert keys.isdisjoint({"sharing", "layer_norm_eps"})


def test_tokenizer_travels(tmp_path):
  spm = pathlib.Path(SPM_MODEL)
  convert_to(tmp_path / "hf", golden_checkpoint("tiny"), "huggingface", spm_model_file=spm)
  convert_to(tmp_path / "run", tmp_path / "hf")
  convert_to(tmp_path / "tf1", tmp_path / "run", "tf1")
  # Only the released vocabulary is called by the released name.
  for name in ("hf/spiece.model", "run/spm.model", "tf1/spm.model"):
    path = tmp_path / name
    assert path.read_bytes() == spm.read_bytes()
    # The quote rule of Hugging Face is not taken on, on the way.
    assert read_checkpoint(path.parent).tokenizer[1] == TokenizerConfig()


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
  variables = random_variables(CONFIG, (head,), num_labels=len(names) or 1)
  path = write_tf1(tmp_path / "a", CONFIG, variables)
  version = "1.1" if head == "span" else ""
  task = TaskSpec(
    kind=kind, name="x", label_names=names, max_seq_length=6, doc_stride=9, squad_version=version
  )
  task.save(path)
  folder = tmp_path / "hf"
  convert_to(folder, path, "huggingface", spm_model_file=word_pieces(tmp_path, CONFIG.vocab_size))
  config = json.loads((folder / "config.json").read_text())
  assert config["architectures"] == [f"AlbertFor{architecture}"]
  assert config.get("problem_type") == problem
  if names:
    assert config["id2label"] == {str(i): name for i, name in enumerate(names)}
    assert config["label2id"] == {name: i for i, name in enumerate(names)}
  convert_to(tmp_path / "b", folder)
  assert TaskSpec.load(str(tmp_path / "b")) == TaskSpec.load(str(folder)) == task
  (folder / "task.json").unlink()
  assert TaskSpec.load(str(folder)) == dataclasses.replace(task, name="custom", doc_stride=128)
  for change in ({"problem_type": "other"}, {"id2label": {"1": "one"}}):
    if problem or "id2label" in change:
      (folder / "config.json").write_text(json.dumps({**config, **change}))
      with pytest.raises(UserError, match=r"Received: (other|.*\{'1': 'one'\})"):
        TaskSpec.load(str(folder))


@pytest.mark.parametrize(
  ("task", "on_the_hub"),
  [
    (None, "fill-mask"),
    (TaskSpec(kind="regression", name="x: y"), "text-classification"),
    (TaskSpec(kind="sentence_vectors", name="x"), "sentence-similarity"),
  ],
)
def test_a_folder_for_hugging_face_has_a_card_of_the_model(task, on_the_hub, tmp_path):
  """The hub reads the lines between the dashes."""
  source = write_tf1(tmp_path / "a", CONFIG, random_variables(CONFIG, ("masked_lm",)))
  if task is not None:
    task.save(source)
  convert_to(tmp_path / "hf", source, "huggingface")
  _, front_matter, text = (tmp_path / "hf/README.md").read_text().split("---\n")
  assert yaml.safe_load(front_matter)["pipeline_tag"] == on_the_hub
  assert f"{CONFIG.param_count():,} parameters" in text


def test_a_wordpiece_vocabulary_is_named_and_travels(tmp_path):
  """The Chinese models have a WordPiece vocabulary; `--spm_model_file` takes both kinds."""
  source = golden_checkpoint("tiny")
  vocabulary = word_pieces(tmp_path, read_checkpoint(source).config.vocab_size)
  convert_to(tmp_path / "run", source, spm_model_file=vocabulary)
  convert_to(tmp_path / "hf", tmp_path / "run", "huggingface")
  for folder in ("run", "hf"):
    assert (tmp_path / folder / "vocab.txt").read_bytes() == vocabulary.read_bytes()
    assert not list((tmp_path / folder).glob("*.model"))


def test_half_precision_is_widened_and_old_huggingface_files_load(tmp_path):
  """Older files have no `albert.` prefix, and contain position ids and the tied decoder."""
  variables = random_variables(CONFIG)
  convert_to(tmp_path / "b", write_tf1(tmp_path / "a", CONFIG, variables), "huggingface")
  file = tmp_path / "b/model.safetensors"
  tensors = safetensors.numpy.load_file(file)
  tensors["predictions.decoder.weight"] = tensors["albert.embeddings.word_embeddings.weight"].copy()
  tensors["predictions.decoder.bias"] = tensors.pop("predictions.bias")
  tensors["albert.embeddings.position_ids"] = np.arange(7)[None]
  tensors = {
    n.removeprefix("albert."): v.astype("f2") if v.dtype == "f4" else v for n, v in tensors.items()
  }
  safetensors.numpy.save_file(tensors, file)
  checkpoint = read_checkpoint(str(tmp_path / "b"))
  assert_same(checkpoint.variables, {n: v.astype("f2").astype("f4") for n, v in variables.items()})
  assert len(checkpoint.dropped) == 3


def test_weights_that_do_not_fit_change_no_variable(tmp_path):
  path = write_tf1(tmp_path / "a", CONFIG, random_variables(CONFIG))
  model = AlbertForPreTraining(dataclasses.replace(CONFIG, max_position_embeddings=8))
  before = {n: v.numpy().copy() for n, v in named_variables(model).items()}
  with pytest.raises(UserError, match="position_embeddings"):
    load_weights(model, path)
  assert_same({n: v.numpy() for n, v in named_variables(model).items()}, before)
