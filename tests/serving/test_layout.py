"""What lies in an export beside the graph: method names, warm-up requests, files for the server."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest
from reference.tiny_run import write_fine_tuned_run
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.finetuning.task_spec import TaskSpec
from albert_tf.records import read_records
from albert_tf.serving import export_saved_model
from albert_tf.serving.conformance.signatures import read_signatures
from albert_tf.serving.conformance.warmup import read_warmup, warmup_path
from albert_tf.serving.layout import docker_command, write_layout
from albert_tf.serving.warmup import BATCH_SIZES, prediction_log

TASK = TaskSpec(kind="classification", name="t", label_names=("no", "yes"), max_seq_length=16)


@pytest.fixture(scope="module")
def export(config, tokenizer, tmp_path_factory) -> pathlib.Path:
  folder = tmp_path_factory.mktemp("layout")
  write_fine_tuned_run(folder / "run", TASK, config, tokenizer)
  path = export_saved_model(
    model="classifier",
    init_checkpoint=str(folder / "run"),
    output_dir=str(folder / "e"),
    version=4,
    model_name="yes-no",
  )
  return pathlib.Path(path)


def test_warm_up_requests_are_of_every_signature(export: pathlib.Path) -> None:
  logs = read_warmup(str(export))
  signatures = read_signatures(str(export))
  assert len(logs) == len(signatures) * len(BATCH_SIZES)
  loaded = tf.saved_model.load(str(export))
  for log in logs:
    kind = log.WhichOneof("log_type")
    request = getattr(log, kind).request
    assert request.model_spec.name == "yes-no"
    name = request.model_spec.signature_name
    if kind == "classify_log":
      examples = [example.SerializeToString() for example in request.input.example_list.examples]
      inputs = {"inputs": tf.constant(examples)}
      assert signatures[name].method == "tensorflow/serving/classify"
    else:
      inputs = {key: tf.constant(tf.make_ndarray(proto)) for key, proto in request.inputs.items()}
    outputs = loaded.signatures[name](**inputs)
    assert all(len(output) in BATCH_SIZES for output in outputs.values())


def test_the_wire_format_is_that_of_the_published_messages() -> None:
  from tensorflow_serving.apis import prediction_log_pb2

  inputs = {"text": np.array([b"x" * 300, b""], object), "ids": np.arange(6, dtype=np.int32).reshape(2, 3)}
  written = prediction_log("m", "s", "tensorflow/serving/predict", inputs)
  log = prediction_log_pb2.PredictionLog()
  request = log.predict_log.request
  request.model_spec.name, request.model_spec.signature_name = "m", "s"
  for name, array in inputs.items():
    request.inputs[name].CopyFrom(tf.make_tensor_proto(array))
  assert prediction_log_pb2.PredictionLog.FromString(written) == log
  example = tf.train.Example()
  example.features.feature["text"].bytes_list.value.append(b"a")
  for method in ("classify", "regress"):
    written = prediction_log(
      "m", "s", f"tensorflow/serving/{method}", {"inputs": np.array([example.SerializeToString()], object)}
    )
    log = prediction_log_pb2.PredictionLog.FromString(written)
    request = getattr(log, f"{method}_log").request
    assert list(request.input.example_list.examples) == [example]


@pytest.mark.slow
def test_an_export_needs_no_package_of_the_server() -> None:
  program = (
    "import sys; sys.modules['tensorflow_serving'] = None; sys.modules['grpc'] = None;"
    "import albert_tf.serving, albert_tf.serving.warmup, albert_tf.serving.layout"
  )
  subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


def test_files_for_the_server(export: pathlib.Path) -> None:
  folder = export.parent
  assert sorted(path.name for path in folder.iterdir()) == [
    "4",
    "README.md",
    "batching_parameters.txt",
    "models.config",
  ]
  assert 'name: "yes-no"' in (folder / "models.config").read_text()
  assert 'base_path: "/models/yes-no"' in (folder / "models.config").read_text()
  guide = (folder / "README.md").read_text()
  assert 'docker run --rm -p 8500:8500 -p 8501:8501 -v "$PWD:/models/yes-no:ro"' in guide
  assert "| `examples` | classify | `inputs` | `classes`, `scores` |" in guide
  assert "localhost:8501/v1/models/yes-no:classify" in guide
  assert f'-v "{folder}:/models/yes-no:ro"' in docker_command(str(folder), model_name="yes-no")
  # A second version leaves what a person may have changed.
  (folder / "batching_parameters.txt").write_text("mine")
  write_layout(str(folder), model_name="yes-no", version_dir=str(export))
  assert (folder / "batching_parameters.txt").read_text() == "mine"


def test_the_same_run_gives_the_same_requests(export: pathlib.Path) -> None:
  from albert_tf.serving.warmup import write_warmup

  before = list(read_records(warmup_path(str(export))))
  write_warmup(str(export), model_name="yes-no")
  assert list(read_records(warmup_path(str(export)))) == before


def test_fingerprint_is_of_the_rewritten_graph(export: pathlib.Path, tmp_path: pathlib.Path) -> None:
  from tensorflow.python.saved_model import fingerprinting_utils

  before = (export / "fingerprint.pb").read_bytes()
  fields = tf.saved_model.experimental.read_fingerprint(str(export))
  fingerprinting_utils.write_fingerprint(str(export))
  again = tf.saved_model.experimental.read_fingerprint(str(export))
  (export / "fingerprint.pb").write_bytes(before)
  assert fields.signature_def_hash == again.signature_def_hash
  assert fields.saved_model_checksum == again.saved_model_checksum


def test_a_name_must_fit_into_a_url(run_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
  with pytest.raises(UserError, match="model_name is part of a URL"):
    export_saved_model(
      model="encoder", init_checkpoint=str(run_dir), output_dir=str(tmp_path / "e"), model_name="a/b"
    )
  assert not (tmp_path / "e").exists()
