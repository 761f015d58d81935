"""The signature of answers that stop early: its default, its layers, its checks, and the server."""

import dataclasses

import numpy as np
import pytest
from support import tiny_run

from albert_tf import AlbertClassifier
from albert_tf.serving.loaded_model import LoadedModel
from albert_tf.serving.server import RequestError, Servable

# The export takes seconds; `predict_early` is tested in keras_api/test_several_depths.py at once.
pytestmark = pytest.mark.slow

TEXTS = ["the sky is blue", "small birds sing all day long under old trees", "grass"]
PAIRS = TEXTS[::-1]
STORED = 0.6


@pytest.fixture(scope="module")
def model(tmp_path_factory):
  run = tiny_run.write_pretrained(tmp_path_factory.mktemp("pretrained") / "run")
  model = AlbertClassifier.from_pretrained(
    run, label_names=["no", "yes"], num_hidden_layers=4, train_depths=(1, 2, 4), pair=True
  )
  # So that the first depth is sure of some of the texts.
  for variable in model.head.weights:
    variable.assign(100 * variable)
  model.task = dataclasses.replace(model.task, exit_threshold=STORED)
  return model


@pytest.fixture(scope="module")
def export(model, tmp_path_factory):
  path = tmp_path_factory.mktemp("export") / "1"
  model.export(path, depths=(2, 4))
  return path


@pytest.fixture(scope="module")
def loaded(export):
  return LoadedModel(str(export))


def ask(loaded, **inputs):
  columns = {"text": np.array(TEXTS, object), "text_pair": np.array(PAIRS, object)}
  return loaded.run("early_exit", columns | inputs)


def test_the_answers_are_those_of_the_model(model, loaded):
  seen = set()
  for threshold in (None, 0.0, 0.55, 0.7, 0.9, 1.0):
    inputs = {}
    if threshold is not None:
      inputs["threshold"] = np.full(3, threshold, np.float32)
    answer = ask(loaded, **inputs)
    early = model.predict_early((TEXTS, PAIRS), threshold=threshold)
    np.testing.assert_array_equal(answer["layers"], early.layers)
    np.testing.assert_array_equal(answer["predictions"], early.outputs.argmax(-1))
    seen |= set(answer["layers"].tolist())
  assert len(seen) > 1
  # Of the last threshold, 1: as without early exits.
  columns = {"text": np.array(TEXTS, object), "text_pair": np.array(PAIRS, object)}
  plain = loaded.run("serving_default", columns)
  np.testing.assert_allclose(answer["probabilities"], plain["probabilities"], atol=1e-5)


def test_each_row_has_its_own_threshold(loaded):
  answer = ask(loaded, threshold=np.array([1, 0, 1], np.float32))
  np.testing.assert_array_equal(answer["layers"], [4, 1, 4])


def test_requests_with_and_without_a_threshold(export):
  """As TensorFlow Serving, the server fills an input that has a default in."""
  servable = Servable(f"early={export}")

  def layers(**more):
    rows = [{"text": text, "text_pair": pair} for text, pair in zip(TEXTS, PAIRS, strict=True)]
    request = {"signature_name": "early_exit", "instances": [row | more for row in rows]}
    return [row["layers"] for row in servable.predict(request)["predictions"]]

  assert layers(threshold=1) == [4, 4, 4]
  assert layers() == layers(threshold=STORED)
  for wrong in ({"threshold": 2}, {"threshold": "high"}, {"limit": 0.5}):
    with pytest.raises(RequestError, match="threshold"):
      layers(**wrong)
  some_rows = [{"text": "a", "text_pair": "b"}, {"text": "a", "text_pair": "b", "threshold": 1}]
  with pytest.raises(RequestError, match="text, text_pair, threshold"):
    servable.predict({"signature_name": "early_exit", "instances": some_rows})


@pytest.mark.parametrize("threshold", [-0.1, 1.5, float("nan")])
def test_a_threshold_that_is_none_is_refused(loaded, threshold):
  with pytest.raises(Exception, match=r"threshold .* 0 .* 1"):
    ask(loaded, threshold=np.full(3, threshold, np.float32))
