"""A `fit` of a Keras user that is killed or stopped continues to the bits of an undisturbed one."""

import os
import signal

import keras
import numpy as np
import pytest
from support import tiny_run
from support.tiny_finetuning import made_up_texts
import tensorflow as tf

from albert_tf import AdamW, AlbertClassifier, KeepBest, SaveState, StopOnSignal
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
    hidden_dropout_prob=0.2,
    attention_probs_dropout_prob=0.2,
  )


def fit(pretrained, folder, *, optimizer=AdamW, callbacks=(), every=2, texts=TEXTS, batch_size=4):
  """The program of a user, as it is started again and again; returns the model."""
  keras.utils.set_random_seed(3)
  model = AlbertClassifier.from_pretrained(pretrained, label_names=["c0", "c1"])
  loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  model.compile(optimizer(3e-3), loss=loss)
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
def undisturbed(pretrained, tmp_path_factory):
  """The weights of trainings without interruption, by optimizer."""
  return {
    optimizer: fit(pretrained, tmp_path_factory.mktemp("run"), optimizer=optimizer).get_weights()
    for optimizer in (AdamW, keras.optimizers.Adam)
  }


def assert_same_bits(model, weights):
  for ours, theirs in zip(model.get_weights(), weights, strict=True):
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("place", [{"update": 1}, {"update": 5}, {"update": 6}, {"evaluation": 2}])
def test_a_killed_fit_ends_with_the_same_bits(place, pretrained, undisturbed, tmp_path):
  """Killed before the first state, within an epoch, at its last update, and in its evaluation."""
  with pytest.raises(Killed):
    fit(pretrained, tmp_path, callbacks=[Disturb(kill, **place)])
  assert_same_bits(fit(pretrained, tmp_path), undisturbed[AdamW])


def test_an_optimizer_of_keras_continues_too(pretrained, undisturbed, tmp_path):
  optimizer = keras.optimizers.Adam
  with pytest.raises(Killed):
    fit(pretrained, tmp_path, optimizer=optimizer, callbacks=[Disturb(kill, update=8)])
  model = fit(pretrained, tmp_path, optimizer=optimizer)
  assert_same_bits(model, undisturbed[optimizer])


@pytest.mark.parametrize("update", [4, EPOCH_UPDATES])
def test_a_signal_saves_and_stops(update, pretrained, undisturbed, tmp_path):
  """Within an epoch at once; at its last update after the evaluation, which belongs to it."""
  with pytest.raises(StoppedError, match=f"update {update}, saved"):
    fit(pretrained, tmp_path, callbacks=[Disturb(terminate, update=update)], every=0)
  assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
  assert_same_bits(fit(pretrained, tmp_path, every=0), undisturbed[AdamW])


def test_a_finished_fit_trains_nothing_and_has_its_best_weights(pretrained, undisturbed, tmp_path):
  fit(pretrained, tmp_path)
  again = fit(pretrained, tmp_path, callbacks=[Disturb(kill, update=1)])
  assert_same_bits(again, undisturbed[AdamW])


@pytest.mark.parametrize("changes", [{"texts": TEXTS[::-1]}, {"batch_size": 5}])
def test_a_state_of_other_examples_or_batches_is_refused(changes, pretrained, tmp_path):
  with pytest.raises(Killed):
    fit(pretrained, tmp_path, callbacks=[Disturb(kill, update=5)])
  with pytest.raises(UserError, match=r"state.*another directory"):
    fit(pretrained, tmp_path, **changes)


def test_what_cannot_continue_or_be_the_best_is_refused(pretrained, tmp_path):
  model = AlbertClassifier.from_pretrained(pretrained, label_names=["c0", "c1"])
  model.compile("adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
  dataset = tf.data.Dataset.from_tensor_slices((TEXTS, [0] * 11)).batch(4)
  with pytest.raises(UserError, match="Dataset"):
    model.fit(dataset, callbacks=[SaveState(tmp_path / "state")])
  with pytest.raises(UserError, match="monitor='val_accuracy'"):
    model.fit(TEXTS, LABELS, verbose=0, callbacks=[KeepBest(tmp_path, monitor="val_accuracy")])
  plain = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
  plain.compile("adam", loss="mse")
  with pytest.raises(UserError, match=r"Sequential.*BackupAndRestore"):
    plain.fit(np.zeros([2, 1]), np.zeros([2, 1]), verbose=0, callbacks=[SaveState(tmp_path)])


def test_held_out_data_may_be_a_data_set_beside_lists(pretrained):
  model = AlbertClassifier.from_pretrained(pretrained, num_labels=2)
  model.compile("adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
  held_out = tf.data.Dataset.from_tensor_slices((TEXTS, [0] * 11)).batch(4)
  fitted = model.fit(TEXTS, [0] * 11, batch_size=8, verbose=0, validation_data=held_out)
  assert "val_loss" in fitted.history


def test_a_training_has_one_state(pretrained, tmp_path):
  model = AlbertClassifier.from_pretrained(pretrained, num_labels=2)
  model.compile("adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
  states = [SaveState(tmp_path / "a"), SaveState(tmp_path / "b")]
  with pytest.raises(UserError, match="2 SaveState"):
    model.fit(TEXTS, LABELS, callbacks=states)
