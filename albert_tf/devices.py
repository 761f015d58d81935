"""Which kind of device computes a model: what formulations, precisions and batches are chosen by."""

import tensorflow as tf


def device_kind(strategy: tf.distribute.Strategy | None = None) -> str:
  """Where a strategy computes, by default the one whose scope this is: "tpu", "gpu" or "cpu"."""
  if isinstance(strategy or tf.distribute.get_strategy(), tf.distribute.TPUStrategy):
    return "tpu"
  return "gpu" if tf.config.get_visible_devices("GPU") else "cpu"
