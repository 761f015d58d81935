"""Checkpoints are written beside training: copied first, one in flight, errors said."""

import threading

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.checkpoints.bundle import (
  checkpoint_steps,
  read_bundle,
  write_bundle,
)
from albert_tf.training import checkpoints
from albert_tf.training.checkpoints import CheckpointStore


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
  store.save(1, examples_seen=8)
  variable.assign([9.0, 9.0])
  store.check()
  assert store.last is None
  gate.open()
  store.wait()
  assert store.last == f"{tmp_path}/model.ckpt-1"
  values = read_bundle(store.last)
  np.testing.assert_array_equal(values["weights"], [1.0, 2.0])
  assert values["albert_tf/examples_seen"] == 8


@pytest.mark.parametrize("folder", ["", "ram://kept"], ids=["disk", "store"])
def test_multiples_stay_besides_the_newest_also_after_a_restart(tmp_path, variable, folder):
  folder = folder or str(tmp_path)
  for steps in (range(1, 6), range(6, 12)):
    store = CheckpointStore(folder, {"weights": variable}, keep=2, keep_every=3)
    for step in steps:
      store.save(step, examples_seen=0)
    store.wait()
    store.close()
    store.tidy()
  assert checkpoint_steps(folder) == [3, 6, 9, 10, 11]
  assert all(read_bundle(f"{folder}/model.ckpt-{step}") for step in checkpoint_steps(folder))
