"""A training step on one NVIDIA GPU, beside Hugging Face's on PyTorch; prints one JSON line for each.

With a GPU, TensorFlow runs our step, then PyTorch the other in the same command. Without one, --lower_only writes
the same steps as StableHLO, and `gpu/run_programs.py` runs both where only JAX and PyTorch are: XLA compiles the
same program there. That needs the extra tpu-compile here, for JAX.

Steps are bfloat16, LAMB, without dropout, with 15% of the tokens predicted; masks end within the last seventh.

Example:
  python benchmarks/gpu_step.py
  python benchmarks/gpu_step.py --lower_only=programs
  python benchmarks/gpu/run_programs.py programs/*.mlir.gz --torch=base,512,64 --torch=base,128,256 --torch=large,512,32
"""

import dataclasses
import gzip
import json
import pathlib
import subprocess
import sys
from typing import Any

from absl import flags
import common
from gpu import run_programs

from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.planning.estimate import StepShape

_STEPS = flags.DEFINE_multi_string(
  "step", ["base,512,64", "base,128,256", "large,512,32"], "SIZE,LENGTH,BATCH; may be repeated."
)
_LOWER_ONLY = flags.DEFINE_string("lower_only", "", "Folder for the programs; nothing is run.")
_TORCH = flags.DEFINE_bool("torch", True, "Run PyTorch's step too.")
_TIMED_STEPS = flags.DEFINE_integer("timed_steps", 20, "Steps of a timed round.")


@dataclasses.dataclass(frozen=True)
class Step:
  """The sizes of a step."""

  size: str
  length: int
  batch: int

  @classmethod
  def parse(cls, text: str) -> "Step":
    size, _, rest = text.partition(",")
    numbers = rest.split(",")
    if size not in run_programs.WIDTHS or len(numbers) != 2 or not "".join(numbers).isdigit():
      sizes = " or ".join(run_programs.WIDTHS)
      raise UserError(f"A step is SIZE,LENGTH,BATCH with the size {sizes}. Received: {text!r}.")
    return cls(size, *map(int, numbers))

  @property
  def predictions(self) -> int:
    return run_programs.num_predictions(self.length)

  @property
  def config(self) -> AlbertConfig:
    # v2's sizes have no dropout.
    return AlbertConfig.from_name(self.size)

  @property
  def shape(self) -> StepShape:
    return StepShape(
      per_core_batch_size=self.batch,
      max_seq_length=self.length,
      max_predictions_per_seq=self.predictions,
    )


def lower(step: Step, folder: pathlib.Path) -> None:
  """Writes NAME.mlir.gz, the program, and NAME.json, its sizes."""
  from jax._src.interpreters import mlir as jax_mlir
  from jax._src.lib import xla_client
  from jax._src.lib.mlir import ir

  from albert_tf.planning.lowering import lower_train_step

  hlo = lower_train_step(step.config, step.shape, device="gpu")
  with jax_mlir.make_ir_context() as context:
    context.allow_unregistered_dialects = True
    module = ir.Module.parse(xla_client._xla.mlir.hlo_to_stablehlo(hlo))
    _erase_copies(module.operation)
    text = str(module)
  name = f"{step.size}_{step.length}_{step.batch}"
  with gzip.open(folder / f"{name}.mlir.gz", "wt") as stream:
    stream.write(text)
  sizes = {
    "size": step.size,
    "batch": step.batch,
    "length": step.length,
    "predictions": step.predictions,
  }
  (folder / f"{name}.json").write_text(json.dumps(sizes))
  print(f"{folder / name}.mlir.gz: {text.count('@__cudnn$fmha')} calls of fused attention")


def _erase_copies(operation: Any) -> None:
  """Removes XLA's own `mhlo.copy`, which changes nothing and which other versions do not read."""
  for region in operation.regions:
    for block in region.blocks:
      for inner in list(block.operations):
        if inner.operation.name == "mhlo.copy":
          (source,) = inner.operation.operands
          inner.operation.results[0].replace_all_uses_with(source)
          inner.operation.erase()
        else:
          _erase_copies(inner.operation)


def run_here(step: Step) -> dict[str, Any]:
  """Times our step by TensorFlow on its first GPU."""
  import tensorflow as tf

  from albert_tf.planning.lowering import compiled_step

  function = compiled_step(step.config, step.shape, device="gpu")
  made = run_programs.example_batch(step.batch, step.length, step.predictions)
  batch = {name: tf.constant(value, tf.int32) for name, value in made.items()}
  batch["masked_lm_weights"] = tf.cast(batch["masked_lm_weights"], tf.float32)
  state: dict[str, Any] = {}

  def update() -> None:
    state["metrics"] = function(batch)

  milliseconds = run_programs.measured(update, lambda: state["metrics"].numpy(), _TIMED_STEPS.value)
  memory = tf.config.experimental.get_memory_info("GPU:0")
  sizes = (step.size, step.batch, step.length, step.predictions)
  return {
    "name": f"albert_tf, TensorFlow {tf.__version__}",
    "size": step.size,
    "batch": step.batch,
    "length": step.length,
    "predictions": step.predictions,
    **run_programs.rates(*sizes, milliseconds),
    "peak_gib": round(memory["peak"] / 2**30, 2),
  }


def benchmark() -> None:
  steps = [Step.parse(text) for text in _STEPS.value]
  if _LOWER_ONLY.value:
    folder = pathlib.Path(_LOWER_ONLY.value)
    folder.mkdir(parents=True, exist_ok=True)
    for step in steps:
      lower(step, folder)
    return

  import tensorflow as tf

  if not tf.config.list_physical_devices("GPU"):
    raise UserError(
      "The step is timed on an NVIDIA GPU. Received: a machine on which TensorFlow sees none. "
      "Install tensorflow[and-cuda] (docs/gpu.md), or write the programs with --lower_only=FOLDER."
    )
  for step in steps:
    print(json.dumps(run_here(step)), flush=True)
  if _TORCH.value:
    specs = [f"--torch={text}" for text in _STEPS.value]
    subprocess.run([sys.executable, run_programs.__file__, *specs], check=True)


if __name__ == "__main__":
  common.run(benchmark)
