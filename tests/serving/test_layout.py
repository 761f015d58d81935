"""What lies in an export beside the graph: method names, warm-up requests, files for the server."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.records import read_records
from albert_tf.serving.layout import docker_command, write_layout
from albert_tf.serving.saved_model import EXTRA_DIR, read_signatures
from albert_tf.serving.warmup import BATCH_SIZES, WARMUP_NAME


def test_warm_up_requests_are_of_every_signature(exported) -> None:
  prediction_log_pb2 = pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2")
  export = pathlib.Path(exported("pair").path)
  signatures, session = read_signatures(str(export)), exported("pair").session
  seen = []
  for record in read_records(str(export / EXTRA_DIR / WARMUP_NAME)):
    log = prediction_log_pb2.PredictionLog.FromString(record)
    method = log.WhichOneof("log_type")
    request = getattr(log, method).request
    if method == "predict_log":
      inputs = {name: tf.make_ndarray(proto) for name, proto in request.inputs.items()}
    else:
      examples = [example.SerializeToString() for example in request.input.example_list.examples]
      inputs = {"inputs": np.array(examples, object)}
    name = request.model_spec.signature_name
    rows = len(next(iter(inputs.values())))
    assert all(len(output) == rows for output in session.run(name, inputs).values())
    assert signatures[name].method.endswith(method.removesuffix("_log"))
    assert request.model_spec.name == "classifier"
    seen.append((name, rows))
  assert seen == [(name, size) for name in signatures for size in BATCH_SIZES]


def test_files_for_the_server_are_written_once(exported, tmp_path: pathlib.Path) -> None:
  export = exported("choice").path
  (tmp_path / "models.config").write_text("mine")
  write_layout(str(tmp_path), model_name="m", version_dir=export)
  assert (tmp_path / "models.config").read_text() == "mine"
  guide = (tmp_path / "README.md").read_text()
  assert docker_command(model_name="m") in guide
  assert "| `serving_default` | predict | `choices`, `context`, `question` |" in guide
  assert '"choices": [["Paris", "the old trees", "the sea", "the grass"]]' in guide
  written = (pathlib.Path(export).parent / "models.config").read_text()
  assert 'base_path: "/models/multiple_choice"' in written
