"""A training step on one NVIDIA GPU, beside Hugging Face's on PyTorch; prints one JSON line for each.

With a GPU, TensorFlow runs our step, then PyTorch the other in the same command. Without one, --lower_only writes
the same steps as StableHLO, and `gpu/run_programs.py` runs both where only JAX and PyTorch are: XLA compiles the
same program there. That needs the extra tpu-compile here, for JAX.

Steps are bfloat16, LAMB, without dropout, with 15% of the tokens predicted; masks end within the last seventh.

Example:
  python benchmarks/gpu_step.py
  python benchmarks/gpu_step.py --lower_only=programs
  PYTHONPATH=. python benchmarks/gpu/run_programs.py programs/*.mlir.gz --torch=base,512,64 --torch=large,512,32
"""

import gzip
import json
import pathlib
import subprocess
import sys
from typing import Any

from absl import flags
from gpu import run_programs
from gpu.run_programs import Step
import measuring

from albert_tf.errors import UserError

_STEPS = flags.DEFINE_multi_string(
  "step", ["base,512,64", "base,128,256", "large,512,32"], "SIZE,LENGTH,BATCH; may be repeated."
)
_LOWER_ONLY = flags.DEFINE_string("lower_only", "", "Folder for the programs; nothing is run.")
_TORCH = flags.DEFINE_bool("torch", True, "Run PyTorch's step too.")
_TIMED_STEPS = flags.DEFINE_integer("timed_steps", 20, "Steps of a timed round.")


def _measure() -> None:
  steps = [Step.parse(text) for text in _STEPS.value]
  if _LOWER_ONLY.value:
    folder = pathlib.Path(_LOWER_ONLY.value)
    folder.mkdir(parents=True, exist_ok=True)
    for step in steps:
      _lower(step, folder)
    return

  import tensorflow as tf

  if not tf.config.list_physical_devices("GPU"):
    raise UserError(
      "The step is timed on an NVIDIA GPU. Received: a machine on which TensorFlow sees none. "
      "Install tensorflow[and-cuda] (docs/gpu.md), or write the programs with --lower_only=FOLDER."
    )
  for step in steps:
    print(json.dumps(_run_here(step)), flush=True)
  if _TORCH.value:
    # PyTorch's step in a process of its own, which does not share the GPU's memory with TensorFlow.
    command = [sys.executable, run_programs.__file__]
    command += [f"--torch={text}" for text in _STEPS.value]
    subprocess.run(command, check=True)


def _lower(step: Step, folder: pathlib.Path) -> None:
  """Writes the step's program, NAME.mlir.gz."""
  from jax._src.interpreters import mlir as jax_mlir
  from jax._src.lib import xla_client
  from jax._src.lib.mlir import ir

  from albert_tf.planning.lowering import lower_train_step

  # TensorFlow gives HLO; other versions of XLA read StableHLO.
  hlo = lower_train_step(step.config, step.shape, device="gpu")
  with jax_mlir.make_ir_context() as context:
    context.allow_unregistered_dialects = True
    module = ir.Module.parse(xla_client._xla.mlir.hlo_to_stablehlo(hlo))
    _erase_copies(module.operation)
    text = str(module)
  path = folder / f"{step.name}.mlir.gz"
  with gzip.open(path, "wt") as stream:
    stream.write(text)
  print(f"{path}: {text.count('@__cudnn$fmha')} calls of fused attention")


def _erase_copies(operation: Any) -> None:
  """Removes XLA's own `mhlo.copy`, which changes nothing and which other versions do not read."""
  blocks = [block for region in operation.regions for block in region.blocks]
  for block in blocks:
    # A list: an erased operation is no longer part of the block.
    for inner in list(block.operations):
      if inner.operation.name != "mhlo.copy":
        _erase_copies(inner.operation)
        continue
      (source,) = inner.operation.operands
      (result,) = inner.operation.results
      result.replace_all_uses_with(source)
      inner.operation.erase()


def _run_here(step: Step) -> dict[str, Any]:
  """Times our step by TensorFlow on its first GPU."""
  import tensorflow as tf

  from albert_tf.planning.lowering import compiled_step

  function = compiled_step(step.config, step.shape, device="gpu")
  batch = {
    name: tf.constant(values, tf.int32) for name, values in run_programs.example_batch(step).items()
  }
  batch["masked_lm_weights"] = tf.cast(batch["masked_lm_weights"], tf.float32)
  metrics: Any = None

  def update() -> None:
    nonlocal metrics
    metrics = function(batch)

  # TensorFlow returns before the GPU has ended; reading the metrics waits for it.
  milliseconds = run_programs.median_milliseconds(
    update, lambda: metrics.numpy(), _TIMED_STEPS.value
  )
  memory = tf.config.experimental.get_memory_info("GPU:0")
  figures = {"name": f"albert_tf, TensorFlow {tf.__version__}"} | step.figures(milliseconds)
  figures["peak_gib"] = round(memory["peak"] / 2**30, 2)
  return figures


if __name__ == "__main__":
  measuring.run(_measure)
