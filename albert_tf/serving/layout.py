"""The files that TensorFlow Serving wants beside the versions of a model, and how to start it."""

import json
import os

from albert_tf import files
from albert_tf.serving.golden import make_inputs
from albert_tf.serving.saved_model import read_signatures

MODELS_CONFIG = "models.config"
GUIDE = "README.md"
# Its releases 2.12 to 2.19 link the tokenizer's ops.
IMAGE = "tensorflow/serving:2.18.0"

_MODELS_CONFIG_TEXT = """\
# Put the `config` blocks of several models into one list to serve them together.
model_config_list {{
  config {{
    name: "{name}"
    base_path: "/models/{name}"
    model_platform: "tensorflow"
  }}
}}
"""

_GUIDE_TEXT = """\
# {name}, for TensorFlow Serving

Each numbered folder is a version; a server takes the highest, and a new one while it runs. Start it here with

    {command}

`models.config` names the model; change it as you like. How a server joins requests of several clients into one batch
is described in docs/serving.md of ALBERT for TensorFlow 2.

| signature | method | inputs | outputs |
|---|---|---|---|
{signatures}

    curl http://localhost:8501/v1/models/{name}:predict -d '{body}'
"""


def write_layout(output_dir: str, *, model_name: str, version_dir: str) -> None:
  """Writes models.config and README.md beside the versions.

  What is there already stays: a person may have changed it. Servers skip names that are no numbers.
  """
  signatures = read_signatures(version_dir)
  rows = []
  for name, signature in signatures.items():
    inputs, outputs = (
      ", ".join(f"`{key}`" for key in side) for side in (signature.inputs, signature.outputs)
    )
    rows.append(f"| `{name}` | {signature.method.rpartition('/')[2]} | {inputs} | {outputs} |")
  example = make_inputs(signatures["serving_default"], signatures)
  body = {"inputs": {name: array[:1].astype(str).tolist() for name, array in example.items()}}
  texts = {
    MODELS_CONFIG: _MODELS_CONFIG_TEXT.format(name=model_name),
    GUIDE: _GUIDE_TEXT.format(
      name=model_name,
      command=docker_command(model_name=model_name),
      signatures="\n".join(rows),
      body=json.dumps(body, ensure_ascii=False),
    ),
  }
  for name, text in texts.items():
    path = os.path.join(output_dir, name)
    if not files.exists(path):
      with files.atomic_writer(path, "w") as stream:
        stream.write(text)


def docker_command(output_dir: str = "", *, model_name: str) -> str:
  """The line that serves the folder of versions, by default the current one; REST at 8501, gRPC at 8500."""
  source = files.abspath(output_dir) if output_dir else "$PWD"
  return (
    f'docker run --rm -p 8500:8500 -p 8501:8501 -v "{source}:/models/{model_name}:ro" {IMAGE} '
    f"--model_config_file=/models/{model_name}/{MODELS_CONFIG}"
  )
