"""Answers of a model to examples: rows of similar length share a batch, and all keep their order.

`predict` and `predict_early` of the models use it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.keras_api.batches import Batching, make_dataset, plan_by_length, shared_out
from albert_tf.keras_api.examples import Examples
from albert_tf.pipelines.batches import iterators_without_autotune


class Predictor:
  """Computes the outputs of a model for examples, on all its replicas.

  Args:
    model: decides the devices.
    compute: from the inputs of a batch to nested tensors, each `[B, …]`.
  """

  def __init__(self, model: Any, compute: Callable[[Mapping[str, tf.Tensor]], Any]):
    self._model = model

    def step(x: Mapping[str, tf.Tensor]) -> Any:
      return model.distribute_strategy.run(compute, args=(x,))

    self._eager_step = step
    self._traced_step = tf.function(step, autograph=False, reduce_retracing=True)

  def _step(self, x: Mapping[str, tf.Tensor]) -> Any:
    step = self._eager_step if self._model.run_eagerly else self._traced_step
    return step(x)

  def __call__(
    self,
    examples: Examples,
    *,
    batch_size: int | None,
    callbacks: Any = None,
    verbose: int = 0,
  ) -> Any:
    """The outputs for all rows, in their order; rows of similar length share a batch.

    Returns:
      The structure of `compute`'s result. A leaf is an array `[n, …]`, or a list of n arrays where
      the outputs of different batches have different shapes.
    """
    strategy = self._model.distribute_strategy
    batching = Batching.of(self._model, examples, batch_size)
    plan = plan_by_length(examples.lengths, batching)
    with iterators_without_autotune():
      dataset = make_dataset(strategy, Examples(examples.inputs), plan, batching)
      iterator = iter(dataset)
    reports = keras.callbacks.CallbackList(
      callbacks,
      add_progbar=verbose != 0,
      model=self._model,
      verbose=verbose,
      epochs=1,
      steps=len(plan),
    )
    collected = _Collected(strategy)
    reports.on_predict_begin()
    # To the end of the batches: TensorFlow 2.21 crashes where a distributed iterator is dropped
    # that still reads ahead.
    for number, ((x,), rows) in enumerate(zip(iterator, plan, strict=True)):
      reports.on_predict_batch_begin(number)
      # Without the rows that fill up a replica's part.
      counts = [len(part) for part in shared_out(rows, batching)]
      collected.add(self._step(x), counts)
      reports.on_predict_batch_end(number)
    reports.on_predict_end()
    return collected.outputs(np.concatenate(plan))

  def of_batches(self, batches: Iterable[Mapping[str, Any]]) -> Any:
    """The same for batches of someone else, one after the other."""
    collected = _Collected(self._model.distribute_strategy)
    num_rows = 0
    for x in batches:
      num_rows += len(x["input_ids"])
      collected.add(self._step(x), None)
    if not num_rows:
      raise UserError("There must be at least one batch. Received: none. Leave the call out.")
    return collected.outputs(np.arange(num_rows))


class _Collected:
  """The outputs of batches, as far as they are computed.

  A batch is fetched when the next one has been started, so that an accelerator need not wait.
  """

  def __init__(self, strategy: tf.distribute.Strategy):
    self._strategy = strategy
    self._structure: Any = None
    self._batches: list[list[np.ndarray]] = []  # Of each output.
    self._started: tuple[list[Any], Sequence[int] | None] | None = None

  def add(self, outputs: Any, counts: Sequence[int] | None) -> None:
    """Adds a batch; `counts` are the rows of each replica that are real, None for all."""
    self._structure = outputs
    self._fetch()
    self._started = (tf.nest.flatten(outputs), counts)

  def _fetch(self) -> None:
    """Waits for the batch that was started."""
    if self._started is None:
      return
    leaves, counts = self._started
    self._started = None
    self._batches = self._batches or [[] for _ in leaves]
    for batches, leaf in zip(self._batches, leaves, strict=True):
      parts = [np.asarray(part) for part in self._strategy.experimental_local_results(leaf)]
      if counts is not None:
        parts = [part[:count] for part, count in zip(parts, counts, strict=True)]
      batches.append(np.concatenate(parts))

  def outputs(self, order: np.ndarray) -> Any:
    """All outputs; row i of the batches is the example `order[i]`."""
    self._fetch()
    leaves = [_in_order(batches, order) for batches in self._batches]
    return tf.nest.pack_sequence_as(self._structure, leaves)


def _in_order(batches: Sequence[np.ndarray], order: np.ndarray) -> Any:
  """The rows of all batches in the order of the examples: an array, or a list where shapes differ."""
  if len({batch.shape[1:] for batch in batches}) == 1:
    joined = np.concatenate(batches)
    in_order = np.empty_like(joined)
    in_order[order] = joined
    return in_order
  rows: list[Any] = [None] * len(order)
  numbers = iter(order.tolist())
  for batch in batches:
    for row in batch:
      rows[next(numbers)] = row
  return rows


def padded_outputs(outputs: Any, fill: float) -> Any:
  """Outputs of a `Predictor` as arrays: rows of different shapes are padded to the largest."""
  if isinstance(outputs, Mapping):
    return {name: padded_outputs(output, fill) for name, output in outputs.items()}
  if isinstance(outputs, tuple):
    return tuple(padded_outputs(output, fill) for output in outputs)
  if isinstance(outputs, np.ndarray):
    return outputs
  largest = np.max([row.shape for row in outputs], axis=0)
  padded = np.full([len(outputs), *largest], fill, outputs[0].dtype)
  for target, row in zip(padded, outputs, strict=True):
    target[tuple(map(slice, row.shape))] = row
  return padded
