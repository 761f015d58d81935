"""Data sets without the thread by which TensorFlow tunes their parallelism while they are read.

An iterator that is dropped waits for that thread, with all of Python. It sleeps for up to a minute, and where few
cores are it often misses the one signal to end: CancellationManager calls it before it is "cancelled".
`benchmarks/dropped_iterators.py` shows how often, and how long.
"""

from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import multi_device_iterator_ops


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
  """The same elements; every `num_parallel_calls` and `prefetch` in it must be a number."""
  options = tf.data.Options()
  options.autotune.enabled = False
  return dataset.with_options(options)


# A strategy reads through a further data set of each replica, which takes no options from anywhere. So importing this
# module leaves the tuning out of every strategy's input in the process; that data set has nothing that could be tuned.
of_replica: Any = getattr(multi_device_iterator_ops, "_create_device_dataset", None)


def _untuned_of_replica(*args: Any, **kwargs: Any) -> tf.data.Dataset:
  return untuned(of_replica(*args, **kwargs))


if of_replica is not None:  # Private to TensorFlow: 2.15 to 2.21 have it.
  multi_device_iterator_ops._create_device_dataset = _untuned_of_replica
