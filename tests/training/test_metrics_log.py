"""metrics.jsonl in a bucket: parts, each written once; one log for its readers; whole after any kill."""

import json

import pytest
import tensorflow as tf

from albert_tf import files
from albert_tf.training import metrics_log
from albert_tf.training.metrics_log import MetricsLog, read_metrics


@pytest.fixture
def bucket():
  """A folder of TensorFlow's file system in memory, which like a bucket cannot append."""
  folder = "ram://metrics_log"
  if tf.io.gfile.exists(folder):
    tf.io.gfile.rmtree(folder)
  tf.io.gfile.makedirs(folder)
  return folder


def parts(folder):
  """What lies in `folder/metrics`; the file system in memory lists metrics.jsonl there as ".jsonl"."""
  return [name for name in files.listdir(f"{folder}/metrics") if name != ".jsonl"]


def steps(path):
  return [(record["step"], record["split"]) for record in read_metrics(path)]


def train(log, *numbers):
  for step in numbers:
    log.append(step, "train", {"loss": 1.0 / step})


def test_reports_become_parts_and_the_parts_one_file(bucket):
  log = MetricsLog(f"{bucket}/metrics.jsonl")
  train(log, 1, 2)
  assert files.listdir(bucket) == []
  log.flush()
  train(log, 3)
  log.flush()
  log.flush()  # Nothing new, nothing written.
  assert parts(bucket) == ["part-00000000.jsonl", "part-00000001.jsonl"]
  assert steps(log.path) == [(1, "train"), (2, "train"), (3, "train")]
  log.append(3, "train", {"loss": 7.0})
  log.close()
  assert parts(bucket) == []
  lines = files.read_bytes(log.path).decode().splitlines()
  assert [json.loads(line)["loss"] for line in lines] == [1.0, 0.5, 7.0]


def test_a_killed_log_is_continued_from_the_checkpoint(bucket):
  path = f"{bucket}/metrics.jsonl"
  log = MetricsLog(path)
  for step in range(1, 8):
    train(log, step)
    log.flush()
  train(log, 8)  # Killed here: of the last interval nothing was in the bucket.
  again = MetricsLog(path, start_step=5)
  assert again.dropped == 2
  assert steps(path) == [(step, "train") for step in (1, 2, 3, 4, 5)]
  train(again, 6)
  again.flush()
  assert steps(path)[-1] == (6, "train")


@pytest.mark.parametrize("removed", [0, 1, 2])
def test_killed_while_the_parts_join_no_step_is_lost_twice_or_out_of_order(bucket, monkeypatch, removed):
  path = f"{bucket}/metrics.jsonl"
  log = MetricsLog(path)
  for step in (1, 2, 3):
    train(log, step)
    log.flush()
  remove = files.remove

  def killed(path):
    if path.endswith(f"{removed}.jsonl"):
      remove(path)
    else:
      raise KeyboardInterrupt

  monkeypatch.setattr(files, "remove", killed)
  with pytest.raises(KeyboardInterrupt):
    log.close()
  monkeypatch.undo()
  assert len(parts(bucket)) == 2
  assert steps(path) == [(1, "train"), (2, "train"), (3, "train")]
  assert MetricsLog(path, start_step=2).dropped == 1
  assert steps(path) == [(1, "train"), (2, "train")]


def test_what_is_uploaded_grows_with_the_log_and_not_with_its_square(bucket, monkeypatch):
  written = []
  write = metrics_log._write

  def counted(path, records):
    written.append(len(records))
    write(path, records)

  monkeypatch.setattr(metrics_log, "_write", counted)
  log = MetricsLog(f"{bucket}/metrics.jsonl")
  for step in range(1, 301):
    train(log, step)
    if step % 3 == 0:
      log.flush()
  log.close()
  assert sum(written) == 300 + 300  # Once in parts, once all together; a rewriting log takes 45,150.


def test_a_local_log_is_appended_to_and_reads_downloaded_parts(tmp_path):
  path = tmp_path / "metrics.jsonl"
  log = MetricsLog(str(path))
  train(log, 1)
  inode = path.stat().st_ino
  train(log, 2)
  log.flush()
  log.close()
  assert path.stat().st_ino == inode
  (tmp_path / "metrics").mkdir()
  (tmp_path / "metrics/part-00000000.jsonl").write_text('{"step": 3, "split": "train", "loss": 2.0}\n')
  (tmp_path / "metrics/notes.txt").write_text("mine")
  assert steps(str(path)) == [(1, "train"), (2, "train"), (3, "train")]
  MetricsLog(str(path), start_step=3)
  assert len(path.read_text().splitlines()) == 3
  assert [each.name for each in (tmp_path / "metrics").iterdir()] == ["notes.txt"]
