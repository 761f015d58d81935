"""Warm-up requests of an export, as servers replay them when they load it."""

from collections.abc import Callable, Mapping
import os
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf import files, records

EXTRA_DIR = "assets.extra"
WARMUP_NAME = "tf_serving_warmup_requests"
MAX_RECORDS = 1000  # More are refused by servers.


def warmup_path(directory: str) -> str:
  """Where servers look."""
  return os.path.join(directory, EXTRA_DIR, WARMUP_NAME)


def read_warmup(directory: str) -> list[Any]:
  """The PredictionLog of each record; an empty list where there is no file."""
  from tensorflow_serving.apis import prediction_log_pb2

  path = warmup_path(directory)
  if not files.exists(path):
    return []
  return [prediction_log_pb2.PredictionLog.FromString(record) for record in records.read_records(path)]


def replay(
  logs: list[Any],
  predict: Callable[[str, Mapping[str, np.ndarray]], Any],
  on_examples: Callable[[str, Any], Any],
) -> dict[str, int]:
  """Sends each request.

  Args:
    logs: of `read_warmup`.
    predict: called with a signature's name and the inputs of a Predict request.
    on_examples: called with "classify" or "regress" and the request.

  Returns:
    How many requests of each kind were sent.

  Raises:
    ValueError: a record of another kind.
  """
  counts: dict[str, int] = {}
  for log in logs:
    kind = log.WhichOneof("log_type")
    if kind == "predict_log":
      request = log.predict_log.request
      inputs = {name: tf.make_ndarray(proto) for name, proto in request.inputs.items()}
      predict(request.model_spec.signature_name, inputs)
    elif kind in ("classify_log", "regress_log"):
      on_examples(kind.removesuffix("_log"), getattr(log, kind).request)
    else:
      raise ValueError(f"a warm-up record of kind {kind}")
    counts[str(kind)] = counts.get(str(kind), 0) + 1
  return counts
