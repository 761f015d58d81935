"""Requests for the tests of serving: strings as arrays, JSON by HTTP."""

import base64

import numpy as np

from albert_tf.serving.conformance.wire import Reply, rest


def b64(data: bytes) -> dict[str, str]:
  return {"b64": base64.b64encode(data).decode()}


def predict(served, model: str, body: object) -> Reply:
  return rest(f"{served.url}/v1/models/{model}:predict", body)


def strings(*values: bytes) -> np.ndarray:
  array = np.empty(len(values), object)
  array[:] = values
  return array
