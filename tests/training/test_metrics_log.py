"""metrics.jsonl: no step twice, complete after any kill."""

import pytest
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.training.metrics_log import MetricsLog, read_metrics


@pytest.fixture(params=["disk", "ram://metrics_log"])
def folder(request, tmp_path):
  """A disk, and TensorFlow's file system in memory, which counts as a bucket."""
  if request.param == "disk":
    return str(tmp_path)
  if tf.io.gfile.exists(request.param):
    tf.io.gfile.rmtree(request.param)
  tf.io.gfile.makedirs(request.param)
  return request.param


def steps(path):
  return [(record["step"], record["split"]) for record in read_metrics(path)]


def train(log, *numbers):
  for step in numbers:
    log.append(step, "train", {"loss": 1.0 / step})


def test_a_killed_log_is_continued_from_the_checkpoint(folder):
  log = MetricsLog(f"{folder}/metrics.jsonl")
  assert read_metrics(log.path) == []
  train(log, *range(1, 8))
  log.flush()
  again = MetricsLog(log.path, start_step=5)
  assert again.dropped == 2
  assert steps(log.path) == [(step, "train") for step in (1, 2, 3, 4, 5)]
  again.append(6, "train", {"loss": 3.0})
  again.append(6, "train", {"loss": float("nan")})
  again.append(6, "eval", {"loss": 2.0})
  again.flush()
  assert steps(log.path)[5:] == [(6, "train"), (6, "eval")]
  assert read_metrics(log.path)[5]["loss"] is None


def test_a_line_that_is_no_report_is_refused(tmp_path):
  (tmp_path / "metrics.jsonl").write_text("nonsense\n{}\n")
  with pytest.raises(UserError, match=r"metrics\.jsonl"):
    read_metrics(str(tmp_path / "metrics.jsonl"))
