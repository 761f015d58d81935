"""Milliseconds and memory of an answer on a CPU: SavedModels in three precisions, beside other runtimes.

A classifier with random weights answers ids. Each side runs in a process of its own, all sides in turn. Sides of
other runtimes need `--peer_python`, an environment with torch, transformers, onnx, onnxruntime, openvino and nncf.
Prints one JSON line: for each side the milliseconds of a text, by batch and number of tokens, and the memory of its
process.

Example:
  python benchmarks/cpu_serving.py --size=base --peer_python=peers/bin/python
  python benchmarks/cpu_serving.py --sides=int8 --threads=1 --clients=2
"""

from collections.abc import Callable, Mapping, Sequence
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from typing import Any

from absl import flags
import measuring
import numpy as np

from albert_tf.configs import AlbertConfig
from albert_tf.serving.settings import Precision

_SIZE = flags.DEFINE_string("size", "base", "The model's size.")
_LAYERS = flags.DEFINE_integer("layers", 0, "Number of layers; 0: the size's.")
_SIDES = flags.DEFINE_list("sides", [], "Some of the sides; default: all that can run.")
_PEER_PYTHON = flags.DEFINE_string(
  "peer_python", "", "Python of the environment of other runtimes."
)
_ROUNDS = flags.DEFINE_integer(
  "rounds", 3, "Rounds of all sides; the fastest counts.", lower_bound=1
)
_THREADS = flags.DEFINE_integer(
  "threads", 0, "Threads of an operation (intra); 0: one for each core."
)
_CLIENTS = flags.DEFINE_integer(
  "clients",
  1,
  "Requests at once; the wall-clock time is shared among them.",
  lower_bound=1,
)
_CASE_NAMES = flags.DEFINE_list("cases", [], "Some of the cases; default: all.")
_SIDE = flags.DEFINE_string("side", "", "For the benchmark itself: the side that this process is.")
_FOLDER = flags.DEFINE_string("folder", "", "For the benchmark itself: where the models are.")

_OURS: tuple[Precision, ...] = ("float32", "bfloat16", "int8")
_PEERS = (
  "torch", "onnxruntime", "onnxruntime_int8", "openvino", "openvino_bfloat16", "openvino_int8",
)  # fmt: skip
# Name → the lengths of the texts of a batch. The last are as those of GLUE's sentences: many short ones.
_GLUE_LENGTHS = np.random.default_rng(0).gamma(2.0, 12.0, 32).astype(int).clip(1, 124) + 4
_ALL_CASES: dict[str, np.ndarray] = {
  "1 x 16": np.full(1, 16),
  "1 x 128": np.full(1, 128),
  "1 x 256": np.full(1, 256),
  "1 x 512": np.full(1, 512),
  "8 x 128": np.full(8, 128),
  "32 x 128": np.full(32, 128),
  "32 of GLUE's lengths": _GLUE_LENGTHS,
}
_REPEATS = 7  # Of a batch in a process; the fastest counts.
_CALIBRATION_TEXTS = 32
_IDS = 900  # Below the size of any vocabulary.

# Inputs of a batch `[B, S]` by name.
Batch = Mapping[str, np.ndarray]
Answer = Callable[[Batch], Any]


def _measure() -> Mapping[str, Any] | None:
  if _SIDE.value:
    _run_side(_SIDE.value, pathlib.Path(_FOLDER.value))
    return None
  sides = _SIDES.value or [*_OURS, *(_PEERS if _PEER_PYTHON.value else ())]
  with tempfile.TemporaryDirectory() as folder:
    _export_ours([precision for precision in _OURS if precision in sides], folder)
    if any(side in _PEERS for side in sides):
      _run_peer(["export"], folder)
    rounds = [{side: _figures_of(side, folder) for side in sides} for _ in range(_ROUNDS.value)]
  return {
    "size": _SIZE.value,
    "layers": _config().num_hidden_layers,
    "threads": _THREADS.value,
    "clients": _CLIENTS.value,
    "mean_of_glue_lengths": round(float(_GLUE_LENGTHS.mean()), 1),
    "milliseconds": {
      side: {
        case: round(min(figures[side]["milliseconds"][case] for figures in rounds), 2)
        for case in _cases()
      }
      for side in sides
    },
    "megabytes": {side: rounds[0][side]["megabytes"] for side in sides},
  }


def _cases() -> dict[str, np.ndarray]:
  """The lengths of the texts in each case."""
  return {name: _ALL_CASES[name] for name in _CASE_NAMES.value or _ALL_CASES}


def _config() -> AlbertConfig:
  config = AlbertConfig.from_name(_SIZE.value)
  return config.at_depth(_LAYERS.value or None)


def _batch(lengths: np.ndarray, seed: int = 0) -> Batch:
  """Random ids of texts of these lengths."""
  rng = np.random.default_rng(seed)
  mask = (np.arange(lengths.max()) < lengths[:, np.newaxis]).astype(np.int32)
  ids = rng.integers(5, _IDS, mask.shape).astype(np.int32) * mask
  return {"input_ids": ids, "input_mask": mask, "segment_ids": np.zeros_like(mask)}


# ------------------------------------------------------------------ sides


def _figures_of(side: str, folder: str) -> Any:
  """What a process of the side prints."""
  if side in _PEERS:
    return _run_peer([side], folder)
  command = [
    sys.executable,
    __file__,
    f"--side={side}",
    f"--folder={folder}",
    f"--cases={','.join(_cases())}",
    f"--threads={_THREADS.value}",
    f"--clients={_CLIENTS.value}",
  ]
  done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
  return json.loads(done.stdout.splitlines()[-1])


def _run_peer(arguments: Sequence[str], folder: str) -> Any:
  program = str(pathlib.Path(__file__).with_name("cpu_serving_peers.py"))
  fields = {
    "folder": folder,
    "model": _peer_config(),
    "cases": _lengths_of_cases(),
    "threads": _THREADS.value or os.cpu_count(),
    "clients": _CLIENTS.value,
  }
  command = [_PEER_PYTHON.value, program, *arguments]
  done = subprocess.run(
    command, input=json.dumps(fields), stdout=subprocess.PIPE, text=True, check=True
  )
  lines = done.stdout.splitlines()
  return json.loads(lines[-1]) if lines else None


def _lengths_of_cases() -> dict[str, list[int]]:
  return {name: lengths.tolist() for name, lengths in _cases().items()}


def _peer_config() -> dict[str, Any]:
  """The arguments of Hugging Face's configuration."""
  config = _config()
  names = (
    "vocab_size", "embedding_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
    "intermediate_size",
  )  # fmt: skip
  return {name: getattr(config, name) for name in names} | {"hidden_act": "gelu_new"}


def _export_ours(precisions: Sequence[Precision], folder: str) -> None:
  """Exports one model in each precision."""
  import texts

  from albert_tf import AlbertClassifier, AlbertPreprocessor
  from albert_tf.keras_api.calibration import calibration_of
  from albert_tf.serving.export import export_model
  from albert_tf.serving.settings import ExportSettings
  from albert_tf.tokenization import load_tokenizer

  documents = texts.installed_documentation(folder, megabytes=2)
  tokenizer = load_tokenizer(texts.train_vocabulary(documents, folder))
  model = AlbertClassifier(
    dataclasses.replace(_config(), vocab_size=tokenizer.vocab_size),
    label_names=("no", "yes"),
    preprocessor=AlbertPreprocessor(tokenizer, max_length=128),
  )
  lengths = np.full(_CALIBRATION_TEXTS, 64)
  for precision in precisions:
    settings = ExportSettings(precision=precision, min_agreement=-1)
    calibration = None
    if precision != "float32":
      calibration = calibration_of(model, _batch(lengths, seed=1))
    export_model(model, f"{folder}/{precision}/1", settings, calibration)


def _run_side(precision: str, folder: pathlib.Path) -> None:
  """Prints the figures of a SavedModel."""
  import tensorflow as tf

  from albert_tf.serving.loaded_model import LoadedModel

  tf.config.threading.set_intra_op_parallelism_threads(_THREADS.value)
  loaded = LoadedModel(str(folder / precision / "1"))

  def answer(batch: Batch) -> None:
    loaded.run("tokens", dict(batch))

  if _CLIENTS.value == 1:
    print_figures(answer, _cases())
    return
  with concurrent.futures.ThreadPoolExecutor(_CLIENTS.value) as clients:
    print_figures(
      lambda batch: list(clients.map(answer, [batch] * _CLIENTS.value)), _cases(), _CLIENTS.value
    )


def print_figures(answer: Answer, cases: Mapping[str, np.ndarray], num_requests: int = 1) -> None:
  """Prints the fastest milliseconds of a text in each case, and the memory of this process.

  Args:
    answer: answers `num_requests` requests of a batch.
    cases: see `_ALL_CASES`.
    num_requests: 1 or more.
  """
  milliseconds = {}
  for name, lengths in cases.items():
    batch = _batch(lengths)
    times = []
    for _ in range(2 + _REPEATS):  # Two warm up.
      start = time.perf_counter()
      answer(batch)
      times.append(time.perf_counter() - start)
    milliseconds[name] = min(times[2:]) * 1e3 / (num_requests * len(lengths))
  # `getrusage` would count what the process before `exec` held.
  status = pathlib.Path("/proc/self/status").read_text(encoding="utf-8")
  kilobytes = re.search(r"VmHWM:\s+(\d+)", status)
  megabytes = int(kilobytes[1]) / 1024 if kilobytes else 0.0
  print(json.dumps({"milliseconds": milliseconds, "megabytes": round(megabytes)}))


if __name__ == "__main__":
  measuring.run(_measure)
