"""What it costs to drop an iterator that has been read for a while, with and without TensorFlow's tuning thread.

Prints one JSON line: for each side how many drops took over a second, and the longest, in seconds. The claim: none,
of what `untuned` makes. Reading takes --seconds for all iterators of a side together; a waiting drop takes up to a
minute, so all of it may take half an hour.

Example:
  python benchmarks/dropped_iterators.py --iterators=12 --seconds=6
"""

from collections.abc import Callable, Iterator
import gc
import time
from typing import Any
from unittest import mock

from absl import flags
import common
import tensorflow as tf
from tensorflow.python.data.ops import multi_device_iterator_ops

from albert_tf.pipelines import untuned

_ITERATORS = flags.DEFINE_integer("iterators", 12, "Iterators of each side.", lower_bound=1)
_SECONDS = flags.DEFINE_float("seconds", 6.0, "How long those of a side are read, together.", lower_bound=0.0)


def tuned(strategy: tf.distribute.Strategy) -> Iterator[Any]:
  """As TensorFlow's guide has it."""
  dataset = tf.data.Dataset.range(10**9).map(lambda x: x + 1, num_parallel_calls=tf.data.AUTOTUNE)
  dataset = dataset.prefetch(tf.data.AUTOTUNE)
  with mock.patch.object(multi_device_iterator_ops, "_create_device_dataset", untuned.of_replica):
    return iter(strategy.distribute_datasets_from_function(lambda _: dataset))


def ours(strategy: tf.distribute.Strategy) -> Iterator[Any]:
  dataset = tf.data.Dataset.range(10**9).map(lambda x: x + 1, num_parallel_calls=2).prefetch(2)
  return iter(strategy.distribute_datasets_from_function(lambda _: untuned.untuned(dataset)))


def drops(
  make: Callable[[tf.distribute.Strategy], Any], strategy: tf.distribute.Strategy
) -> dict[str, float]:
  iterators = [make(strategy) for _ in range(_ITERATORS.value)]
  end = time.perf_counter() + _SECONDS.value
  while time.perf_counter() < end:
    for iterator in iterators:
      next(iterator)
  del iterator
  waits = []
  while iterators:
    begin = time.perf_counter()
    iterators.pop()
    gc.collect()
    waits.append(time.perf_counter() - begin)
  return {
    "drops": len(waits),
    "over_a_second": sum(wait > 1 for wait in waits),
    "longest_s": round(max(waits), 2),
  }


def benchmark() -> dict[str, Any]:
  cpu = tf.config.list_physical_devices("CPU")[0]
  tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
  strategies = {
    "one device": tf.distribute.OneDeviceStrategy("cpu:0"),
    "two replicas": tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"]),
  }
  sides = {"tuned": tuned, "ours": ours}
  return {
    name: {side: drops(make, strategy) for side, make in sides.items()}
    for name, strategy in strategies.items()
  }


if __name__ == "__main__":
  common.run(benchmark)
