"""Callbacks of `fit`: the best weights, the state of a training that continues, stopping on a signal.

The fine-tuning commands use them as they are.
"""

from collections.abc import Mapping
import contextlib
import math
import os
from typing import Any, Literal
import zlib

from absl import logging
import keras
import numpy as np

from albert_tf import files, json_files
from albert_tf.checkpoints.bundle import checkpoint_steps, read_bundle
from albert_tf.compat import optimizer_variables, raw_variable, updates_made
from albert_tf.errors import StoppedError, UserError
from albert_tf.modeling import named_variables
from albert_tf.runs.checkpoint_store import CheckpointStore
from albert_tf.runs.interruption import stop_on_signal

_BEST_FILE = "best.json"  # Beside the weights: their update, and the metric with them.


class KeepBest(keras.callbacks.Callback):
  """Keeps the weights with the best value of a metric, on the disk and at the end in the model.

  A training that continues with `SaveState` knows the best weights of before. Of equal values the
  first is kept. `from_pretrained` reads a folder with a configuration: after `fit` call
  `model.save_pretrained`, which writes the best weights.

  Args:
    directory: for the weights, a TensorFlow checkpoint with the original release's names.
    monitor: name of the metric in Keras' logs, such as "val_accuracy". Those with "val_" need
      `validation_data` or `validation_split`.
    mode: whether the largest or the smallest value is the best. Default: "min" for names that end
      in "loss", else "max".

  Attributes:
    best_step: updates of the best weights; 0 before the first evaluation.
    best_value: the metric with them.

  Raises:
    UserError: after an epoch, the logs lack the metric, or it is not finite.
  """

  def __init__(
    self,
    directory: files.Path,
    *,
    monitor: str = "val_loss",
    mode: Literal["min", "max"] | None = None,
  ):
    super().__init__()
    self._directory = files.text_of(directory)
    self._path = os.path.join(self._directory, _BEST_FILE)
    self._monitor = monitor
    smallest_is_best = mode == "min" or (mode is None and monitor.endswith("loss"))
    self._sign = -1.0 if smallest_is_best else 1.0
    self._best: Mapping[str, np.ndarray] = {}
    self.best_step = 0
    self.best_value = math.nan

  def on_train_begin(self, logs: Any = None) -> None:
    self._weights = named_variables(self.model)
    step = raw_variable(self.model.optimizer.iterations)
    self._store = CheckpointStore(self._directory, self._weights | {"global_step": step}, keep=1)
    found = json_files.find(self._path)
    # Weights of an earlier training are none of ours.
    if updates_made(self.model.optimizer) > 0 and found and self._store.last:
      # A killed process may have kept newer weights without a word: they are found again.
      self._best = read_bundle(self._store.last)
      self.best_step = found["step"]
      self.best_value = found["value"]

  def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
    if self._monitor not in logs:
      raise UserError(
        f"KeepBest reads a metric of Keras' logs. Received: monitor={self._monitor!r}, and logs of "
        f"{', '.join(logs)}. Name one of these, and give fit validation_data for those with val_."
      )
    value = float(logs[self._monitor])
    if not math.isfinite(value):
      raise UserError(
        f"Losses and metrics must stay finite. Received: {self._monitor}={value} in epoch "
        f"{epoch + 1}. Lower the learning rate, or lengthen the warm-up."
      )
    if self.best_step and self._sign * value <= self._sign * self.best_value:
      return
    self.best_step = updates_made(self.model.optimizer)
    self.best_value = value
    self._best = {name: variable.numpy() for name, variable in self._weights.items()}
    self._store.save(self.best_step)
    self._store.wait()
    json_files.write(self._path, {"step": self.best_step, "value": value})

  def on_train_end(self, logs: Any = None) -> None:
    for name, variable in self._weights.items():
      if name in self._best:
        variable.assign(self._best[name])


class SaveState(keras.callbacks.Callback):
  """Saves the state of a training after each epoch, so that the same program continues after a kill.

  `fit` restores the newest state. The training then ends with exactly the weights of one that was
  never interrupted. It needs texts or arrays, and not a data set, whose order is not known. State of
  other callbacks, such as the patience of `EarlyStopping`, is not saved.

  A learning rate that is a number comes from the state, whatever `compile` was given; a schedule is
  that of `compile`.

  Args:
    directory: for the state, three times the size of the weights; the newest state alone is kept.
      To begin anew, give another or remove it.
    every: updates between two more states within an epoch; 0: none.

  Raises:
    UserError: in `fit`, the state is damaged, or of other data, batch sizes, or variables of model
      and optimizer.

  Example:
    >>> callbacks = [KeepBest("run/best"), SaveState("run/state"), StopOnSignal()]
    >>> model.fit(texts, labels, validation_data=(more_texts, more_labels), callbacks=callbacks)
  """

  def __init__(self, directory: files.Path, *, every: int = 0):
    super().__init__()
    self._directory = files.text_of(directory)
    self._every = every
    self._store: Any = None  # `begin` makes it.
    self.step = 0  # Updates made.

  @property
  def saved_step(self) -> int:
    """Updates of the newest state on the disk; 0 if there is none."""
    return max(checkpoint_steps(self._directory), default=0)

  def begin(self, model: Any, seed: int, first_step: int, content: str) -> tuple[int, int]:
    """Restores the newest state into the model, if there is one; `fit` calls it.

    Args:
      model: the compiled model.
      seed, first_step: of a training that begins.
      content: what orders the updates beside the seed: the examples, and the sizes of batches.

    Returns:
      The seed of the order, and the number of updates made.

    Raises:
      UserError: the state is damaged, of another model, or of another content.
    """
    # Now, because Keras would make the optimizer's variables only in the first update.
    with model.distribute_strategy.scope():
      model.optimizer.build(model.trainable_variables)
    variables = named_variables(model) | optimizer_variables(model.optimizer)
    self._store = CheckpointStore(self._directory, variables, keep=1)
    restored = self._store.restore_latest()
    self._store.tidy()
    self._seed = seed
    self._content = zlib.crc32(content.encode())
    self.step = first_step
    self._saved_step = -1
    if restored:
      if int(restored["content"]) != self._content:
        raise UserError(
          "SaveState continues a training of the same examples and batches. Received: "
          f"{self._directory}, of other texts, labels, weights, batch_size, steps_per_epoch or "
          "shuffle. Give the same, or another directory."
        )
      self._seed = int(restored["seed"])
      self.step = self._saved_step = int(restored["updates"])
      logging.info("continuing from update %d", self.step)
    return self._seed, self.step

  def on_train_begin(self, logs: Any = None) -> None:
    if self._store is None:
      raise UserError(
        "SaveState is for models of albert_tf, whose `fit` restores it. Received: "
        f"{type(self.model).__name__}. Use keras.callbacks.BackupAndRestore."
      )

  def save(self) -> None:
    """Saves the state of the last update, unless it is saved."""
    if self.step != self._saved_step:
      self._store.save(self.step, updates=self.step, seed=self._seed, content=self._content)
      self._store.wait()
      self._saved_step = self.step

  def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
    self._epoch_first_step = self.step

  def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
    # Keras calls once for several updates where `steps_per_execution` is above 1.
    self.step = self._epoch_first_step + batch + 1
    # The evaluation after an epoch belongs to its state.
    if self._every and self.step % self._every == 0 and not is_last_of_epoch(self, batch):
      self.save()

  def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
    self.save()


class StopOnSignal(keras.callbacks.Callback):
  """Ends `fit` after the update in which SIGTERM, SIGHUP or Control-C arrives.

  With `SaveState` the state is saved, and the same program continues. `fit` raises `StoppedError`.
  A second Control-C ends it without saving. Outside the main thread signals do not arrive, and it
  does nothing.
  """

  def __init__(self) -> None:
    super().__init__()
    self._handlers = contextlib.ExitStack()

  def on_train_begin(self, logs: Any = None) -> None:
    self._request = self._handlers.enter_context(stop_on_signal())

  def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
    # What follows the last update of an epoch is part of it.
    if self._request.is_set() and not is_last_of_epoch(self, batch):
      raise StoppedError

  def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
    if self._request.is_set():
      raise StoppedError

  def close(self) -> None:
    """Gives the signals back; `fit` calls it at its end, after an error too."""
    self._handlers.close()


class ShortEpoch(keras.callbacks.Callback):
  """Ends the first epoch of a continued training where the interrupted one would have ended.

      # 4 updates an epoch, continued after update 6: the first epoch has the updates 7 and 8.

  It comes first, so that it takes back its own wish to stop before others have theirs.
  """

  def __init__(self, num_updates: int):
    super().__init__()
    self._num_updates = num_updates
    self._has_stopped = False

  def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
    if batch + 1 == self._num_updates:
      self._has_stopped = True
      self.model.stop_training = True

  def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
    if self._has_stopped:
      self.model.stop_training = False
    # Later epochs are whole.
    self._num_updates = 0
    self._has_stopped = False


def is_last_of_epoch(callback: keras.callbacks.Callback, batch: int) -> bool:
  """Whether Keras ends its epoch after this batch."""
  return callback.model.stop_training or batch + 1 == callback.params["steps"]


def callbacks_in_order(callbacks: Any) -> list[Any]:
  """The callbacks of a `fit` as a list: a state is saved after the others, and then comes the end."""
  callbacks = list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]

  def place(callback: Any) -> int:
    return isinstance(callback, SaveState) + 2 * isinstance(callback, StopOnSignal)

  return sorted(filter(None, callbacks), key=place)
