"""Warm-up requests of an export, which a server answers before it takes the model into use."""

import pathlib

import pytest
import tensorflow as tf

from albert_tf.records import read_records
from albert_tf.serving.saved_model import EXTRA_DIR, read_signatures
from albert_tf.serving.warmup import BATCH_SIZES, WARMUP_NAME


def test_warm_up_requests_are_of_every_signature(exported) -> None:
  prediction_log_pb2 = pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2")
  export, session = pathlib.Path(exported("pair").path), exported("pair").session
  seen = []
  for record in read_records(str(export / EXTRA_DIR / WARMUP_NAME)):
    request = prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
    inputs = {name: tf.make_ndarray(proto) for name, proto in request.inputs.items()}
    name, rows = request.model_spec.signature_name, len(next(iter(inputs.values())))
    assert all(len(output) == rows for output in session.run(name, inputs).values())
    seen.append((name, rows))
  assert seen == [(name, size) for name in read_signatures(str(export)) for size in BATCH_SIZES]
