"""The files that TensorFlow Serving wants beside the versions of a model, and how to start it."""

import json
import os

from albert_tf import files
from albert_tf.serving.conformance.samples import make_inputs
from albert_tf.serving.conformance.signatures import CLASSIFY, PREDICT, REGRESS, Signature, read_signatures

MODELS_CONFIG = "models.config"
BATCHING_PARAMETERS = "batching_parameters.txt"
GUIDE = "README.md"
# Its releases 2.12 to 2.19 link the tokenizer's ops.
IMAGE = "tensorflow/serving:2.18.0"
_VERBS = {PREDICT: "predict", CLASSIFY: "classify", REGRESS: "regress"}

_MODELS_CONFIG_TEXT = """\
# Put the `config` blocks of several models into one list to serve them together.
model_config_list {
  config {
    name: "%(name)s"
    base_path: "/models/%(name)s"
    model_platform: "tensorflow"
  }
}
"""

# Rows of ids cannot be padded by a server: it repeats the first value, in `input_mask` a 1.
_BATCHING_TEXT = """\
# Requests of strings may be joined whatever their lengths. Requests of ids are joined only if their lengths are
# equal: pad them in the client, or export with --pad_to_max_length. Do not set pad_variable_length_inputs: a server
# pads with the first value of a row, and in input_mask that is a 1.
max_batch_size { value: 32 }
batch_timeout_micros { value: 2000 }
max_enqueued_batches { value: 100 }
num_batch_threads { value: 4 }
"""


def write_layout(output_dir: str, *, model_name: str, version_dir: str) -> None:
  """Writes models.config, batching_parameters.txt and README.md beside the versions.

  What is there already stays: a person may have changed it. Servers skip names that are no numbers.

  Args:
    output_dir: the folder of versions.
    model_name: under which the model is served.
    version_dir: one of its versions.
  """
  texts = {
    MODELS_CONFIG: _MODELS_CONFIG_TEXT % {"name": model_name},
    BATCHING_PARAMETERS: _BATCHING_TEXT,
    GUIDE: guide(model_name=model_name, signatures=read_signatures(version_dir)),
  }
  for name, text in texts.items():
    path = os.path.join(output_dir, name)
    if not files.exists(path):
      with files.atomic_writer(path, "w") as stream:
        stream.write(text)


def docker_command(output_dir: str | None = None, *, model_name: str) -> str:
  """The line that serves the folder of versions, by default the current one; REST at 8501, gRPC at 8500."""
  source = files.abspath(output_dir) if output_dir else "$PWD"
  return (
    f'docker run --rm -p 8500:8500 -p 8501:8501 -v "{source}:/models/{model_name}:ro" {IMAGE} '
    f"--model_config_file=/models/{model_name}/{MODELS_CONFIG} "
    f"--enable_batching --batching_parameters_file=/models/{model_name}/{BATCHING_PARAMETERS}"
  )


def guide(*, model_name: str, signatures: dict[str, Signature]) -> str:
  """The README of an export."""
  lines = [
    f"# {model_name}, for TensorFlow Serving",
    "",
    "Each numbered folder is a version; a server takes the highest, and a new one while it runs. Start it here with",
    "",
    f"    {docker_command(model_name=model_name)}",
    "",
    "`models.config` names the model, `batching_parameters.txt` says how requests are joined; change them as you like.",
    "A version's `assets.extra/tf_serving_warmup_requests` is replayed before the version is taken into use.",
    "",
    "## Signatures",
    "",
    "| signature | method | inputs | outputs |",
    "|---|---|---|---|",
  ]
  for name, signature in signatures.items():
    columns = (", ".join(f"`{key}`" for key in keys) for keys in (signature.inputs, signature.outputs))
    lines.append(f"| `{name}` | {_VERBS[signature.method]} | {' | '.join(columns)} |")
  return "\n".join([*lines, "", *_examples(model_name, signatures), ""])


def _examples(model_name: str, signatures: dict[str, Signature]) -> list[str]:
  """A request by REST, and the same one by gRPC."""
  arrays = make_inputs(signatures["serving_default"], signatures)
  rows = {
    name: [
      [v.decode() for v in value] if not isinstance(value, bytes) else value.decode() for value in array[:1]
    ]
    for name, array in arrays.items()
  }
  body = json.dumps({"inputs": rows}, ensure_ascii=False)
  url = f"http://localhost:8501/v1/models/{model_name}"
  lines = ["## REST", "", f"    curl {url}:predict -d '{body}'"]
  special = [name for name, signature in signatures.items() if signature.method != PREDICT]
  for name in special:
    example = {key: value[0] for key, value in rows.items()}
    body = json.dumps({"signature_name": name, "examples": [example]}, ensure_ascii=False)
    lines.append(f"    curl {url}:{_VERBS[signatures[name].method]} -d '{body}'")
  return [
    *lines,
    "",
    "## gRPC",
    "",
    "With `pip install tensorflow-serving-api`:",
    "",
    "```python",
    "import grpc",
    "import tensorflow as tf",
    "from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc",
    "",
    "request = predict_pb2.PredictRequest()",
    f'request.model_spec.name = "{model_name}"',
    *(
      f'request.inputs["{name}"].CopyFrom(tf.make_tensor_proto({json.dumps(value, ensure_ascii=False)}))'
      for name, value in rows.items()
    ),
    'stub = prediction_service_pb2_grpc.PredictionServiceStub(grpc.insecure_channel("localhost:8500"))',
    "outputs = stub.Predict(request, 60.0).outputs",
    "print({name: tf.make_ndarray(tensor) for name, tensor in outputs.items()})",
    "```",
  ]
