"""What was recorded from the original code (tests/goldens/README.md): arrays, rows, checkpoints, a vocabulary."""

import atexit
import functools
import gzip
import json
import pathlib
import tempfile
from typing import Any

import numpy as np

GOLDENS = pathlib.Path(__file__).parents[1] / "goldens"
SPM_MODEL = str(GOLDENS / "spm8k.model")  # The vocabulary of every recording: 8,000 pieces.
SQUAD_INPUT = str(GOLDENS / "squad_input.json")
# The tiny model's checkpoint as TensorFlow 1.15 wrote it, and its configuration.
TINY = GOLDENS / "ckpt_tiny"
TINY_CONFIG = str(TINY / "albert_config.json")
_CONFIGS = {
  "tiny_groups": ("tiny_groups_config.json", {}),
  "tiny_training": (TINY_CONFIG, {"vocab_size": 250}),
}


class Golden:
  """Recorded arrays by name; of the longest ones every few elements."""

  def __init__(self, path: pathlib.Path):
    self._arrays, self._steps = {}, {}
    with np.load(path) as stored:
      for key in stored.files:
        name, _, step = key.partition("@")
        self._arrays[name], self._steps[name] = stored[key], int(step or 1)

  def __getitem__(self, name: str) -> np.ndarray:
    assert self._steps[name] == 1, f"{name} is not recorded whole: use assert_close"
    return self._arrays[name]

  def under(self, prefix: str) -> dict[str, np.ndarray]:
    """The whole arrays whose names begin with `prefix`, without it."""
    names = [name for name in self.names(prefix) if self._steps[prefix + name] == 1]
    assert names, prefix
    return {name: self[prefix + name] for name in names}

  def names(self, prefix: str) -> set[str]:
    return {name.removeprefix(prefix) for name in self._arrays if name.startswith(prefix)}

  def assert_close(self, name: str, actual: Any, *, atol: float, rtol: float = 0.0) -> None:
    """`actual` (any shape with the elements in order) equals the array called `name`, where that was recorded."""
    actual = np.asarray(actual).reshape(-1)[:: self._steps[name]]
    expected = self._arrays[name].reshape(-1)
    assert len(actual) == len(expected), (name, actual.size)
    np.testing.assert_allclose(actual, expected, atol=atol, rtol=rtol, err_msg=name)


@functools.cache
def golden(name: str) -> Golden:
  return Golden(GOLDENS / f"{name}.npz")


@functools.cache
def golden_rows(name: str) -> Any:
  """Recorded rows of text and ids; not to be changed by a test."""
  return json.loads(gzip.decompress((GOLDENS / f"{name}.json.gz").read_bytes()))


@functools.cache
def golden_checkpoint(name: str) -> str:
  """The path of a recorded checkpoint, without suffix; beside three of them lies `albert_config.json`.

  `tiny` is the file itself. The others share most tensors with it, and are written when first asked for:
  `tiny_groups`, `tiny_mnli`, `tiny_race`, `tiny_squad_v2`, `tiny_module_prefix`, and `tiny_training` with the slots
  of ten LAMB steps, whose vocabulary is cut to its first 250 rows.
  """
  if name == "tiny":
    return str(TINY / "model.ckpt-best")
  tiny = _tiny_tensors()
  if name == "tiny_module_prefix":
    tensors = {f"module/{key}": array for key, array in tiny.items() if key != "global_step"}
  else:
    with np.load(GOLDENS / "checkpoints.npz") as stored:
      tensors = {key: tiny[key] for key in stored[f"{name}@same"]}
      own = [key for key in stored.files if key.startswith(f"{name}/")]
      tensors |= {key.removeprefix(f"{name}/"): stored[key] for key in own}
  folder = _folder() / name
  folder.mkdir()
  if name in _CONFIGS:
    source, changes = _CONFIGS[name]
    config = json.loads((GOLDENS / source).read_text()) | changes
    (folder / "albert_config.json").write_text(json.dumps(config))
  write_bundle(str(folder / "model.ckpt"), tensors)
  return str(folder / "model.ckpt")


def write_bundle(prefix: str, tensors: dict[str, np.ndarray]) -> None:
  """As `tf.train.Saver` of TensorFlow 1 writes: one operation."""
  import tensorflow as tf

  names = sorted(tensors)
  values = [tensors[name] for name in names]
  tf.raw_ops.SaveV2(
    prefix=prefix, tensor_names=names, shape_and_slices=[""] * len(names), tensors=values
  )


@functools.cache
def _tiny_tensors() -> dict[str, np.ndarray]:
  import tensorflow as tf

  reader = tf.train.load_checkpoint(golden_checkpoint("tiny"))
  return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


@functools.cache
def _folder() -> pathlib.Path:
  folder = tempfile.TemporaryDirectory(prefix="albert_goldens_")
  atexit.register(folder.cleanup)
  return pathlib.Path(folder.name)
