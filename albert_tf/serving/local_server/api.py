"""What a server of models answers, whatever the wire: predict, classify, regress, metadata, status."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf.serving.local_server import json_tensors
from albert_tf.serving.local_server.errors import ApiError
from albert_tf.serving.local_server.servable import Servable

Classes = list[list[tuple[str, float]]]


class ModelSpec(NamedTuple):
  """Whom a request is for.

  Attributes:
    name: the model.
    version: None for the newest.
    signature_name: empty for the default.
  """

  name: str
  version: int | None = None
  signature_name: str = ""


class Api:
  """Answers for a set of models.

  Args:
    servables: by model name.
  """

  def __init__(self, servables: Mapping[str, Servable]):
    self.servables = dict(servables)

  def servable(self, spec: ModelSpec) -> Servable:
    """Raises `ApiError` with NOT_FOUND where there is none."""
    if not spec.name:
      raise ApiError("Missing model name in request.")
    servable = self.servables.get(spec.name)
    if servable is None or spec.version not in (None, servable.version):
      which = f"Latest({spec.name})" if spec.version is None else f"Specific({spec.name}, {spec.version})"
      raise ApiError(f"Servable not found for request: {which}", code="NOT_FOUND")
    return servable

  def predict(
    self, spec: ModelSpec, inputs: Mapping[str, np.ndarray], *, outputs: Sequence[str] = ()
  ) -> dict[str, np.ndarray]:
    return self.servable(spec).run(spec.signature_name, inputs, outputs=outputs)

  def classify(self, spec: ModelSpec, examples: Sequence[bytes]) -> Classes:
    """For each example its classes, each a label (may be empty) with its score."""
    outputs = self._run_examples(spec, examples, tf.saved_model.CLASSIFY_METHOD_NAME, {"classes", "scores"})
    shapes = {array.shape for array in outputs.values()}
    if len(shapes) != 1 or any(len(shape) != 2 or shape[0] != len(examples) for shape in shapes):
      raise ApiError(f"Expected Tensor shape: [batch_size num_classes] but got {shapes}", code="INTERNAL")
    shape = next(iter(shapes))
    labels = outputs.get("classes", np.full(shape, b"", object))
    scores = outputs.get("scores", np.zeros(shape, np.float32))
    return [
      [(label.decode("utf-8", "replace"), float(str(score))) for label, score in zip(*row, strict=True)]
      for row in zip(labels, scores, strict=True)
    ]

  def regress(self, spec: ModelSpec, examples: Sequence[bytes]) -> list[float]:
    """For each example its value."""
    outputs = self._run_examples(spec, examples, tf.saved_model.REGRESS_METHOD_NAME, {"outputs"})
    values = outputs["outputs"].reshape(-1)
    if len(values) != len(examples):
      raise ApiError(f"Expected one value an example, got {outputs['outputs'].shape}", code="INTERNAL")
    return [float(str(value)) for value in values]

  def _run_examples(
    self, spec: ModelSpec, examples: Sequence[bytes], method_name: str, known: set[str]
  ) -> dict[str, np.ndarray]:
    servable = self.servable(spec)
    definition = servable.signature(spec.signature_name)
    if definition.method_name != method_name:
      raise ApiError(
        f"Expected signature method_name to be {method_name}. Was: {definition.method_name}. "
        "Name a signature that takes tf.Example, such as signature_name: examples."
      )
    if list(definition.inputs) != ["inputs"] or not set(definition.outputs) <= known:
      raise ApiError(f"The signature must take inputs and give {known}", code="FAILED_PRECONDITION")
    if not examples:
      raise ApiError("Input is empty.")
    array = np.empty(len(examples), object)
    array[:] = list(examples)
    return servable.run(spec.signature_name, {"inputs": array})

  def status(self, spec: ModelSpec) -> list[Servable]:
    """The loaded versions of a model: one."""
    try:
      return [self.servable(spec)]
    except ApiError as error:
      if error.code != "NOT_FOUND":
        raise
      raise ApiError(f"Could not find any versions of model {spec.name}", code="NOT_FOUND") from error


def merge_context(examples: Sequence[Any], context: Any | None) -> list[bytes]:
  """Serialized `tf.train.Example`s, each with the context's features that it has not itself."""
  if context is None:
    return [example.SerializeToString() for example in examples]
  merged = []
  for example in examples:
    whole = tf.train.Example()
    whole.CopyFrom(context)
    for name, feature in example.features.feature.items():
      whole.features.feature[name].CopyFrom(feature)
    merged.append(whole.SerializeToString())
  return merged


def examples_from_json(request: Mapping[str, Any], *, max_rows: int) -> list[bytes]:
  """The examples of a classify or regress request in JSON."""
  rows = request.get("examples")
  if not isinstance(rows, list) or not rows:
    raise ApiError("The key 'examples' must hold a list with at least one example")
  if len(rows) > max_rows:
    raise ApiError(f"At most {max_rows} examples a request. Received: {len(rows)}.")
  context = _example_from_json(request["context"]) if "context" in request else None
  return merge_context([_example_from_json(row) for row in rows], context)


def _example_from_json(row: Any) -> Any:
  if not isinstance(row, dict):
    raise ApiError(f"Example must be JSON object but got {type(row).__name__}")
  example = tf.train.Example()
  for name, content in row.items():
    values = content if isinstance(content, list) else [content]
    feature = example.features.feature[_name(name)]
    try:
      _fill_feature(feature, values)
    except ApiError as error:
      raise ApiError(f"Feature: {name}: {error.message}") from error
  return example


def _name(name: str) -> str:
  json_tensors.encode_utf8(name)  # A lone surrogate is refused.
  return name


def _fill_feature(feature: Any, values: list[Any]) -> None:
  if not values:
    return
  if all(isinstance(value, str) or json_tensors.is_base64(value) for value in values):
    strings = [
      json_tensors.encode_utf8(v) if isinstance(v, str) else json_tensors.decode_base64(v) for v in values
    ]
    feature.bytes_list.value.extend(strings)
  elif all(isinstance(value, int) and -(2**63) <= value < 2**63 for value in values):
    feature.int64_list.value.extend(map(int, values))  # Booleans too.
  elif all(isinstance(value, float) for value in values):
    feature.float_list.value.extend(values)
  else:
    raise ApiError("values must be all strings, all integers or all floats")
