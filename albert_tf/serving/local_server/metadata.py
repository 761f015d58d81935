"""Metadata and status of a model as the REST API writes them."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from albert_tf.serving.local_server.servable import Servable


def metadata_json(servable: Servable) -> dict[str, Any]:
  """The signatures of a model."""
  signatures = {name: signature_json(definition) for name, definition in servable.signatures.items()}
  return {
    "model_spec": {"name": servable.name, "signature_name": "", "version": str(servable.version)},
    "metadata": {"signature_def": {"signature_def": signatures}},
  }


def status_json(servables: Sequence[Servable]) -> dict[str, Any]:
  """The state of the versions of a model."""
  return {
    "model_version_status": [
      {
        "version": str(servable.version),
        "state": "AVAILABLE",
        "status": {"error_code": "OK", "error_message": ""},
      }
      for servable in servables
    ]
  }


def signature_json(definition: Any) -> dict[str, Any]:
  """A SignatureDef as protobuf's JSON with every field printed."""
  return {
    "inputs": {name: _tensor_info(info) for name, info in definition.inputs.items()},
    "outputs": {name: _tensor_info(info) for name, info in definition.outputs.items()},
    "method_name": definition.method_name,
    "defaults": {},
  }


def _tensor_info(info: Any) -> dict[str, Any]:
  shape = info.tensor_shape
  return {
    "dtype": f"DT_{tf.dtypes.as_dtype(info.dtype).name.upper()}".replace("FLOAT32", "FLOAT"),
    "tensor_shape": {
      "dim": [{"size": str(dim.size), "name": dim.name} for dim in shape.dim],
      "unknown_rank": shape.unknown_rank,
    },
    "name": info.name,
  }
