"""Files in `assets.extra/` of an export: golden outputs for `check.py`, and warm-up requests for servers."""

from collections.abc import Mapping, Sequence
import os
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf import files
from albert_tf.configs import AlbertConfig
from albert_tf.records import frame_record
from albert_tf.serving.check import GOLDEN

WARMUP_NAME = "tf_serving_warmup_requests"
BATCH_SIZES = (1, 8, 32)

TEXTS = (
  "The capital of France is [MASK].",
  "A [MASK] of birds flew over the old [MASK] trees.",
  "Paris",
)
CHOICES = ("Paris", "the old trees", "the sea", "the grass")
# Input name → strings; other inputs get TEXTS.
_STRINGS = {"text_pair": TEXTS[::-1], "context": tuple(" ".join(TEXTS[row:]) for row in range(3))}


def write_golden(directory: str, signatures: Mapping[str, Any], config: AlbertConfig) -> None:
  """Records the outputs of `tf.function`s, by signature name, for a batch of three rows and an empty batch.

  Calls run eagerly, so that the Keras model in this process answers, not the saved graph.
  """
  tensors: dict[str, tf.Tensor] = {}
  for name, function in signatures.items():
    for number, size in enumerate((3, 0)):
      inputs = {key: tensor[:size] for key, tensor in sample_inputs(function, config).items()}
      for side, each in (("inputs", inputs), ("outputs", function.python_function(**inputs))):
        tensors |= {f"{number}/{name}/{side}/{key}": tensor for key, tensor in each.items()}
  files.makedirs(os.path.join(directory, os.path.dirname(GOLDEN)))
  tf.raw_ops.SaveV2(
    prefix=os.path.join(directory, GOLDEN),
    tensor_names=list(tensors),
    shape_and_slices=[""] * len(tensors),
    tensors=list(tensors.values()),
  )


def write_warmup(directory: str, signatures: Mapping[str, Any], config: AlbertConfig) -> None:
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
        for key, tensor in sample_inputs(function, config).items():
          rows = tf.gather(tensor, np.arange(size) % 3)
          request.inputs[key].CopyFrom(tf.make_tensor_proto(rows))
        stream.write(frame_record(log.SerializeToString(deterministic=True)))


def sample_inputs(function: Any, config: AlbertConfig) -> dict[str, tf.Tensor]:
  """A batch of three different rows, chosen by the names and shapes of the inputs."""
  specs = function.input_signature
  arrays: Mapping[str, Any] = {
    spec.name: [CHOICES[row:] + CHOICES[:row] for row in range(3)]
    if spec.shape.rank == 2
    else _STRINGS.get(spec.name, TEXTS)
    for spec in specs
    if spec.dtype == tf.string
  } or sample_ids(specs, config, rows=3)
  return {name: tf.constant(array) for name, array in arrays.items()}


def sample_ids(
  specs: Sequence[tf.TensorSpec], config: AlbertConfig, *, rows: int, seed: int = 0
) -> dict[str, np.ndarray]:
  """Random int32 inputs of many lengths, by names and shapes; two segments in each row, the first rows are full."""
  rng = np.random.default_rng(seed)
  defaults = (len(CHOICES), 12)[1 - specs[0].shape.rank :]  # C and S of [B, C, S], or S of [B, S].
  shape = [
    rows,
    *(size or default for size, default in zip(specs[0].shape[1:], defaults, strict=True)),
  ]
  sizes = rng.integers(1, shape[-1] + 1, [*shape[:-1], 1])
  sizes[0] = shape[-1]
  place = np.broadcast_to(np.arange(shape[-1]), shape)
  real = place < sizes
  second = real & (place >= sizes // 2) & (config.type_vocab_size > 1)
  arrays = {
    "input_ids": np.where(real, rng.integers(0, config.vocab_size, shape), 0),
    "input_mask": real,
    "segment_ids": second,
    "p_mask": ~second & (place > 0),  # 0 at [CLS] and in the second segment, the text.
  }
  if specs[-1].name == "positions":
    arrays["positions"] = rng.integers(0, shape[-1], [rows, specs[-1].shape[1] or 2]) % sizes
  return {spec.name: arrays[spec.name].astype(np.int32) for spec in specs}
