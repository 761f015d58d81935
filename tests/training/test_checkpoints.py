"""Checkpoints are written beside training: copied first, one in flight, errors said; the best is pointed to."""

import threading

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.checkpoints.bundle import (
  checkpoint_steps,
  latest_bundle,
  read_bundle,
  read_pointer,
  write_bundle,
  write_pointer,
)
from albert_tf.errors import UserError
from albert_tf.training import checkpoints
from albert_tf.training.checkpoints import CheckpointStore, HostState


@pytest.fixture
def variable():
  return tf.Variable([1.0, 2.0], name="weights")


@pytest.fixture
def store(tmp_path, variable):
  return CheckpointStore(str(tmp_path), {"weights": variable}, keep=2)


class Gate:
  """Holds the writer until it is opened."""

  def __init__(self, monkeypatch, *, error=None):
    self._open, self._error = threading.Event(), error
    monkeypatch.setattr(checkpoints, "write_bundle", self._write)

  def _write(self, prefix, values):
    assert self._open.wait(20)
    if self._error is not None:
      raise self._error
    write_bundle(prefix, values)

  def open(self):
    self._open.set()


def test_training_goes_on_while_the_values_of_the_moment_are_written(tmp_path, store, variable, monkeypatch):
  gate = Gate(monkeypatch)
  store.save(1, HostState(examples_seen=8))
  variable.assign([9.0, 9.0])
  store.check()
  assert store.last is None
  gate.open()
  store.wait()
  assert store.last == f"{tmp_path}/model.ckpt-1"
  values = read_bundle(store.last)
  np.testing.assert_array_equal(values["weights"], [1.0, 2.0])
  assert values["albert_tf/examples_seen"] == 8


def test_a_failed_write_is_said_once_with_its_cause_and_the_next_checkpoint_may_succeed(store, monkeypatch):
  gate = Gate(monkeypatch, error=UserError("No space left on device"))
  store.save(1, HostState())
  gate.open()
  with pytest.raises(UserError, match="No space left on device"):
    store.save(2, HostState())
  monkeypatch.undo()
  store.check()
  store.save(3, HostState())
  store.wait()
  assert store.last.endswith("model.ckpt-3")


def test_what_a_kill_left_is_no_checkpoint(tmp_path):
  """Between its two files: the data has its name, the index not yet."""
  write_bundle(f"{tmp_path}/model.ckpt-1", {"weights": np.ones(2, np.float32)})
  (tmp_path / "model.ckpt-1.index").rename(tmp_path / "model.ckpt-1.tmp-0a1b2c3d.index")
  assert latest_bundle(str(tmp_path)) is None


def test_the_best_is_pointed_to_and_stays(tmp_path, store):
  state = HostState()
  # Of equal accuracies, the one with the lowest loss.
  for step, (accuracy, loss) in enumerate(
    [(0.1, 3), (0.5, 2), (0.2, 2.5), (0.5, 1.9), (0.5, 1.95), (0.3, 2.2)], 1
  ):
    store.save(step, state)
    state = state.evaluated(step, {"masked_lm_accuracy": accuracy, "masked_lm_loss": loss})
    if state.best_step == step:
      store.point_best(step)
  store.wait()
  assert sorted(path.stem for path in tmp_path.glob("*.index")) == [
    "model.ckpt-4",
    "model.ckpt-5",
    "model.ckpt-6",
  ]
  assert latest_bundle(f"{tmp_path}/best") == f"{tmp_path}/model.ckpt-4"
  assert store.restore_latest() == HostState(
    best_masked_lm_accuracy=0.5, best_masked_lm_loss=1.9, best_step=4
  )


@pytest.mark.parametrize("folder", ["", "ram://kept"], ids=["disk", "store"])
def test_multiples_stay_besides_the_newest_also_after_a_restart(tmp_path, variable, folder):
  folder = folder or str(tmp_path)
  for steps in (range(1, 6), range(6, 12)):
    store = CheckpointStore(folder, {"weights": variable}, keep=2, keep_every=3)
    for step in steps:
      store.save(step, HostState(best_step=4))
    store.wait()
    store.close()
    store.tidy()
  assert checkpoint_steps(folder) == [3, 4, 6, 9, 10, 11]  # 4 is the best.
  assert all(read_bundle(f"{folder}/model.ckpt-{step}") for step in checkpoint_steps(folder))


def test_a_loss_that_was_not_finite_is_worse_than_any(store):
  """metrics.jsonl has null for it."""
  state = HostState().evaluated(4, {"masked_lm_accuracy": 0.1, "masked_lm_loss": None})
  assert state.best_step == 4
  assert state.evaluated(8, {"masked_lm_accuracy": 0.1, "masked_lm_loss": 9.0}).best_step == 8


def test_the_best_stays_where_the_better_one_could_not_be_written(tmp_path, store, monkeypatch):
  write_pointer(f"{tmp_path}/best", "model.ckpt-1")
  write_bundle(f"{tmp_path}/model.ckpt-1", {"weights": np.ones(2, np.float32)})
  gate = Gate(monkeypatch, error=UserError("No space left on device"))
  store.save(2, HostState())
  store.point_best(2)
  gate.open()
  with pytest.raises(UserError, match="No space left on device"):
    store.wait()
  store.close()
  assert latest_bundle(f"{tmp_path}/best") == f"{tmp_path}/model.ckpt-1"


def test_a_pointer_means_what_lies_above_however_the_directory_is_named(tmp_path, monkeypatch):
  best = tmp_path / "checkpoints/best"
  write_pointer(str(best), "model.ckpt-3")
  assert read_pointer(f"{best}/") == f"{tmp_path}/checkpoints/model.ckpt-3"
  assert latest_bundle(str(best)) is None  # It is gone.
  monkeypatch.chdir(best)
  assert read_pointer(".") == "./../model.ckpt-3"
  write_pointer("ram://pointer/best", "model.ckpt-3")
  assert read_pointer("ram://pointer/best") == "ram://pointer/model.ckpt-3"
  (best / "checkpoint").write_text('model_checkpoint_path: "/elsewhere/model.ckpt-9"\n')
  assert read_pointer(str(best)) is None  # A released checkpoint's own.
