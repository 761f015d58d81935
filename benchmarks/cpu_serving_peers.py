"""The other runtimes of `cpu_serving.py`, in an environment without TensorFlow.

Hugging Face's ALBERT with random weights, in PyTorch, ONNX Runtime and OpenVINO. The argument is "export", or the side
to time; standard input has the folder, the configuration and the cases. A side prints its figures as one JSON line.

Example:
  python benchmarks/cpu_serving.py --peer_python=peers/bin/python
"""

import argparse
from collections.abc import Callable, Mapping
import concurrent.futures
import json
import os
import pathlib
import re
import sys
import threading
import time
from typing import Any

import numpy as np

_IDS = 900
_REPEATS = 7
# The inputs of Hugging Face's model, in order.
_NAMES = ("input_ids", "attention_mask", "token_type_ids")

# What `cpu_serving.py` sends: folder, model, cases, threads of an operation, clients.
Task = Mapping[str, Any]
Batch = tuple[np.ndarray, np.ndarray, np.ndarray]
Answer = Callable[[Batch], Any]


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("side", choices=["export", *_SIDES])
  side = parser.parse_args().side
  task = json.load(sys.stdin)
  if side == "export":
    _export(task["model"], task["folder"])
    return
  answer = _SIDES[side](task)
  clients = task["clients"]
  cases = {name: np.array(lengths) for name, lengths in task["cases"].items()}
  if clients == 1:
    _print_figures(answer, cases)
    return
  with concurrent.futures.ThreadPoolExecutor(clients) as pool:
    _print_figures(lambda batch: list(pool.map(answer, [batch] * clients)), cases, clients)


def _batch(lengths: np.ndarray, seed: int = 0) -> Batch:
  rng = np.random.default_rng(seed)
  mask = (np.arange(lengths.max()) < lengths[:, np.newaxis]).astype(np.int64)
  return rng.integers(5, _IDS, mask.shape) * mask, mask, np.zeros_like(mask)


def _print_figures(answer: Answer, cases: Mapping[str, np.ndarray], num_requests: int = 1) -> None:
  """As `cpu_serving.print_figures`."""
  milliseconds = {}
  for name, lengths in cases.items():
    batch = _batch(lengths)
    times = []
    for _ in range(2 + _REPEATS):
      start = time.perf_counter()
      answer(batch)
      times.append(time.perf_counter() - start)
    milliseconds[name] = min(times[2:]) * 1e3 / (num_requests * len(lengths))
  # `getrusage` would count what the process before `exec` held.
  status = pathlib.Path("/proc/self/status").read_text(encoding="utf-8")
  kilobytes = re.search(r"VmHWM:\s+(\d+)", status)
  megabytes = int(kilobytes[1]) / 1024 if kilobytes else 0.0
  print(json.dumps({"milliseconds": milliseconds, "megabytes": round(megabytes)}))


# ------------------------------------------------------------------ PyTorch


def _torch_model(config: Mapping[str, Any], attention: str = "sdpa") -> Any:
  import torch
  import transformers

  torch.manual_seed(0)
  made = transformers.AlbertConfig(num_labels=2, classifier_dropout_prob=0.0, **config)
  made._attn_implementation = attention
  return transformers.AlbertForSequenceClassification(made).eval()


def _torch_answer(task: Task) -> Answer:
  import torch

  torch.set_num_threads(task["threads"])
  model = _torch_model(task["model"])

  def answer(batch: Batch) -> Any:
    with torch.inference_mode():
      inputs = dict(zip(_NAMES, map(torch.from_numpy, batch), strict=True))
      return model(**inputs).logits.numpy()

  return answer


def _export(config: Mapping[str, Any], folder: str) -> None:
  """Writes the model as ONNX; ONNX Runtime's optimizer joins attention, LayerNorm and GELU."""
  from onnxruntime.transformers import optimizer
  import torch

  class Logits(torch.nn.Module):
    def __init__(self, model: Any):
      super().__init__()
      self.model = model

    def forward(self, *inputs: Any) -> Any:
      return self.model(**dict(zip(_NAMES, inputs, strict=True))).logits

  example = tuple(torch.ones(2, 128, dtype=torch.long) for _ in _NAMES)
  torch.onnx.export(
    Logits(_torch_model(config, "eager")),
    example,
    _onnx_path(folder),
    input_names=list(_NAMES),
    output_names=["logits"],
    dynamic_axes={name: {0: "batch", 1: "length"} for name in _NAMES},
    opset_version=17,
    dynamo=False,
  )
  fused = optimizer.optimize_model(
    _onnx_path(folder),
    model_type="bert",
    num_heads=config["num_attention_heads"],
    hidden_size=config["hidden_size"],
    opt_level=1,
  )
  fused.save_model_to_file(_onnx_path(folder, "fused"))


def _onnx_path(folder: str, kind: str = "plain") -> str:
  return os.path.join(folder, f"albert_{kind}.onnx")


# ------------------------------------------------------------------ ONNX Runtime


def _onnx_answer(path: str, task: Task) -> Answer:
  import onnxruntime

  options = onnxruntime.SessionOptions()
  options.intra_op_num_threads = task["threads"]
  session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
  return lambda batch: session.run(None, dict(zip(_NAMES, batch, strict=True)))


def _onnx_float32(task: Task) -> Answer:
  return _onnx_answer(_onnx_path(task["folder"], "fused"), task)


def _onnx_int8(task: Task) -> Answer:
  """Weights of 8 bits; ranges of the inputs are found in each call (dynamic)."""
  import onnx
  from onnxruntime.quantization import QuantType, quantize_dynamic

  path = _onnx_path(task["folder"], "int8")
  if not os.path.exists(path):
    quantize_dynamic(
      _onnx_path(task["folder"], "fused"),
      path,
      weight_type=QuantType.QInt8,
      per_channel=True,
      # Shapes are not known behind the fused operators of ONNX Runtime.
      extra_options={"MatMulConstBOnly": True, "DefaultTensorType": onnx.TensorProto.FLOAT},
    )
    kinds = [node.op_type for node in onnx.load(path).graph.node]
    if "DynamicQuantizeLinear" not in kinds and "QAttention" not in kinds:
      raise RuntimeError(f"Nothing was quantized in {path}.")
  return _onnx_answer(path, task)


# ------------------------------------------------------------------ OpenVINO


def _openvino_answer(model: Any, task: Task, **options: Any) -> Answer:
  import openvino

  core = openvino.Core()
  if model is None:
    model = core.read_model(_onnx_path(task["folder"]))
  clients = task["clients"]
  options["INFERENCE_NUM_THREADS"] = task["threads"] * clients
  options["PERFORMANCE_HINT"] = "LATENCY"
  if clients > 1:
    options |= {"PERFORMANCE_HINT": "THROUGHPUT", "NUM_STREAMS": clients}
  compiled = core.compile_model(model, "CPU", options)
  # A request belongs to a thread.
  of_thread = threading.local()

  def answer(batch: Batch) -> Any:
    if not hasattr(of_thread, "request"):
      of_thread.request = compiled.create_infer_request()
    return of_thread.request.infer(dict(zip(_NAMES, batch, strict=True)))

  return answer


def _openvino_float32(task: Task) -> Answer:
  return _openvino_answer(None, task, INFERENCE_PRECISION_HINT="f32")


def _openvino_bfloat16(task: Task) -> Answer:
  return _openvino_answer(None, task, INFERENCE_PRECISION_HINT="bf16")


def _openvino_int8(task: Task) -> Answer:
  import nncf
  import openvino

  texts = [_batch(np.array([64]), seed) for seed in range(16)]
  data = nncf.Dataset(texts, lambda batch: dict(zip(_NAMES, batch, strict=True)))
  model = openvino.Core().read_model(_onnx_path(task["folder"]))
  quantized = nncf.quantize(
    model, data, model_type=nncf.ModelType.TRANSFORMER, subset_size=len(texts)
  )
  return _openvino_answer(quantized, task)


_SIDES: dict[str, Callable[[Task], Answer]] = {
  "torch": _torch_answer,
  "onnxruntime": _onnx_float32,
  "onnxruntime_int8": _onnx_int8,
  "openvino": _openvino_float32,
  "openvino_bfloat16": _openvino_bfloat16,
  "openvino_int8": _openvino_int8,
}

if __name__ == "__main__":
  main()
