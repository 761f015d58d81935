"""Runs lowered programs on an NVIDIA GPU by JAX's client, where there is no TensorFlow; prints one JSON line each.

`gpu_step.py --lower_only` writes the programs of whole training steps. This script needs this repository on Python's
path, JAX and NumPy, and PyTorch with transformers for `--torch`. Each step takes the weights of the step before. Times
are the median of three rounds.

Example:
  PYTHONPATH=. python benchmarks/gpu/run_programs.py programs/*.mlir.gz --torch=base,512,64 --torch=large,512,32
"""

import argparse
import collections
from collections.abc import Callable, Sequence
import dataclasses
import gzip
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, NamedTuple

os.environ.setdefault("JAX_ENABLE_X64", "1")  # The programs have 64-bit counters.

import numpy as np

from albert_tf.configs import SIZES, AlbertConfig
from albert_tf.errors import UserError
from albert_tf.planning.estimate import STEP_PER_FORWARD, StepShape, forward_flops_per_example

_ROUNDS = 3
_WARM_UP_STEPS = 3
_SHORTEST_TEXT = 0.86  # Of the length; the mean is then 0.93.
_NUMPY_TYPES = {"f32": "float32", "i32": "int32", "i64": "int64", "ui32": "uint32", "i1": "bool"}
_PROFILED_STEPS = 3
_NUM_KERNELS = 60  # The longest ones, which are shown.


@dataclasses.dataclass(frozen=True)
class Step:
  """The sizes of a training step."""

  size: str  # Of the model.
  length: int
  batch: int

  @classmethod
  def parse(cls, text: str) -> "Step":
    """Reads SIZE,LENGTH,BATCH."""
    match = re.fullmatch(r"(\w+),(\d+),(\d+)", text)
    if match is None or match[1] not in SIZES:
      raise UserError(
        f"A step is SIZE,LENGTH,BATCH with a size of {', '.join(SIZES)}. Received: {text!r}. "
        "Give one such as base,512,64."
      )
    return cls(size=match[1], length=int(match[2]), batch=int(match[3]))

  @classmethod
  def of_program(cls, path: pathlib.Path) -> "Step":
    """base_512_64.mlir.gz → base,512,64."""
    name, _, _ = path.name.partition(".")
    return cls.parse(",".join(name.rsplit("_", 2)))

  @property
  def name(self) -> str:
    return f"{self.size}_{self.length}_{self.batch}"

  @property
  def config(self) -> AlbertConfig:
    return AlbertConfig.from_name(self.size)

  @property
  def shape(self) -> StepShape:
    return StepShape(
      per_core_batch_size=self.batch,
      max_seq_length=self.length,
      max_predictions_per_seq=round(0.15 * self.length),
    )

  def figures(self, milliseconds: float) -> dict[str, Any]:
    """The sizes, and the rates of a step that takes this time."""
    predictions = self.shape.max_predictions_per_seq
    forward = forward_flops_per_example(
      self.config, max_seq_length=self.length, max_predictions_per_seq=predictions
    )
    flops = STEP_PER_FORWARD * self.batch * forward
    rates = {
      "predictions": predictions,
      "ms": round(milliseconds, 2),
      "examples_per_s": round(1e3 * self.batch / milliseconds, 1),
      "model_tflops": round(flops / milliseconds / 1e9, 1),
    }
    return dataclasses.asdict(self) | rates


def example_batch(step: Step) -> dict[str, np.ndarray]:
  """Random examples, padded at the end, by the names of the training step's inputs."""
  random = np.random.RandomState(0)
  vocab_size = step.config.vocab_size
  rows = (step.batch, step.length)
  predictions = (step.batch, step.shape.max_predictions_per_seq)
  shortest = int(step.length * _SHORTEST_TEXT)
  lengths = random.randint(shortest, step.length + 1, step.batch)
  # Only tokens of the text are masked, in the shortest one too.
  positions = [
    np.sort(random.permutation(shortest)[: step.shape.max_predictions_per_seq])
    for _ in range(step.batch)
  ]
  numbers = np.arange(step.length)
  return {
    "input_ids": random.randint(5, vocab_size, rows),
    "input_mask": numbers[np.newaxis] < lengths[:, np.newaxis],
    "masked_lm_ids": random.randint(5, vocab_size, predictions),
    "masked_lm_positions": np.stack(positions),
    "masked_lm_weights": np.ones(predictions),
    "segment_ids": np.tile(numbers >= step.length // 2, (step.batch, 1)),
    "sentence_order_labels": random.randint(0, 2, step.batch),
  }


def median_milliseconds(
  step: Callable[[], Any], wait: Callable[[], Any], steps_per_round: int
) -> float:
  """Milliseconds of a step, the median of some rounds.

  A device works behind the program, so a round is timed to the end of its last step.

  Args:
    step: starts a step.
    wait: waits for the last one.
    steps_per_round: how many are started before the program waits.
  """
  for _ in range(_WARM_UP_STEPS):
    step()
  wait()
  seconds = []
  for _ in range(_ROUNDS):
    began = time.perf_counter()
    for _ in range(steps_per_round):
      step()
    wait()
    seconds.append((time.perf_counter() - began) / steps_per_round)
  return 1e3 * statistics.median(seconds)


# ---------------------------------------------------------------------- our step


class _Argument(NamedTuple):
  """What a program takes."""

  shape: list[int]
  type_name: str  # Such as "f32".


class Program:
  """A compiled program on a device.

  Attributes:
    arguments: what it takes.
    replaced: number of a result → number of the argument that it replaces in the next step.
  """

  def __init__(self, path: pathlib.Path):
    import jax
    from jax._src.interpreters import mlir as jax_mlir
    from jax._src.lib import xla_client
    from jax._src.lib.mlir import ir

    self._jax = jax
    self.device = next(iter(jax.devices()))
    text = gzip.decompress(path.read_bytes()).decode()
    # Before the first function stand the attributes of the module.
    head, _, _ = text.partition("func.func")
    pairs = re.findall(r"parameter_number = (\d+) : i64\}, output_index = array<i64: (\d+)>", head)
    self.replaced = {int(result): int(argument) for argument, result in pairs}
    began = time.perf_counter()
    # JAX's public functions run what JAX has traced; this program comes from TensorFlow.
    with jax_mlir.make_ir_context() as context:
      context.allow_unregistered_dialects = True
      module = ir.Module.parse(text)
      # Arguments are kept, so that any step can be run again; JAX would read these marks otherwise.
      for name in ("mhlo.input_output_alias", "mhlo.cross_program_prefetches"):
        if name in module.operation.attributes:
          del module.operation.attributes[name]
      self.arguments = _arguments(module, ir)
      devices = xla_client.DeviceList((self.device,))
      self.executable = self.device.client.compile_and_load(
        module, devices, xla_client.CompileOptions()
      )
    self.compile_seconds = time.perf_counter() - began

  def put(self, values: Sequence[np.ndarray]) -> list[Any]:
    """Copies arguments to the device."""
    return [self._jax.device_put(value, self.device) for value in values]

  def run(self, arguments: Sequence[Any]) -> list[Any]:
    results = self.executable.execute_sharded(arguments)
    by_device = results.disassemble_into_single_device_arrays()
    return [next(iter(arrays)) for arrays in by_device]

  def next_arguments(self, arguments: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    """The arguments of the next step: the same batch, and the weights of this step."""
    updated = list(arguments)
    for result, argument in self.replaced.items():
      updated[argument] = results[result]
    return updated


def _arguments(module: Any, ir: Any) -> list[_Argument]:
  for operation in module.body.operations:
    attributes = operation.attributes
    if "sym_name" in attributes and ir.StringAttr(attributes["sym_name"]).value == "main":
      inputs = ir.FunctionType(ir.TypeAttr(attributes["function_type"]).value).inputs
      tensors = [ir.RankedTensorType(input_) for input_ in inputs]
      return [_Argument(list(tensor.shape), str(tensor.element_type)) for tensor in tensors]
  raise ValueError("The program has no function main.")


def _start_values(arguments: Sequence[_Argument], batch: dict[str, np.ndarray]) -> list[np.ndarray]:
  """The batch, in the order of its names, then positive random numbers for weights and slots, and step 0."""
  random = np.random.RandomState(1)
  names = sorted(batch)
  values = []
  for number, argument in enumerate(arguments):
    dtype = _NUMPY_TYPES[argument.type_name]
    if number < len(names):
      name = names[number]
      if list(batch[name].shape) != argument.shape:
        raise ValueError(
          f"Argument {number} must be {name} {batch[name].shape}. Received: {argument.shape}."
        )
      values.append(batch[name].astype(dtype))
    elif dtype == "float32" and argument.shape:
      # Positive, because the second moments are among them.
      weights = np.abs(0.02 * random.standard_normal(argument.shape))
      values.append(weights.astype(dtype))
    else:
      values.append(np.zeros(argument.shape, dtype))
  return values


def run_program(path: pathlib.Path, steps_per_round: int, profile: str) -> dict[str, Any]:
  """Times the step of a program, whose sizes are in its name.

  Args:
    path: of the program.
    steps_per_round: see `median_milliseconds`.
    profile: a folder for the compiled program; "": no kernels are listed.
  """
  import jax

  sizes = Step.of_program(path)
  program = Program(path)
  arguments = program.put(_start_values(program.arguments, example_batch(sizes)))
  results: list[Any] = []

  def step() -> None:
    nonlocal arguments, results
    results = program.run(arguments)
    arguments = program.next_arguments(arguments, results)

  def wait() -> None:
    jax.block_until_ready(results)

  def masked_lm_loss() -> float:
    metrics = next(iter(results))
    return float(np.asarray(metrics).flat[0])

  step()  # So that there is a loss to read.
  first_loss = masked_lm_loss()
  milliseconds = median_milliseconds(step, wait, steps_per_round)
  memory = program.executable.get_compiled_memory_stats()
  (compiled,) = program.executable.hlo_modules()
  text = compiled.to_string()
  figures = {"name": sizes.name} | sizes.figures(milliseconds)
  figures |= {
    "temporary_gib": round(memory.temp_size_in_bytes / 2**30, 2),
    "compile_s": round(program.compile_seconds, 1),
    "fused_attention_calls": len(re.findall(r"custom_call_target=\"__cudnn\$fmha", text)),
    # A loss that falls, or stays finite: the step did its work.
    "masked_lm_loss_first_last": [first_loss, masked_lm_loss()],
  }
  if profile:
    figures["kernels"] = longest_kernels(step, wait)
    with gzip.open(pathlib.Path(profile, f"{sizes.name}.hlo.txt.gz"), "wt") as stream:
      stream.write(text)
  return figures


def longest_kernels(step: Callable[[], Any], wait: Callable[[], Any]) -> list[dict[str, Any]]:
  """The kernels that take longest, with their launches in a step."""
  import jax

  with tempfile.TemporaryDirectory() as folder:
    with jax.profiler.trace(folder):
      for _ in range(_PROFILED_STEPS):
        step()
      wait()
    (path,) = pathlib.Path(folder).glob("**/*.xplane.pb")
    profile = jax.profiler.ProfileData.from_file(str(path))

  milliseconds: dict[str, float] = collections.defaultdict(float)
  launches: collections.Counter[str] = collections.Counter()
  lines = (line for plane in profile.planes if "GPU" in plane.name for line in plane.lines)
  for line in lines:
    # Other lines show the same kernels by module and by operation.
    if "Stream" not in line.name:
      continue
    for event in line.events:
      milliseconds[event.name] += event.duration_ns / 1e6 / _PROFILED_STEPS
      launches[event.name] += 1
  longest = sorted(milliseconds, key=milliseconds.__getitem__, reverse=True)
  return [
    {
      "name": name[:90],
      "ms": round(milliseconds[name], 3),
      "launches": launches[name] // _PROFILED_STEPS,
    }
    for name in longest[:_NUM_KERNELS]
  ]


# ---------------------------------------------------------------------- the other side, and the card


def run_torch(sizes: Step, steps_per_round: int) -> dict[str, Any]:
  """The same work by Hugging Face's ALBERT: torch.compile, bfloat16, SDPA and PyTorch's fused AdamW."""
  import torch
  import transformers

  config = transformers.AlbertConfig.from_dict(sizes.config.to_huggingface_dict())
  config._attn_implementation = "sdpa"
  model = transformers.AlbertForPreTraining(config).to("cuda").train()
  inputs = {
    name: torch.tensor(values.astype("int64")).cuda()
    for name, values in example_batch(sizes).items()
  }
  rows = inputs["masked_lm_positions"][:, :, None].expand(-1, -1, config.hidden_size)
  optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
  cross_entropy = torch.nn.functional.cross_entropy

  def forward() -> Any:
    # The whole model would compute logits at every position.
    outputs = model.albert(
      input_ids=inputs["input_ids"],
      attention_mask=inputs["input_mask"],
      token_type_ids=inputs["segment_ids"],
    )
    logits = model.predictions(outputs.last_hidden_state.gather(1, rows)).float()
    order = model.sop_classifier(outputs.pooler_output).float()
    masked_lm = cross_entropy(logits.flatten(0, 1), inputs["masked_lm_ids"].flatten())
    return masked_lm + cross_entropy(order, inputs["sentence_order_labels"])

  compiled = torch.compile(forward)

  def step() -> None:
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
      loss = compiled()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    optimizer.step()

  milliseconds = median_milliseconds(step, torch.cuda.synchronize, steps_per_round)
  versions = f"Hugging Face {transformers.__version__}, PyTorch {torch.__version__}"
  figures = {"name": f"{versions}, torch.compile"} | sizes.figures(milliseconds)
  figures["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
  return figures


def product_rate() -> dict[str, Any]:
  """TFLOP/s of one large product in bfloat16, as a measure of the card."""
  import jax
  import jax.numpy as jnp

  side = 8192  # Large enough that nothing but the product counts.
  matrix = jax.random.normal(jax.random.key(0), (side, side), jnp.bfloat16)
  multiply = jax.jit(jnp.matmul)
  product = matrix

  def step() -> None:
    nonlocal product
    product = multiply(matrix, matrix)

  milliseconds = median_milliseconds(step, lambda: product.block_until_ready(), 20)
  device = next(iter(jax.devices()))
  return {
    "name": f"product of {side} x {side}",
    "device": device.device_kind,
    "jaxlib": jax.lib.__version__,
    "tflops": round(2 * side**3 / milliseconds / 1e9, 1),
  }


# ---------------------------------------------------------------------- the command


def main() -> None:
  parser = argparse.ArgumentParser(description="Runs lowered training steps on an NVIDIA GPU.")
  parser.add_argument("programs", nargs="*", type=pathlib.Path, help="what gpu_step.py has written")
  parser.add_argument("--torch", action="append", default=[], help="SIZE,LENGTH,BATCH")
  parser.add_argument("--steps", type=int, default=20, help="steps of a timed round")
  parser.add_argument(
    "--profile", default="", help="folder for the compiled programs; also lists the longest kernels"
  )
  parser.add_argument("--one", default="", help="internal: run this in this process")
  options = parser.parse_args()
  if options.one:
    print(json.dumps(_run_one(options)), flush=True)
    return

  # Each in a process of its own: the memory of one is not there for the next.
  work = ["rate="]
  work += [f"program={path}" for path in options.programs]
  work += [f"torch={text}" for text in options.torch]
  for one in work:
    command = [sys.executable, __file__, f"--one={one}", f"--steps={options.steps}"]
    command.append(f"--profile={options.profile}")
    # One that fails, such as for memory, does not end the others.
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = finished.stdout.splitlines()
    if finished.returncode or not lines:
      print(json.dumps({"name": one, "error": finished.stderr[-1500:]}), flush=True)
    else:
      print(lines[-1], flush=True)


def _run_one(options: argparse.Namespace) -> dict[str, Any]:
  kind, _, argument = options.one.partition("=")
  if kind == "torch":
    return run_torch(Step.parse(argument), options.steps)
  if kind == "program":
    return run_program(pathlib.Path(argument), options.steps, options.profile)
  return product_rate()


if __name__ == "__main__":
  main()
