"""An exported model equals the Keras model, in every loader, and takes any batch."""

import os
import pathlib

import numpy as np
import pytest
from reference import tokenization as reference
from support.stacks import slow_by_default
from support.tiny_run import as_bytes
import tensorflow as tf

from albert_tf import AlbertEncoder, AlbertMaskedLM, files, json_files
from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.keras_api.tasks import open_model
from albert_tf.modeling import named_variables
from albert_tf.serving.export import make_module
from albert_tf.serving.loaded_model import LoadedModel
from albert_tf.serving.settings import ExportSettings
from albert_tf.serving.signatures import fill_mask as fill_mask_module
from albert_tf.tokenization import AlbertTokenizer

TEXTS = ["the sky is [MASK]", "small [MASK] sing all [MASK] long and the grass grows"]


@pytest.fixture(scope="module")
def fill_mask(exported) -> LoadedModel:
  return exported("fill_mask").session


@pytest.fixture(scope="module")
def encoder(exported) -> LoadedModel:
  return exported("encoder").session


@pytest.fixture(scope="module")
def batch(tokenizer: AlbertTokenizer) -> dict[str, np.ndarray]:
  return reference.batch(tokenizer, TEXTS, allow_mask=True)


def test_of_two_exports_of_a_version_one_is_refused(tmp_path):
  def export_late():
    with files.atomic_directory(str(tmp_path / "1")) as folder:
      pathlib.Path(folder, "late").touch()
      (tmp_path / "1").mkdir()
      (tmp_path / "1/first").touch()

  with pytest.raises(UserError, match=r"Received: .*/1,"):
    export_late()
  assert sorted(tmp_path.rglob("*")) == [tmp_path / "1", tmp_path / "1/first"]


def test_a_full_disk_is_named_by_tensorflow_and_by_python(tmp_path, monkeypatch):
  def export():
    with files.atomic_directory(str(tmp_path / "out/1")) as folder:
      os.symlink("/dev/full", f"{folder}/file")  # Each write fails as on a full disk.
      tf.io.write_file(f"{folder}/file", "text")

  def name_of_full_file(path):
    os.symlink("/dev/full", f"{path}.tmp")
    return f"{path}.tmp"

  with pytest.raises(UserError, match=f"{tmp_path}/out: no space left"):
    export()
  monkeypatch.setattr(files, "temporary_name", name_of_full_file)
  with pytest.raises(UserError, match=f"{tmp_path}/file.json: no space left"):
    json_files.write(f"{tmp_path}/file.json", {})
  assert list(tmp_path.rglob("*")) == [tmp_path / "out"]


def test_encoder_equals_the_model_in_a_session(encoder, model, tokenizer, batch) -> None:
  expected = model.encoder({name: tf.constant(array) for name, array in batch.items()})
  outputs = encoder.run("tokens", batch)
  for name in ("pooled_output", "sequence_output"):
    np.testing.assert_allclose(outputs[name], expected[name], atol=1e-6)
  for b, ids in enumerate(batch["input_ids"]):
    text = batch["input_mask"][b].astype(bool) & ~np.isin(ids, [tokenizer.cls_id, tokenizer.sep_id])
    mean = expected["sequence_output"].numpy()[b, text].mean(0)
    np.testing.assert_allclose(outputs["mean_output"][b], mean, atol=1e-6)


def test_fill_mask_equals_the_model_in_a_session(fill_mask, model, tokenizer, batch) -> None:
  rows = [np.nonzero(ids == tokenizer.mask_id)[0] for ids in batch["input_ids"]]
  positions = np.stack([np.resize(row, 2) for row in rows]).astype(np.int32)
  logits = model({**batch, "masked_lm_positions": positions})["mlm_logits"]
  inputs = {**batch, "positions": positions}
  np.testing.assert_allclose(fill_mask.run("mlm", inputs)["mlm_logits"], logits, atol=1e-5)
  outputs = fill_mask.run("tokens", inputs)
  assert outputs["top_ids"].shape == (2, 2, 10)
  chances = tf.nn.softmax(logits).numpy()
  ordinary = np.arange(5, tokenizer.vocab_size)  # The five special pieces come first.
  for b, p in np.ndindex(2, 2):
    best = ordinary[np.argsort(-chances[b, p, ordinary], kind="stable")][:10]
    np.testing.assert_array_equal(outputs["top_ids"][b, p], best)
    np.testing.assert_allclose(outputs["top_probabilities"][b, p], chances[b, p, best], atol=1e-6)


@pytest.mark.parametrize(
  ("signature", "name", "value", "received"),
  [
    ("tokens", "segment_ids", 2, r"segment_ids .*\[1\].*\[0\] \[to\] \[2\]"),
    ("tokens", "segment_ids", -1, r"\[-1\] \[to\]"),
    ("tokens", "input_mask", 2, r"input_mask .*\[1\]"),
    ("tokens", "input_ids", 40, r"input_ids .*\[39\].*\[to\] \[40\]"),
    ("tokens", "positions", 99, r"positions .*\[to\] \[99\]"),
    ("mlm", "input_mask", -7, r"input_mask .*\[-7\]"),
    ("mlm", "positions", 99, r"positions .*\[to\] \[99\]"),
  ],
)
def test_ids_out_of_their_range_are_refused(
  fill_mask, batch, signature: str, name: str, value: int, received: str
) -> None:
  inputs = {**batch, "positions": np.ones([2, 2], np.int32)}
  inputs[name] = inputs[name].copy()
  inputs[name][1, 0] = value
  with pytest.raises(tf.errors.InvalidArgumentError, match=received):
    fill_mask.run(signature, inputs)


def test_strings_give_what_ids_give(fill_mask, encoder, tokenizer) -> None:
  texts = [*TEXTS, "no blank", ""]
  batch = reference.batch(tokenizer, texts, allow_mask=True)
  outputs = fill_mask.run("serving_default", {"text": as_bytes(texts)})
  np.testing.assert_array_equal(outputs["num_masks"], [1, 2, 0, 0])
  assert outputs["words"].shape == outputs["probabilities"].shape == (4, 2, 10)
  for b, count in enumerate(outputs["num_masks"]):
    positions = np.argwhere(batch["input_ids"][b] == tokenizer.mask_id).T.astype(np.int32)
    row = {name: array[b : b + 1] for name, array in batch.items()}
    top = fill_mask.run("tokens", {**row, "positions": positions})
    probabilities = outputs["probabilities"][b]
    np.testing.assert_allclose(probabilities[:count], top["top_probabilities"][0], atol=1e-6)
    for words, ids in zip(outputs["words"][b], top["top_ids"][0], strict=False):
      pieces = [tokenizer.pieces[index].removeprefix("▁") or "▁" for index in ids]
      assert [word.decode() for word in words] == pieces
    assert not probabilities[count:].any()
  plain = reference.batch(tokenizer, texts)
  encoded = encoder.run("serving_default", {"text": as_bytes(texts)})
  np.testing.assert_array_equal(encoded["input_ids"], plain["input_ids"])
  for name, array in encoder.run("tokens", plain).items():
    np.testing.assert_allclose(encoded[name], array, atol=1e-6)


@slow_by_default
def test_many_masks_are_answered_in_chunks(fill_mask, monkeypatch, run_dir) -> None:
  """A row with many masks would give all rows as many logits: chunks have equal results."""
  rows = np.array([b"[MASK] sky [MASK] " * 3, b"the [MASK]", b"none"] * 3, object)
  whole = fill_mask.run("serving_default", {"text": rows})
  monkeypatch.setattr(fill_mask_module, "_CHUNK", 4)
  module = make_module(open_model("fill_mask", str(run_dir)), ExportSettings(), None)
  parts = module.signatures()["serving_default"](tf.constant(rows))
  assert parts["probabilities"].shape[1] == 6
  np.testing.assert_array_equal(parts["words"], whole["words"])
  np.testing.assert_allclose(parts["probabilities"], whole["probabilities"], rtol=1e-5)


def test_what_travels_in_the_export(exported, config: AlbertConfig, tokenizer) -> None:
  assets = pathlib.Path(exported("fill_mask").path, "assets")
  assert sorted(os.listdir(assets)) == ["albert_config.json", "spm.model", "tokenizer.json"]
  assert AlbertConfig.from_json_file(str(assets / "albert_config.json")) == config
  assert AlbertTokenizer.from_pretrained(str(assets)).model_sha256 == tokenizer.model_sha256
  # Each weight once, and an encoder without heads.
  assert stored_numbers(exported("encoder").path) == num_weights(AlbertEncoder(config))


def stored_numbers(path: str) -> int:
  """How many numbers an export holds; single ones are counters."""
  shapes = dict(tf.train.list_variables(f"{path}/variables/variables")).values()
  return sum(size for size in map(np.prod, shapes) if size > 1)


def num_weights(model) -> int:
  return sum(np.prod(weight.shape) for weight in named_variables(model).values())


@pytest.mark.slow  # An export.
def test_a_signature_for_each_depth_over_one_copy_of_the_weights(
  fill_mask, exported, run_dir
) -> None:
  texts = {"text": as_bytes(TEXTS)}
  whole, shallow, deep = (
    fill_mask.run(name, texts) for name in ("serving_default", "depth_1", "depth_2")
  )
  model = AlbertMaskedLM.from_pretrained(run_dir, num_hidden_layers=1)
  module = make_module(model, ExportSettings(), None)
  alone = module.signatures()["serving_default"](tf.constant(TEXTS))
  np.testing.assert_array_equal(shallow["words"], alone["words"])
  np.testing.assert_allclose(shallow["probabilities"], alone["probabilities"], atol=1e-6)
  for name, array in whole.items():
    np.testing.assert_array_equal(deep[name], array)
  assert np.abs(shallow["probabilities"] - deep["probabilities"]).max() > 1e-3
  assert stored_numbers(exported("fill_mask").path) == num_weights(model)
