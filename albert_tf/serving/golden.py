"""Files in `assets.extra/` of an export: golden outputs for `check.py`, and warm-up requests for servers."""

from collections.abc import Mapping
import os
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf import files
from albert_tf.records import frame_record
from albert_tf.serving.check import GOLDEN

WARMUP_NAME = "tf_serving_warmup_requests"
BATCH_SIZES = (1, 8, 32)

TEXTS = ("The capital of France is [MASK].", "A [MASK] of birds flew over the old [MASK] trees.", "Paris")
CHOICES = ("Paris", "the old trees", "the sea", "the grass")
# Input name → strings; other inputs get TEXTS.
_STRINGS = {"text_pair": TEXTS[::-1], "context": tuple(" ".join(TEXTS[row:]) for row in range(3))}


def write_golden(directory: str, signatures: Mapping[str, Any]) -> None:
  """Records the outputs of `tf.function`s, by signature name, for a batch of three rows and an empty batch.

  Calls run eagerly, so that the Keras model in this process answers, not the saved graph.
  """
  tensors: dict[str, tf.Tensor] = {}
  for name, function in signatures.items():
    for number, size in enumerate((3, 0)):
      inputs = {key: tensor[:size] for key, tensor in sample_inputs(function).items()}
      for side, each in (("inputs", inputs), ("outputs", function.python_function(**inputs))):
        tensors |= {f"{number}/{name}/{side}/{key}": tensor for key, tensor in each.items()}
  files.makedirs(os.path.join(directory, os.path.dirname(GOLDEN)))
  tf.raw_ops.SaveV2(
    prefix=os.path.join(directory, GOLDEN),
    tensor_names=list(tensors),
    shape_and_slices=[""] * len(tensors),
    tensors=list(tensors.values()),
  )


def write_warmup(directory: str, signatures: Mapping[str, Any]) -> None:
  """Writes warm-up requests of each signature and batch size, which a server answers before it serves a model.

  Without the package `tensorflow_serving` writes nothing; then the first request of each size is slower.
  """
  try:
    from tensorflow_serving.apis import prediction_log_pb2
  except ImportError:
    return
  with files.atomic_writer(os.path.join(directory, os.path.dirname(GOLDEN), WARMUP_NAME)) as stream:
    for name, function in sorted(signatures.items()):
      for size in BATCH_SIZES:
        log = prediction_log_pb2.PredictionLog()
        request = log.predict_log.request
        request.model_spec.signature_name = name
        for key, tensor in sample_inputs(function).items():
          rows = tf.gather(tensor, np.arange(size) % 3)
          request.inputs[key].CopyFrom(tf.make_tensor_proto(rows))
        stream.write(frame_record(log.SerializeToString(deterministic=True)))


def sample_inputs(function: Any) -> dict[str, tf.Tensor]:
  """A batch of three different rows, chosen by the names and shapes of the inputs."""
  return {
    spec.name: tf.constant(_strings(spec) if spec.dtype == tf.string else _ids(spec))
    for spec in function.input_signature
  }


def _strings(spec: tf.TensorSpec) -> Any:
  if spec.shape.rank == 1:
    return _STRINGS.get(spec.name, TEXTS)
  return [CHOICES[row:] + CHOICES[:row] for row in range(3)]


def _ids(spec: tf.TensorSpec) -> np.ndarray:
  """Ids of three rows, the second and third padded; the choices of a row differ in one id."""
  length = 2 if spec.name == "positions" else 12
  choices = [len(CHOICES)] * (spec.shape.rank - 2)
  place = np.arange(length)
  end = np.reshape([length, max(length - 2, 1), max(length // 2, 1)], [3, *[1] * (spec.shape.rank - 1)])
  real, second = place < end, place >= end // 2
  values = {
    "input_mask": real,
    "segment_ids": real & second,
    "positions": place + 1 + np.arange(3)[:, np.newaxis],
    "p_mask": ~(second & (place < end - 1)),
  }
  array: Any = values.get(spec.name, np.where(real, place % 10 + 5, 0))
  array = np.broadcast_to(array, [3, *choices, length]).astype(spec.dtype.as_numpy_dtype)
  if choices and spec.name == "input_ids":
    array[..., 1] += np.arange(len(CHOICES), dtype=array.dtype)
  return array
