"""Where the time of a training step of TensorFlow on the CPU goes, by TensorFlow's own profiler."""

import collections
from collections.abc import Callable
import glob
import tempfile
from typing import Any

import tensorflow as tf

_STEPS = 3
# The first whose word is in an operation's type or name; a product's bias, and the GELU fused with it, are part of it.
_KINDS = {
  "matrix products": ("MatMul", "Einsum"),
  "optimizer": ("adam_w",),
  "LayerNorm": ("layer_norm",),
  "GELU": ("Gelu",),
  "softmax": ("_MklSoftmax", "/Softmax", "softmax"),
  "loss": ("SoftmaxCrossEntropy",),
  "bias gradients": ("BiasAddGrad",),
  "transposes": ("Transpose", "transpose"),
  "casts": ("Cast",),
  "sums of shared weights' gradients": ("AddN",),
  "dropout": ("dropout",),
  "embeddings": ("embeddings", "UnsortedSegmentSum", "Gather"),
}


def kind_of(op_type: str, name: str) -> str:
  """The part of a step that an operation belongs to."""
  if "SoftmaxCrossEntropy" in op_type:
    return "loss"
  for kind, words in _KINDS.items():
    if any(word in op_type for word in words) or (
      kind != "matrix products" and any(word in name for word in words)
    ):
      return kind
  return "other"


def shares(step: Callable[[], Any]) -> dict[str, float]:
  """Part of a step → its share of the time that all operations take, the largest first."""
  from tensorflow.tsl.profiler.protobuf import xplane_pb2

  times: collections.Counter[str] = collections.Counter()
  with tempfile.TemporaryDirectory() as folder:
    options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=2, python_tracer_level=0)
    tf.profiler.experimental.start(folder, options)
    for _ in range(_STEPS):
      step()
    tf.profiler.experimental.stop()
    (path,) = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)
    with open(path, "rb") as stream:
      space = xplane_pb2.XSpace.FromString(stream.read())
  for plane in space.planes:
    for line in plane.lines if "CPU" in plane.name else ():
      for event in line.events:
        name, separator, op_type = plane.event_metadata[event.metadata_id].name.rpartition(":")
        if separator and op_type.isidentifier() and not name.endswith(":"):
          times[kind_of(op_type, name)] += event.duration_ps
  whole = sum(times.values())
  return {kind: round(time / whole, 4) for kind, time in times.most_common()}
