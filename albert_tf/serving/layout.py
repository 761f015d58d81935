"""The files that TensorFlow Serving wants beside the versions of a model, and how to start it."""

from collections.abc import Mapping
import json
import os

from albert_tf import files
from albert_tf.serving.samples import make_inputs
from albert_tf.serving.saved_model import CLASSIFY, PREDICT, REGRESS, Signature, read_signatures

MODELS_CONFIG = "models.config"
BATCHING_PARAMETERS = "batching_parameters.txt"
GUIDE = "README.md"
# Its releases 2.12 to 2.19 link the tokenizer's ops.
IMAGE = "tensorflow/serving:2.18.0"
# Rows of a request or a batch, in exports and in the local server. Attention scores of so many rows of 512 pieces take
# 0.8 GB in ALBERT base (12 heads), 4.3 GB in xxlarge (64 heads), for each batch that is being answered.
MAX_BATCH_SIZE = 64
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

_BATCHING_TEXT = """\
# How TensorFlow Serving joins requests of several clients into one batch, where it runs with --enable_batching.
%(rules)s
# Do not set pad_variable_length_inputs: a server pads with the first value of a request, which is no padding here.
# A request of more rows is refused, and a batch never has more. Memory grows with it and with num_batch_threads, the
# batches answered at a time. A request that the graph itself refuses fails those joined with it.
max_batch_size { value: %(max_batch_size)d }
batch_timeout_micros { value: 2000 }
max_enqueued_batches { value: 100 }
num_batch_threads { value: 4 }
"""


def needs_equal_sizes(signatures: Mapping[str, Signature]) -> dict[str, str]:
  """Signatures of which a server may only join requests of one shape, with what must be equal.

  A server joins inputs at the batch. Where their other sizes differ it refuses every request of that batch, so one
  client's request would make another's fail.
  """
  rules = {}
  for name, signature in signatures.items():
    ragged = [key for key, spec in signature.inputs.items() if None in spec.shape.as_list()[1:]]
    if ragged:
      rules[name] = f"the sizes of {', '.join(ragged)} are equal"
  if "choices" in signatures["serving_default"].inputs and "examples" in signatures:
    rules["examples"] = "the numbers of choices in their tf.Examples are equal"
  return rules


def batching_parameters(signatures: Mapping[str, Signature]) -> str:
  """The text of batching_parameters.txt, with what may be joined."""
  rules = needs_equal_sizes(signatures)
  free = [name for name in signatures if name not in rules]
  lines = (
    [f"# {', '.join(free)}: requests may be joined whatever the lengths of their texts."] if free else []
  )
  lines += [
    f"# {name}: joined only where {rule}; else the server refuses every request of that batch."
    for name, rule in rules.items()
  ]
  if free and rules:
    lines.append(
      f"# So send {', '.join(rules)} in one shape (rows of ids: padded, or --pad_to_max_length), or from one client."
    )
  elif rules:
    lines.append("# So the server is started without --enable_batching, unless all clients send one shape.")
  return _BATCHING_TEXT % {"rules": "\n".join(lines), "max_batch_size": MAX_BATCH_SIZE}


def write_layout(output_dir: str, *, model_name: str, version_dir: str) -> None:
  """Writes models.config, batching_parameters.txt and README.md beside the versions.

  What is there already stays: a person may have changed it. Servers skip names that are no numbers.

  Args:
    output_dir: the folder of versions.
    model_name: under which the model is served.
    version_dir: one of its versions.
  """
  signatures = read_signatures(version_dir)
  texts = {
    MODELS_CONFIG: _MODELS_CONFIG_TEXT % {"name": model_name},
    BATCHING_PARAMETERS: batching_parameters(signatures),
    GUIDE: guide(model_name=model_name, signatures=signatures),
  }
  for name, text in texts.items():
    path = os.path.join(output_dir, name)
    if not files.exists(path):
      with files.atomic_writer(path, "w") as stream:
        stream.write(text)


def docker_command(
  output_dir: str | None = None, *, model_name: str, signatures: Mapping[str, Signature]
) -> str:
  """The line that serves the folder of versions, by default the current one; REST at 8501, gRPC at 8500."""
  source = files.abspath(output_dir) if output_dir else "$PWD"
  command = (
    f'docker run --rm -p 8500:8500 -p 8501:8501 -v "{source}:/models/{model_name}:ro" {IMAGE} '
    f"--model_config_file=/models/{model_name}/{MODELS_CONFIG}"
  )
  if "serving_default" in needs_equal_sizes(signatures):
    return command
  return f"{command} --enable_batching --batching_parameters_file=/models/{model_name}/{BATCHING_PARAMETERS}"


def guide(*, model_name: str, signatures: Mapping[str, Signature]) -> str:
  """The README of an export."""
  lines = [
    f"# {model_name}, for TensorFlow Serving",
    "",
    "Each numbered folder is a version; a server takes the highest, and a new one while it runs. Start it here with",
    "",
    f"    {docker_command(model_name=model_name, signatures=signatures)}",
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


def _examples(model_name: str, signatures: Mapping[str, Signature]) -> list[str]:
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
