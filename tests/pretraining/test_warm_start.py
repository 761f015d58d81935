"""Warm starts: weights of another depth are accepted only if layers share whole blocks."""

import pathlib
from typing import Any

import numpy as np
import pytest
from support import tiny_run
from support.tiny_pretraining import tiny_settings
from support.tiny_records import tiny_config

from albert_tf.checkpoints.bundle import write_bundle
from albert_tf.errors import UserError
from albert_tf.modeling import AlbertForPreTraining, named_variables
from albert_tf.pretraining.warm_start import start_weights


def _write(folder: pathlib.Path, **changes: Any) -> dict[str, np.ndarray]:
  """A run of that model with weights that are all different; returns them."""
  model = AlbertForPreTraining(tiny_config(**changes))
  tiny_run.randomize(model, seed=1, stddev=1.0)
  values = tiny_run.values_of(model)
  (folder / "checkpoints").mkdir()
  write_bundle(f"{folder}/checkpoints/model.ckpt-5", {**values, "global_step": np.int64(5)})
  (folder / "albert_config.json").write_text(model.config.to_json_string())
  return values


def _start(folder: pathlib.Path, **changes: Any) -> tuple[str, dict[str, np.ndarray]]:
  model = AlbertForPreTraining(tiny_config(**changes))
  start = {"model": model.config, "init_checkpoint": str(folder), "seed": 3}
  said = start_weights(named_variables(model), tiny_settings(folder, "new", **start))
  return said, tiny_run.values_of(model)


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("groups", [{}, {"num_hidden_groups": 2}], ids=["one block", "two groups"])
def test_shared_blocks_start_any_depth_group_by_group(tmp_path, depth, groups):
  if groups:
    depth += 3  # As many layers as groups, at least.
  values = _write(tmp_path, **groups)
  _, started = _start(tmp_path, num_hidden_layers=depth, **groups)
  assert values.keys() == started.keys()
  for name, value in values.items():
    np.testing.assert_array_equal(value, started[name], err_msg=name)


@pytest.mark.parametrize("sharing", ["none", "attention", "ffn"])
def test_layers_with_weights_of_their_own_need_the_same_depth(tmp_path, sharing):
  _write(tmp_path, sharing=sharing)
  _start(tmp_path, sharing=sharing)
  with pytest.raises(UserError, match=r"Received: .*num_hidden_layers 2 → 3"):
    _start(tmp_path, sharing=sharing, num_hidden_layers=3)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"num_attention_heads": 4}, "num_attention_heads 3 → 4"),  # The same shapes.
    ({"hidden_act": "relu"}, "hidden_act gelu → relu"),
    ({"sharing": "none"}, "sharing all → none"),
    ({"num_hidden_groups": 2}, "num_hidden_groups 1 → 2"),
    ({"vocab_size": 38}, r"word_embeddings .*38, 6.*Received: .37, 6"),
  ],
)
def test_weights_that_would_mean_something_else_are_refused(tmp_path, changes, message):
  _write(tmp_path)
  with pytest.raises(UserError, match=message):
    _start(tmp_path, num_hidden_layers=3, **changes)


HEADS = {
  "masked-LM": "cls/predictions/",
  "sentence-order": "cls/seq_relationship/",
  "pooler": "bert/pooler/",
}


@pytest.mark.parametrize(
  "lacking", [[], ["sentence-order"], ["sentence-order", "pooler"], [*HEADS]]
)
def test_a_head_that_is_not_there_is_new_and_said(tmp_path, lacking):
  values = _write(tmp_path)
  path = f"{tmp_path}/checkpoints/model.ckpt-5"
  gone = tuple(HEADS[head] for head in lacking)
  left = {name: value for name, value in values.items() if not name.startswith(gone or "-")}
  write_bundle(path, {**left, "output_weights": np.ones([3, 12], "f")})  # Fine-tuned.
  said, started = _start(tmp_path)
  assert all((prefix in said) == (head in lacking) for head, prefix in HEADS.items())
  assert ("new, of seed 3" in said) == bool(lacking)
  for name, value in left.items():
    np.testing.assert_array_equal(value, started[name], err_msg=name)
  again = _start(tmp_path)[1]
  for name in started.keys() - left.keys():
    np.testing.assert_array_equal(started[name], again[name])
    assert np.abs(started[name]).max() <= 0.05 or name.endswith("gamma")


@pytest.mark.parametrize(
  "name", ["cls/predictions/output_bias", "bert/embeddings/position_embeddings"]
)
def test_a_part_that_is_missing_is_refused(tmp_path, name):
  values = _write(tmp_path)
  write_bundle(
    f"{tmp_path}/checkpoints/model.ckpt-5", {n: v for n, v in values.items() if n != name}
  )
  with pytest.raises(UserError, match=f"missing: {name}"):
    _start(tmp_path)


def test_records_of_another_vocabulary_are_refused(tmp_path):
  (tmp_path / "own").mkdir()
  tokenizer = tiny_run.tokenizer()
  tokenizer.save_pretrained(str(tmp_path / "own"))
  model = tiny_run.tiny_model(tokenizer.vocab_size)
  tiny_run.write_run(tmp_path / "run", model, tokenizer)
  variables = named_variables(model)
  paths = {"init_checkpoint": f"{tmp_path}/run", "tokenizer_path": f"{tmp_path}/own"}
  settings = tiny_settings(tmp_path, "new", model=model.config, **paths)
  start_weights(variables, settings)
  piece = next(piece for piece in tokenizer.pieces[5:] if piece[-1:].isascii())
  other = tokenizer.model_bytes.replace(piece.encode(), (piece[:-1] + "~").encode())
  (tmp_path / "own/spm.model").write_bytes(other)
  with pytest.raises(
    UserError, match=rf"Received: .*{tmp_path}/own\. .*--spm_model_file={tmp_path}/run/spm\.model"
  ):
    start_weights(variables, settings)
