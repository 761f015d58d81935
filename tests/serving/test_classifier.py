"""Classifier and regression exports equal the Python tokenizer and model, by every method."""

import pathlib
import time

import numpy as np
import pytest
from reference import tokenization as reference
from support.tiny_run import as_bytes, write_fine_tuned_run
import tensorflow as tf

from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.keras_api.tasks import open_model

TEXTS = ["the sky is blue", "small birds sing all day long and the grass grows", "", "zebra 12, ﬁ"]
PAIRS = ["green grass", "old trees", "the sky", ""]


@pytest.mark.parametrize("key", ["pair", pytest.param("labels", marks=pytest.mark.slow), "value"])
def test_strings_equal_the_python_model(key: str, exported, tokenizer) -> None:
  task, model, _, session, _ = exported(key)
  inputs, pairs = {"text": as_bytes(TEXTS)}, None
  if task.pair:
    inputs, pairs = {**inputs, "text_pair": as_bytes(PAIRS)}, PAIRS
  batch = reference.batch(tokenizer, TEXTS, pairs, max_length=task.max_seq_length)
  logits = model({name: tf.constant(array) for name, array in batch.items()}).numpy()
  outputs = session.run("serving_default", inputs)
  if key == "value":
    assert set(outputs) == {"value"}
    np.testing.assert_allclose(outputs["value"], logits[:, 0], atol=1e-5)
    return
  names = np.array(task.label_names)
  assert all([name.decode() for name in row] == list(names) for row in outputs["label_names"])
  if key == "labels":
    assert set(outputs) == {"probabilities", "label_names", "above_threshold"}
    np.testing.assert_allclose(outputs["probabilities"], tf.sigmoid(logits), atol=1e-5)
    np.testing.assert_array_equal(outputs["above_threshold"], tf.sigmoid(logits) >= task.thresholds)
  else:
    np.testing.assert_allclose(outputs["probabilities"], tf.nn.softmax(logits), atol=1e-5)
    np.testing.assert_array_equal(outputs["predictions"], logits.argmax(-1))
    assert [label.decode() for label in outputs["label"]] == list(names[logits.argmax(-1)])


def test_another_kind_of_run_is_refused(tmp_path: pathlib.Path, config, tokenizer) -> None:
  choice = TaskSpec(kind="multiple_choice", name="c")
  write_fine_tuned_run(tmp_path / "run", choice, config, tokenizer)
  with pytest.raises(UserError, match="--model multiple_choice"):
    open_model("classifier", str(tmp_path / "run"))


def test_a_megabyte_is_cut(exported) -> None:
  session = exported("value").session
  texts = [b"grass " * 170_000, b"x" * 1_000_000, b"\xff" * 1_000_000]
  start = time.monotonic()
  values = session.run("serving_default", {"text": np.array(texts, object)})["value"]
  assert time.monotonic() - start < 60
  short = session.run("serving_default", {"text": np.array([b"grass " * 100], object)})["value"]
  np.testing.assert_allclose(values[0], short[0], atol=1e-5)
