"""Warm-up requests, which a server answers before it takes a model into use (with tensorflow-serving-api alone)."""

import os

import numpy as np
import tensorflow as tf

from albert_tf import files
from albert_tf.records import TFRecordWriter
from albert_tf.serving.golden import make_inputs
from albert_tf.serving.saved_model import EXTRA_DIR, read_signatures

WARMUP_NAME = "tf_serving_warmup_requests"
BATCH_SIZES = (1, 8, 32)


def write_warmup(directory: str) -> None:
  """Writes `assets.extra/tf_serving_warmup_requests` of an export: each signature with each of `BATCH_SIZES`.

  Without the package that defines the messages nothing is written: the first requests of each size are slower then.
  """
  try:
    from tensorflow_serving.apis import prediction_log_pb2
  except ImportError:
    return
  with files.atomic_writer(os.path.join(directory, EXTRA_DIR, WARMUP_NAME)) as stream:
    writer = TFRecordWriter(stream)
    for name, signature in read_signatures(directory).items():
      inputs = make_inputs(signature)
      for size in BATCH_SIZES:
        log = prediction_log_pb2.PredictionLog()
        request = log.predict_log.request
        request.model_spec.signature_name = name
        for key, array in inputs.items():
          rows = array[np.arange(size) % len(array)]
          request.inputs[key].CopyFrom(tf.make_tensor_proto(rows, shape=rows.shape))
        writer.write(log.SerializeToString(deterministic=True))
