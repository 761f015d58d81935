"""Warm-up requests, which a server answers before it takes a model into use (with tensorflow-serving-api alone)."""

import os

import numpy as np
import tensorflow as tf

from albert_tf import files
from albert_tf.records import TFRecordWriter
from albert_tf.serving.golden import make_inputs
from albert_tf.serving.saved_model import CLASSIFY, EXTRA_DIR, PREDICT, read_signatures

WARMUP_NAME = "tf_serving_warmup_requests"
BATCH_SIZES = (1, 8, 32)


def write_warmup(directory: str, *, model_name: str) -> None:
  """Writes `assets.extra/tf_serving_warmup_requests` of an export: each signature with each of `BATCH_SIZES`.

  Without the package that defines the messages nothing is written: the first requests of each size are slower then.
  """
  try:
    from tensorflow_serving.apis import prediction_log_pb2
  except ImportError:
    return
  signatures = read_signatures(directory)
  with files.atomic_writer(os.path.join(directory, EXTRA_DIR, WARMUP_NAME)) as stream:
    writer = TFRecordWriter(stream)
    for name, signature in signatures.items():
      inputs = make_inputs(signature, signatures)
      for size in BATCH_SIZES:
        batch = {key: array[np.arange(size) % len(array)] for key, array in inputs.items()}
        log = prediction_log_pb2.PredictionLog()
        if signature.method == PREDICT:
          request = log.predict_log.request
          for key, array in batch.items():
            request.inputs[key].CopyFrom(tf.make_tensor_proto(array, shape=array.shape))
        else:
          request = (log.classify_log if signature.method == CLASSIFY else log.regress_log).request
          examples = map(tf.train.Example.FromString, batch["inputs"])
          request.input.example_list.examples.extend(examples)
        request.model_spec.name, request.model_spec.signature_name = model_name, name
        writer.write(log.SerializeToString(deterministic=True))
