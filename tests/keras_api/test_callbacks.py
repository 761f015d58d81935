"""A `fit` of a Keras user that is killed or stopped continues to the bits of an undisturbed one."""

import os
import shutil
import signal

import keras
import numpy as np
import pytest
from support import tiny_run
from support.stacks import slow_by_default
from support.tiny_finetuning import made_up_texts
import tensorflow as tf

from albert_tf import AdamW, AlbertClassifier, KeepBest, Muon, SaveState, StopOnSignal
from albert_tf.errors import StoppedError, UserError

EXAMPLES = made_up_texts(11)
TEXTS = [example.text for example in EXAMPLES]
LABELS = [example.label for example in EXAMPLES]
EPOCH_UPDATES = 3  # Batches of 4; the last has 3 rows.


class Killed(BaseException):
  """Ends the process, as SIGKILL does."""


class Disturb(keras.callbacks.Callback):
  """Does something in an update of this process, or when an evaluation begins."""

  def __init__(self, action, *, update=0, evaluation=0):
    super().__init__()
    self._action = action
    self._updates_left = update
    self._evaluations_left = evaluation

  def on_train_batch_end(self, batch, logs=None):
    self._updates_left -= 1
    if self._updates_left == 0:
      self._action()

  def on_test_begin(self, logs=None):
    self._evaluations_left -= 1
    if self._evaluations_left == 0:
      self._action()


def kill():
  raise Killed


def terminate():
  os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
  return tiny_run.write_pretrained(
    tmp_path_factory.mktemp("pretrained") / "run",
    num_hidden_layers=1,
    hidden_dropout_prob=0.2,
    attention_probs_dropout_prob=0.2,
  )


def fit(
  pretrained,
  folder,
  *,
  optimizer=AdamW,
  callbacks=(),
  every=2,
  texts=TEXTS,
  batch_size=4,
  eagerly=True,
):
  """The program of a user, as it is started again and again; returns the model."""
  keras.utils.set_random_seed(3)
  model = AlbertClassifier.from_pretrained(pretrained, label_names=["c0", "c1"])
  loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  model.compile(optimizer(3e-3), loss=loss, run_eagerly=eagerly)
  model.fit(
    texts,
    LABELS,
    batch_size=batch_size,
    epochs=3,
    validation_data=(TEXTS[:5], LABELS[:5]),
    verbose=0,
    callbacks=[
      StopOnSignal(),
      SaveState(folder / "state", every=every),
      KeepBest(folder / "best", monitor="val_loss"),
      *callbacks,
    ],
  )
  return model


@pytest.fixture(scope="module")
def finished(pretrained, tmp_path_factory):
  """The folder and the weights of a training without interruption."""
  folder = tmp_path_factory.mktemp("finished")
  return folder, fit(pretrained, folder).get_weights()


def assert_same_bits(model, weights):
  for ours, theirs in zip(model.get_weights(), weights, strict=True):
    np.testing.assert_array_equal(ours, theirs)


def killed(pretrained, folder, *, optimizer=AdamW, eagerly=True, **place):
  disturb = Disturb(kill, **place)
  with pytest.raises(Killed):
    fit(pretrained, folder, optimizer=optimizer, callbacks=[disturb], eagerly=eagerly)


@pytest.fixture(scope="module")
def interrupted(pretrained, tmp_path_factory):
  """The folder of a training that was killed within an epoch."""
  folder = tmp_path_factory.mktemp("interrupted")
  killed(pretrained, folder, update=5)
  return folder


def test_a_fit_killed_within_an_epoch_ends_with_the_same_bits(
  pretrained, interrupted, finished, tmp_path
):
  folder = shutil.copytree(interrupted, tmp_path / "fit")
  assert_same_bits(fit(pretrained, folder), finished[1])


@slow_by_default
def test_a_fit_killed_again_and_again_ends_with_the_same_bits(pretrained, tmp_path):
  """In graphs, as users train."""
  undisturbed = fit(pretrained, tmp_path / "undisturbed", eagerly=False)
  folder = tmp_path / "killed"
  killed(pretrained, folder, eagerly=False, update=1)  # Before the first state.
  killed(pretrained, folder, eagerly=False, update=5)  # Within an epoch; goes on from update 4.
  killed(pretrained, folder, eagerly=False, update=2)  # At update 6, the last of an epoch.
  killed(pretrained, folder, eagerly=False, evaluation=1)
  assert_same_bits(fit(pretrained, folder, eagerly=False), undisturbed.get_weights())


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [keras.optimizers.Adam, Muon])
def test_another_optimizer_continues_too(pretrained, tmp_path, optimizer):
  killed(pretrained, tmp_path / "killed", optimizer=optimizer, update=8)
  model = fit(pretrained, tmp_path / "killed", optimizer=optimizer)
  undisturbed = fit(pretrained, tmp_path / "undisturbed", optimizer=optimizer)
  assert_same_bits(model, undisturbed.get_weights())


@slow_by_default
def test_a_signal_saves_and_stops(pretrained, finished, tmp_path):
  """Within an epoch at once; at its last update after the evaluation, which belongs to it."""
  for updates, stops_at in ((EPOCH_UPDATES, EPOCH_UPDATES), (1, EPOCH_UPDATES + 1)):
    with pytest.raises(StoppedError, match=f" {stops_at}, saved"):
      fit(pretrained, tmp_path, callbacks=[Disturb(terminate, update=updates)], every=0)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
  assert_same_bits(fit(pretrained, tmp_path, every=0), finished[1])


def test_a_finished_fit_trains_nothing_and_has_its_best_weights(pretrained, finished):
  folder, weights = finished
  again = fit(pretrained, folder, callbacks=[Disturb(kill, update=1)])
  assert_same_bits(again, weights)


@pytest.mark.parametrize("changes", [{"texts": TEXTS[::-1]}, {"batch_size": 5}])
def test_a_state_of_other_examples_or_batches_is_refused(changes, pretrained, interrupted):
  with pytest.raises(UserError, match=f"Received: .*{interrupted}/state"):
    fit(pretrained, interrupted, **changes)


@pytest.fixture
def compiled(pretrained):
  model = AlbertClassifier.from_pretrained(pretrained, label_names=["c0", "c1"])
  loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  model.compile("adam", loss=loss, run_eagerly=True)  # Without a graph to trace.
  return model


def test_a_data_set_cannot_be_continued(compiled, tmp_path):
  dataset = tf.data.Dataset.from_tensor_slices((TEXTS, [0] * 11)).batch(4)
  with pytest.raises(UserError, match="Dataset"):
    compiled.fit(dataset, callbacks=[SaveState(tmp_path / "state")])


def test_the_best_needs_a_metric_that_is_measured(compiled, tmp_path):
  keep_best = KeepBest(tmp_path, monitor="val_accuracy")
  with pytest.raises(UserError, match="monitor='val_accuracy'"):
    compiled.fit(TEXTS, LABELS, batch_size=11, verbose=0, callbacks=[keep_best])


def test_another_model_of_keras_cannot_be_continued(tmp_path):
  plain = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
  plain.compile("adam", loss="mse")
  with pytest.raises(UserError, match=r"Sequential.*BackupAndRestore"):
    plain.fit(np.zeros([2, 1]), np.zeros([2, 1]), verbose=0, callbacks=[SaveState(tmp_path)])


def test_held_out_data_may_be_a_data_set_beside_lists(compiled):
  held_out = tf.data.Dataset.from_tensor_slices((TEXTS, [0] * 11)).batch(4)
  fitted = compiled.fit(TEXTS, [0] * 11, batch_size=8, verbose=0, validation_data=held_out)
  assert "val_loss" in fitted.history


def test_a_training_has_one_state(pretrained, tmp_path):
  model = AlbertClassifier.from_pretrained(pretrained, num_labels=2)
  model.compile("adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
  states = [SaveState(tmp_path / "a"), SaveState(tmp_path / "b")]
  with pytest.raises(UserError, match="2 SaveState"):
    model.fit(TEXTS, LABELS, callbacks=states)
