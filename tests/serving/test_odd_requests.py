"""What may come over the wire, at the graph: an answer or a clear error, and the next request is answered."""

import time

import numpy as np
import pytest
from support.serving.session_loader import SessionModel
from support.tiny_run import write_fine_tuned_run
import tensorflow as tf

from albert_tf.configs.task import TaskSpec
from albert_tf.models.exports import export_saved_model
from albert_tf.serving.settings import ExportSettings

PAIR = TaskSpec(kind="classification", name="t", label_names=("no", "yes"), pair=True, max_seq_length=16)


@pytest.fixture(scope="module")
def classifier(config, tokenizer, tmp_path_factory) -> SessionModel:
  folder = tmp_path_factory.mktemp("odd")
  write_fine_tuned_run(folder / "run", PAIR, config, tokenizer)
  path = export_saved_model(
    model="classifier",
    init_checkpoint=str(folder / "run"),
    output_dir=str(folder / "e"),
    settings=ExportSettings(pad_to_max_length=True),
  )
  return SessionModel(path)


def array(texts: list[bytes]) -> np.ndarray:
  return np.array([*texts, None], object)[:-1]  # Never an array of fixed-width bytes, which drops NULs.


def test_a_megabyte_is_cut(classifier: SessionModel) -> None:
  texts = [b"grass " * 170_000, b"x" * 1_000_000, b"\xff" * 1_000_000]
  start = time.monotonic()
  outputs = classifier.run("serving_default", {"text": array(texts), "text_pair": array([b"sky"] * 3)})
  assert time.monotonic() - start < 60
  short = classifier.run("serving_default", {"text": array([b"grass " * 100]), "text_pair": array([b"sky"])})
  np.testing.assert_allclose(outputs["probabilities"][0], short["probabilities"][0], atol=1e-5)


def test_wrong_requests_are_errors(classifier: SessionModel) -> None:
  with pytest.raises(ValueError, match=r"takes \['text', 'text_pair'\]"):
    classifier.run("serving_default", {"text": array([b"a"])})
  with pytest.raises((ValueError, TypeError, tf.errors.InvalidArgumentError)):
    classifier.run("tokens", {name: array([b"a"]) for name in ("input_ids", "input_mask", "segment_ids")})
  with pytest.raises(tf.errors.InvalidArgumentError):
    classifier.run("serving_default", {"text": array([b"a", b"b"]), "text_pair": array([b"a"])})
  assert (
    len(classifier.run("serving_default", {"text": array([b"a"]), "text_pair": array([b""])})["label"]) == 1
  )
