"""metrics.jsonl: appended to on a disk, rewritten at checkpoints in a bucket; complete after any kill."""

import pytest
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.training.metrics_log import MetricsLog, read_metrics


@pytest.fixture(params=["disk", "ram://metrics_log"])
def folder(request, tmp_path):
  """A disk, and TensorFlow's file system in memory, which like a bucket cannot append."""
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
  again.close()
  assert steps(log.path)[5:] == [(6, "train"), (6, "eval")]
  assert read_metrics(log.path)[5]["loss"] is None


def test_a_local_log_is_appended_to_and_a_torn_last_line_left_out(tmp_path):
  path = tmp_path / "metrics.jsonl"
  log = MetricsLog(str(path))
  train(log, 1)
  inode = path.stat().st_ino
  train(log, 2)
  log.close()
  assert path.stat().st_ino == inode
  with path.open("a") as stream:
    stream.write('{"step": 3, "sp')
  assert steps(str(path)) == [(1, "train"), (2, "train")]
  MetricsLog(str(path), start_step=3)
  assert len(path.read_text().splitlines()) == 2
  path.write_text("nonsense\n{}\n")
  with pytest.raises(UserError, match=r"line 1 of \S*metrics.jsonl is not"):
    read_metrics(str(path))
