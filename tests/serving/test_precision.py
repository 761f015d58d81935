"""SavedModels of every kind in 8 and 16 bits: what they answer, hold and refuse."""

import json
import pathlib
import types

import numpy as np
import pytest
from support.stacks import needs_int8
import tensorflow as tf

from albert_tf import AlbertClassifier, compat
from albert_tf.errors import UserError
from albert_tf.keras_api.calibration import calibration_of
from albert_tf.keras_api.tasks import open_model
from albert_tf.modeling import named_variables
from albert_tf.serving import precision
from albert_tf.serving.check import CHECKS, Export

WORDS = "the old trees stand by the sea and a flock of birds flew over Paris".split()
TEXTS = [" ".join(WORDS[start : start + size]) for start in range(8) for size in (2, 5, 8)]
PAIRS = {"text": TEXTS, "text_pair": TEXTS[::-1]}
QUESTIONS = {"question": TEXTS, "context": TEXTS[::-1]}
CHOICES = {"context": TEXTS, "question": TEXTS, "choices": [[text, "the sea"] for text in TEXTS]}
TAGGED = {"words": [text.split() for text in TEXTS]}
# Key of `TASKS` or kind → what its model reads.
INPUTS = {
  "encoder": TEXTS,
  "fill_mask": TEXTS,
  "pair": PAIRS,
  "labels": TEXTS,
  "value": TEXTS,
  "vectors": TEXTS,
  "choice": CHOICES,
  "tags": TAGGED,
  "squad_1.1": QUESTIONS,
  "squad_2.0": QUESTIONS,
}


def loaded(exported, key):
  """The Keras model of an export."""
  made = exported(key)
  kind = key if made.task is None else made.task.export_kind
  return open_model(kind, made.source)


@pytest.mark.slow  # An export each.
@needs_int8
@pytest.mark.parametrize("key", INPUTS)
def test_an_int8_export_of_every_kind_passes_all_checks(key, exported, tmp_path, capsys):
  model = loaded(exported, key)
  path = tmp_path / "1"
  # A random model hardly tells its texts apart, so its answers need not agree.
  model.export(path, precision="int8", min_agreement=-1, calibration=INPUTS[key], verbose=True)
  export = Export(str(path))
  results = {name: check(export) for name, check in CHECKS.items()}
  assert results["precision"].startswith("int8; with float32: agreement")
  assert "_QuantizedMatMul" in export.ops
  assert "agreement" in capsys.readouterr().out
  # The model itself answers as before.
  assert not getattr(model, "encoder", model).served_blocks


@pytest.mark.slow
def test_a_bfloat16_export_holds_weights_of_16_bits(exported, tmp_path):
  model = loaded(exported, "pair")
  model.export(tmp_path / "1", precision="bfloat16", calibration=PAIRS)
  variables = tf.train.load_checkpoint(str(tmp_path / "1" / "variables" / "variables"))
  kinds = list(variables.get_variable_to_dtype_map().values())
  assert kinds.count(tf.bfloat16) == 8
  export = Export(str(tmp_path / "1"))
  assert all(check(export) for check in CHECKS.values())


@pytest.mark.slow  # One more export.
@needs_int8
def test_an_int8_export_leaves_out_the_weights_that_it_replaces(exported, tmp_path):
  model = loaded(exported, "vectors")
  model.export(tmp_path / "1", precision="int8", calibration=TEXTS)
  prefix = str(tmp_path / "1" / "variables" / "variables")
  shapes = list(tf.train.load_checkpoint(prefix).get_variable_to_shape_map().values())
  kernels = [
    variable.shape.as_list()
    for name, variable in named_variables(model).items()
    if "/intermediate/" in name and name.endswith("kernel")
  ]
  # One matrix, of 8 bits.
  assert shapes.count(kernels[0]) == 1


@needs_int8
@pytest.mark.slow  # One more export.
def test_answers_in_8_bits_stop_early(exported, tmp_path):
  start = loaded(exported, "labels")
  model = AlbertClassifier(
    start.config.at_depth(4),
    label_names=["no", "yes"],
    train_depths=(1, 2, 4),
    preprocessor=start.preprocessor,
  )
  model.export(tmp_path / "1", depths=(1, 4), precision="int8", min_agreement=-1, calibration=TEXTS)
  export = Export(str(tmp_path / "1"))
  texts = np.array(TEXTS, object)
  for threshold, layers in ((0.0, 1), (1.0, 4)):
    early = export.run("early_exit", {"text": texts, "threshold": np.full(len(texts), threshold)})
    fixed = export.run(f"depth_{layers}", {"text": texts})
    assert set(early["layers"]) == {layers}
    np.testing.assert_allclose(early["probabilities"], fixed["probabilities"], atol=1e-6)


@needs_int8
def test_the_ranges_of_each_pass_are_its_own(exported):
  model = loaded(exported, "vectors")
  ranges = precision.measured_ranges(model, calibration_of(model, TEXTS).measured, None)
  assert len(ranges) == model.config.num_hidden_layers
  assert len({of_pass["output"] for of_pass in ranges}) == len(ranges)


def test_without_texts_nothing_is_written(exported, tmp_path):
  model = loaded(exported, "pair")
  with pytest.raises(UserError, match=r"none.*--calibration_file"):
    model.export(tmp_path / "1", precision="bfloat16")
  assert not (tmp_path / "1").exists()


def test_texts_for_float32_are_refused(exported, tmp_path):
  with pytest.raises(UserError, match=r"Received: some.*--precision=int8"):
    loaded(exported, "pair").export(tmp_path / "1", calibration=PAIRS)


@needs_int8
def test_answers_that_do_not_agree_are_not_written(exported, tmp_path, monkeypatch):
  model = loaded(exported, "vectors")
  coarse = precision.measured_ranges

  def a_thousandth(*args):
    return [{name: value / 1000 for name, value in of_pass.items()} for of_pass in coarse(*args)]

  monkeypatch.setattr(precision, "measured_ranges", a_thousandth)
  with pytest.raises(UserError, match=r"int8 with agreement 0\.\d+.*--min_agreement"):
    model.export(tmp_path / "1", precision="int8", calibration=TEXTS)
  assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
  ("kind", "before", "after", "counts"),
  [
    ("classification", [0, 0, 0, 2], [0, 0, 2, 0], {"a": (3, 2), "c": (1, 0)}),
    ("multi_label", [1, 0, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0], {"a": (2, 1), "c": (1, 0)}),
  ],
)
def test_a_rare_label_that_is_lost_is_named(kind, before, after, counts):
  task = types.SimpleNamespace(kind=kind, label_names=("a", "b", "c"))
  dtype = bool if kind == "multi_label" else int
  labels = precision._label_counts(
    types.SimpleNamespace(task=task), np.array(before, dtype), np.array(after, dtype)
  )
  assert labels == counts
  assert "0 of 1 for c" in str(precision.Agreement(0.99, 0.0, 0.0, labels))


@pytest.mark.skipif(compat.HAS_INT8_PRODUCTS, reason="this TensorFlow has products of 8 bits")
def test_an_older_tensorflow_names_the_remedy(exported, tmp_path):
  with pytest.raises(UserError, match="--precision=bfloat16"):
    loaded(exported, "pair").export(tmp_path / "1", precision="int8", calibration=PAIRS)


@pytest.mark.slow  # One more export.
@needs_int8
def test_texts_that_are_all_padding_and_long_texts(exported, tmp_path):
  model = loaded(exported, "vectors")
  odd = ["", " ", "word " * 500, *TEXTS]
  model.export(tmp_path / "1", precision="int8", min_agreement=0.9, calibration=odd)
  answers = Export(str(tmp_path / "1")).run("serving_default", {"text": np.array(odd, object)})
  assert np.isfinite(answers["vector"]).all()
  report = json.loads(pathlib.Path(tmp_path / "1/assets.extra/precision.json").read_text())
  assert report["precision"] == "int8"
  assert report["agreement"]["share"] > 0.9
