"""What lies in an export beside the graph: method names, warm-up requests, files for the server."""

import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
from support.tiny_run import write_fine_tuned_run
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

from albert_tf.configs import AlbertConfig
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.records import read_records
from albert_tf.serving import export_saved_model
from albert_tf.serving.layout import MAX_BATCH_SIZE, docker_command, needs_equal_sizes, write_layout
from albert_tf.serving.saved_model import EXTRA_DIR, Signature, read_signatures
from albert_tf.serving.warmup import BATCH_SIZES, WARMUP_NAME, prediction_log, read_warmup, write_warmup

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
  calls, signatures = read_warmup(str(export)), read_signatures(str(export))
  assert len(calls) == len(signatures) * len(BATCH_SIZES)
  loaded = tf.saved_model.load(str(export))
  for call in calls:
    outputs = loaded.signatures[call.signature](**{key: tf.constant(a) for key, a in call.inputs.items()})
    assert all(len(output) == call.num_rows in BATCH_SIZES for output in outputs.values())
  methods = {"classify_log": 0, "predict_log": 0}
  for record in read_records(str(export / EXTRA_DIR / WARMUP_NAME)):
    log = prediction_log_pb2.PredictionLog.FromString(record)
    methods[log.WhichOneof("log_type")] += 1
    spec = getattr(log, log.WhichOneof("log_type")).request.model_spec
    assert (spec.name, spec.signature_name in signatures) == ("yes-no", True)
  assert methods == {"classify_log": 3, "predict_log": 6}


def test_the_wire_format_is_that_of_the_published_messages() -> None:
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
  command = docker_command(str(folder), model_name="yes-no", signatures=read_signatures(str(export)))
  assert f'-v "{folder}:/models/yes-no:ro"' in command
  # A second version leaves what a person may have changed.
  (folder / "batching_parameters.txt").write_text("mine")
  write_layout(str(folder), model_name="yes-no", version_dir=str(export))
  assert (folder / "batching_parameters.txt").read_text() == "mine"


def test_the_same_run_gives_the_same_requests(export: pathlib.Path) -> None:
  before = list(read_records(str(export / EXTRA_DIR / WARMUP_NAME)))
  write_warmup(str(export), model_name="yes-no")
  assert list(read_records(str(export / EXTRA_DIR / WARMUP_NAME))) == before


def test_a_batch_fits_a_usual_machine_and_what_was_warmed_up() -> None:
  base = AlbertConfig.from_name("base_v2")
  scores = 4 * MAX_BATCH_SIZE * base.num_attention_heads * base.max_position_embeddings**2
  assert scores < 2**30
  assert max(BATCH_SIZES) <= MAX_BATCH_SIZE


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


LENGTHS = {
  "text": (b"the sky", b"small birds sing all day"),
  "words": ([b"sky"], [b"old", b"trees", b"sing"]),
}
LENGTHS |= {"context": LENGTHS["text"], "question": LENGTHS["text"], "text_pair": LENGTHS["text"]}
LENGTHS |= {"choices": ([b"sky", b"grass"], [b"sky", b"grass", b"birds"])}


def two_requests(signature: Signature, signatures: dict[str, Signature]) -> list[dict[str, np.ndarray]]:
  """Of one row each, of different lengths."""
  requests = []
  for k in range(2):
    if list(signature.inputs) == ["inputs"]:
      example = tf.train.Example()
      for name in signatures["serving_default"].inputs:
        example.features.feature[name].bytes_list.value.extend(np.atleast_1d(LENGTHS[name][k]).tolist())
      requests.append({"inputs": np.array([example.SerializeToString(), None], object)[:1]})
    elif next(iter(signature.inputs.values())).dtype == tf.string:
      requests.append({name: np.array([LENGTHS[name][k], None], object)[:1] for name in signature.inputs})
      requests[-1] = {n: np.array(a.tolist(), object) for n, a in requests[-1].items()}
    else:
      shape = {
        name: [1, *(size or 4 + k for size in spec.shape[1:])] for name, spec in signature.inputs.items()
      }
      requests.append({name: np.ones(size, np.int32) for name, size in shape.items()})
  return requests


def joined_as_servers_do(session, name: str, requests: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
  """TensorFlow Serving without padding: inputs are joined at the batch; where shapes differ all are refused."""
  return session.run(name, {key: np.concatenate([r[key] for r in requests]) for key in requests[0]})


@pytest.mark.parametrize(
  ("key", "unsafe"),
  [
    ("encoder", {"tokens"}),
    ("fill_mask", {"tokens", "mlm", "sop"}),
    ("pair", {"tokens"}),
    ("value", {"tokens"}),
    pytest.param("squad_2.0", {"tokens"}, marks=pytest.mark.slow),
    ("choice", {"serving_default", "examples", "tokens"}),
    pytest.param("tags", {"words", "tokens"}, marks=pytest.mark.slow),
  ],
)
def test_requests_that_fail_together_are_named(exported, key: str, unsafe: set[str]) -> None:
  """What the export says of joining is what joining does: no client's request may make another's fail."""
  path, session = exported(key).path, exported(key).session
  signatures = read_signatures(path)
  assert set(needs_equal_sizes(signatures)) == unsafe
  text = (pathlib.Path(path).parent / "batching_parameters.txt").read_text()
  assert f"max_batch_size {{ value: {MAX_BATCH_SIZE} }}" in text
  for name, signature in signatures.items():
    requests = two_requests(signature, signatures)
    if name in unsafe:
      assert re.search(rf"^# {name}: .*equal", text, re.MULTILINE), text
      with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        joined_as_servers_do(session, name, requests)
    else:
      assert re.search(rf"^# .*\b{name}\b.*whatever", text, re.MULTILINE), text
      together = joined_as_servers_do(session, name, requests)
      for i, request in enumerate(requests):
        for output, alone in session.run(name, request).items():
          row = together[output][i : i + 1][tuple(slice(size) for size in alone.shape)]
          np.testing.assert_array_equal(row, alone) if alone.dtype == object else np.testing.assert_allclose(
            row, alone, atol=1e-5
          )
  guide = (pathlib.Path(path).parent / "README.md").read_text()
  # Texts are what clients send: where even those fail together, the server is started without batching.
  assert ("--enable_batching" in guide) == ("serving_default" not in unsafe)
