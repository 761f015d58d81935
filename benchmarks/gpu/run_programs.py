"""Runs lowered programs on an NVIDIA GPU by JAX's client, where there is no TensorFlow; prints one JSON line each.

`gpu_step.py --lower_only` writes the programs of whole training steps. This script needs JAX and NumPy alone, and
PyTorch with transformers for `--torch`. Each step takes the weights of the step before. Times are the median of
three rounds. With `--profile`, the compiled programs go to the folder that the variable OUT names.

Example:
  python benchmarks/gpu/run_programs.py programs/*.mlir.gz --torch=base,512,64 --torch=large,512,32
"""

import argparse
from collections.abc import Callable
import gzip
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time
from typing import Any

os.environ.setdefault("JAX_ENABLE_X64", "1")  # The programs have 64-bit counters.

import ml_dtypes
import numpy as np

VOCABULARY = 30000
WIDTHS = {  # Size → hidden size, layers, heads, intermediate size; arXiv 1909.11942, table 1.
  "base": (768, 12, 12, 3072),
  "large": (1024, 24, 16, 4096),
}
ROUNDS = 3
WARM_UP_STEPS = 3
SHORTEST_TEXT = 0.86  # Of the length; the mean is then 0.93.
_BIT_TYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}
_NUMPY_TYPES = {"f32": "float32", "i32": "int32", "i64": "int64", "ui32": "uint32", "i1": "bool"}


def num_predictions(length: int) -> int:
  """15% of the tokens."""
  return round(0.15 * length)


def example_batch(batch: int, length: int, predictions: int) -> dict[str, np.ndarray]:
  """Random examples, padded at the end, by the names of the training step's inputs."""
  random = np.random.RandomState(0)
  shortest = int(length * SHORTEST_TEXT)
  lengths = random.randint(shortest, length + 1, batch)
  positions = [np.sort(random.permutation(shortest)[:predictions]) for _ in range(batch)]
  return {
    "input_ids": random.randint(5, VOCABULARY, (batch, length)),
    "input_mask": np.arange(length)[np.newaxis] < lengths[:, np.newaxis],
    "masked_lm_ids": random.randint(5, VOCABULARY, (batch, predictions)),
    "masked_lm_positions": np.stack(positions),
    "masked_lm_weights": np.ones((batch, predictions)),
    "segment_ids": np.tile(np.arange(length) >= length // 2, (batch, 1)),
    "sentence_order_labels": random.randint(0, 2, batch),
  }


def model_flops(size: str, batch: int, length: int, predictions: int) -> float:
  """Operations of the matrix products of a step; forward, and twice as many backward."""
  hidden, layers, _, inner = WIDTHS[size]
  embedding = 128
  of_token = layers * (4 * hidden * hidden + 2 * hidden * inner) + embedding * hidden
  of_scores = 4 * batch * length * length * hidden * layers
  of_vocabulary = 2 * batch * predictions * (hidden * embedding + embedding * VOCABULARY)
  return 3 * (2 * batch * length * of_token + of_scores + of_vocabulary)


def measured(step: Callable[[], Any], wait: Callable[[], Any], steps: int) -> float:
  """Milliseconds of a step, the median of some rounds."""
  for _ in range(WARM_UP_STEPS):
    step()
  wait()
  times = []
  for _ in range(ROUNDS):
    began = time.perf_counter()
    for _ in range(steps):
      step()
    wait()
    times.append((time.perf_counter() - began) / steps)
  return 1e3 * statistics.median(times)


class Program:
  """A compiled program, its arguments on the device, and the results that are the next call's arguments."""

  def __init__(self, path: pathlib.Path):
    import jax
    from jax._src.interpreters import mlir as jax_mlir
    from jax._src.lib import xla_client
    from jax._src.lib.mlir import ir

    self._jax = jax
    self.device = jax.devices()[0]
    text = gzip.decompress(path.read_bytes()).decode()
    head = text[: text.index("func.func")]
    # Result number → number of the argument that it replaces.
    pairs = re.findall(r"parameter_number = (\d+) : i64\}, output_index = array<i64: (\d+)>", head)
    self.replaced = {int(result): int(argument) for argument, result in pairs}
    began = time.perf_counter()
    with jax_mlir.make_ir_context() as context:
      context.allow_unregistered_dialects = True
      module = ir.Module.parse(text)
      # Arguments are kept, so that any step can be run again; JAX would read these marks otherwise.
      for name in ("mhlo.input_output_alias", "mhlo.cross_program_prefetches"):
        if name in module.operation.attributes:
          del module.operation.attributes[name]
      self.types = self._argument_types(module, ir)
      devices = xla_client.DeviceList((self.device,))
      self.executable = self.device.client.compile_and_load(
        module, devices, xla_client.CompileOptions()
      )
    self.compile_seconds = time.perf_counter() - began

  def _argument_types(self, module: Any, ir: Any) -> list[tuple[list[int], str]]:
    for operation in module.body.operations:
      attributes = operation.attributes
      if "sym_name" in attributes and ir.StringAttr(attributes["sym_name"]).value == "main":
        inputs = ir.FunctionType(ir.TypeAttr(attributes["function_type"]).value).inputs
        tensors = [ir.RankedTensorType(input_) for input_ in inputs]
        return [(list(tensor.shape), str(tensor.element_type)) for tensor in tensors]
    raise ValueError("The program has no function main.")

  def put(self, values: Any) -> list[Any]:
    return [self._jax.device_put(np.asarray(value), self.device) for value in values]

  def run(self, arguments: list[Any]) -> list[Any]:
    results = self.executable.execute_sharded(arguments)
    return [of_devices[0] for of_devices in results.disassemble_into_single_device_arrays()]

  def following(self, arguments: list[Any], results: list[Any]) -> list[Any]:
    """The arguments of the next step."""
    arguments = list(arguments)
    for result, argument in self.replaced.items():
      arguments[argument] = results[result]
    return arguments


def start_values(program: Program, batch: dict[str, np.ndarray]) -> list[np.ndarray]:
  """The batch, in the order of its names, then positive random numbers for weights and slots, and step 0."""
  random = np.random.RandomState(1)
  values = []
  for number, (shape, type_name) in enumerate(program.types):
    dtype = _NUMPY_TYPES[type_name]
    if number < len(batch):
      name = sorted(batch)[number]
      if list(batch[name].shape) != shape:
        raise ValueError(
          f"Argument {number} must be {name} {batch[name].shape}. Received: {shape}."
        )
      values.append(batch[name].astype(dtype))
    elif dtype == "float32" and shape:
      values.append(np.abs(random.standard_normal(shape) * 0.02).astype(dtype))
    else:
      values.append(np.zeros(shape, dtype))
  return values


def run_step(path: pathlib.Path, steps: int, profile: bool) -> dict[str, Any]:
  """Times a training step, whose sizes are in the file beside it."""
  import jax

  sizes = json.loads(path.with_suffix("").with_suffix(".json").read_text())
  shape = (sizes["batch"], sizes["length"], sizes["predictions"])
  program = Program(path)
  state = {"arguments": program.put(start_values(program, example_batch(*shape)))}

  def step() -> None:
    state["results"] = program.run(state["arguments"])
    state["arguments"] = program.following(state["arguments"], state["results"])

  step()
  first = np.asarray(state["results"][0]).tolist()
  milliseconds = measured(step, lambda: jax.block_until_ready(state["results"]), steps)
  last = np.asarray(state["results"][0]).tolist()
  memory = program.executable.get_compiled_memory_stats()
  text = program.executable.hlo_modules()[0].to_string()
  result = {
    "name": path.name.partition(".")[0],
    **sizes,
    **rates(sizes["size"], *shape, milliseconds),
    "temporary_gib": round(memory.temp_size_in_bytes / 2**30, 2),
    "compile_s": round(program.compile_seconds, 1),
    "fused_attention_calls": len(re.findall(r"custom_call_target=\"__cudnn\$fmha", text)),
    "masked_lm_loss_first_last": [first[0], last[0]],
  }
  if profile:
    result["kernels"] = kernels(step, lambda: jax.block_until_ready(state["results"]))
    out = os.environ.get("OUT")
    if out:
      with gzip.open(f"{out}/{result['name']}.hlo.txt.gz", "wt") as stream:
        stream.write(text)
  return result


def rates(
  size: str, batch: int, length: int, predictions: int, milliseconds: float
) -> dict[str, float]:
  flops = model_flops(size, batch, length, predictions)
  return {
    "ms": round(milliseconds, 2),
    "examples_per_s": round(1e3 * batch / milliseconds, 1),
    "model_tflops": round(flops / milliseconds / 1e9, 1),
  }


def kernels(step: Callable[[], Any], wait: Callable[[], Any], steps: int = 3) -> list[list[Any]]:
  """The kernels that take longest: name, milliseconds and launches a step."""
  import collections
  import tempfile

  import jax

  folder = tempfile.mkdtemp()
  with jax.profiler.trace(folder):
    for _ in range(steps):
      step()
    wait()
  (path,) = pathlib.Path(folder).glob("**/*.xplane.pb")
  milliseconds: dict[str, float] = collections.defaultdict(float)
  launches: dict[str, int] = collections.defaultdict(int)
  for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
    if "GPU" not in plane.name:
      continue
    for line in plane.lines:
      if "Stream" not in line.name:
        continue
      for event in line.events:
        milliseconds[event.name] += event.duration_ns / 1e6 / steps
        launches[event.name] += 1
  longest = sorted(milliseconds.items(), key=lambda item: -item[1])[:60]
  return [[name[:90], round(ms, 3), launches[name] // steps] for name, ms in longest]


def torch_step(spec: str, steps: int) -> dict[str, Any]:
  """The same work by Hugging Face's ALBERT: torch.compile, bfloat16, SDPA and PyTorch's fused AdamW."""
  import torch
  import transformers

  size, length_text, batch_text = spec.split(",")
  batch, length = int(batch_text), int(length_text)
  predictions = num_predictions(length)
  hidden, layers, heads, inner = WIDTHS[size]
  config = transformers.AlbertConfig(
    hidden_size=hidden,
    num_hidden_layers=layers,
    num_attention_heads=heads,
    intermediate_size=inner,
    hidden_act="gelu_new",
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
  )
  config._attn_implementation = "sdpa"
  model = transformers.AlbertForPreTraining(config).to("cuda").train()
  made = example_batch(batch, length, predictions)
  inputs = {name: torch.tensor(value.astype("int64")).cuda() for name, value in made.items()}
  rows = inputs["masked_lm_positions"][:, :, None].expand(-1, -1, hidden)
  optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
  cross_entropy = torch.nn.functional.cross_entropy

  def loss() -> Any:
    outputs = model.albert(
      input_ids=inputs["input_ids"],
      attention_mask=inputs["input_mask"],
      token_type_ids=inputs["segment_ids"],
    )
    logits = model.predictions(outputs.last_hidden_state.gather(1, rows)).float()
    order = model.sop_classifier(outputs.pooler_output).float()
    masked_lm = cross_entropy(logits.flatten(0, 1), inputs["masked_lm_ids"].flatten())
    return masked_lm + cross_entropy(order, inputs["sentence_order_labels"])

  compiled = torch.compile(loss)

  def step() -> None:
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
      value = compiled()
    value.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    optimizer.step()

  milliseconds = measured(step, torch.cuda.synchronize, steps)
  return {
    "name": f"Hugging Face {transformers.__version__}, PyTorch {torch.__version__}, torch.compile",
    "size": size,
    "batch": batch,
    "length": length,
    "predictions": predictions,
    **rates(size, batch, length, predictions, milliseconds),
    "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
  }


def product_rate() -> dict[str, Any]:
  """TFLOP/s of one large product in bfloat16, as a measure of the card."""
  import jax
  import jax.numpy as jnp

  side = 8192
  key = jax.random.key(0)
  matrix = jax.random.normal(key, (side, side), jnp.bfloat16)
  state = {"product": matrix}
  multiply = jax.jit(lambda left, right: left @ right)

  def step() -> None:
    state["product"] = multiply(matrix, matrix)

  milliseconds = measured(step, lambda: state["product"].block_until_ready(), 20)
  return {
    "name": "product of 8192 x 8192",
    "device": jax.devices()[0].device_kind,
    "jaxlib": jax.lib.__version__,
    "tflops": round(2 * side**3 / milliseconds / 1e9, 1),
  }


def check_attention(path: pathlib.Path) -> dict[str, Any]:
  """Largest differences between fused attention and plain attention in float32, relative to the largest value."""
  program = Program(path)
  expected = np.load(path.with_suffix("").with_suffix(".npz"))
  arguments = []
  for number, (_, type_name) in enumerate(program.types):
    value = expected[f"argument_{number}"]
    if type_name in _BIT_TYPES:  # NumPy's files hold the bits of 16-bit numbers.
      value = value.view(_BIT_TYPES[type_name])
    arguments.append(value)
  results = program.run(program.put(arguments))
  errors = []
  for number, result in enumerate(results):
    value = expected[f"result_{number}"].astype(np.float32)
    difference = np.abs(np.asarray(result).astype(np.float32) - value).max()
    errors.append(float(f"{difference / np.abs(value).max():.2g}"))
  return {"name": path.name.partition(".")[0], "relative_errors": errors}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("programs", nargs="*", type=pathlib.Path)
  parser.add_argument("--torch", action="append", default=[], help="SIZE,LENGTH,BATCH")
  parser.add_argument("--steps", type=int, default=20, help="steps of a timed round")
  parser.add_argument("--profile", action="store_true", help="list the longest kernels")
  parser.add_argument("--one", default="", help="internal: run this in this process")
  options = parser.parse_args()

  if options.one:
    kind, _, what = options.one.partition("=")
    if kind == "torch":
      result = torch_step(what, options.steps)
    elif kind == "rate":
      result = product_rate()
    elif what.startswith("attention_") or "/attention_" in what:
      result = check_attention(pathlib.Path(what))
    else:
      result = run_step(pathlib.Path(what), options.steps, options.profile)
    print(json.dumps(result), flush=True)
    return

  # Each in a process of its own: the memory of one is not there for the next.
  work = ["rate="] + [f"program={path}" for path in options.programs]
  work += [f"torch={spec}" for spec in options.torch]
  for one in work:
    command = [sys.executable, __file__, f"--one={one}", f"--steps={options.steps}"]
    if options.profile:
      command.append("--profile")
    finished = subprocess.run(command, capture_output=True, text=True)
    lines = finished.stdout.splitlines()
    if finished.returncode or not lines:
      print(json.dumps({"name": one, "error": finished.stderr[-1500:]}), flush=True)
    else:
      print(lines[-1], flush=True)


if __name__ == "__main__":
  main()
