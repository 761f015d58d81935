"""Compile a step with Google's TPU compiler ahead of time, without a TPU.

compile_for_tpu.py and benchmarks/tpu_bound.py compile the programs of `lowering` here. The compiler
runs in a child process (`tpu_compiler_worker`): it needs another environment, and may crash.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from typing import NamedTuple

from albert_tf.errors import UserError
from albert_tf.planning import tpu_compiler_worker as worker

# libtpu has two messages for programs that need too much memory:
#   Used 16.05G of 15.48G hbm.
#   … required for HLO temporaries (16.05G) exceeds available HBM (15.48G)
_OUT_OF_MEMORY = re.compile(
  r"(?:Used |required for HLO temporaries \()(?P<used>[\d.]+)(?P<unit>[KMGT]?)\)?"
  r" (?:of|exceeds available HBM \()"
)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class CompiledStep(NamedTuple):
  """The compiler's result for a core's program; 0 for unknown numbers."""

  fits: bool  # Whether the program fits the memory of a core.
  required_bytes: int  # Memory the program needs.
  temporary_bytes: int = 0  # Activations, gradients and scratch.
  compile_seconds: float = 0.0  # The compiler's own time.
  program: str = ""  # The optimized program's text.


def compile_hlo(hlo: bytes, topology: str = "v3:2x2", *, python: str = "") -> CompiledStep:
  """Compiles the program of one core for a TPU topology, in a child process.

  Args:
    hlo: a serialized `HloModuleProto`, from `lower_train_step`.
    topology: chip and shape, such as "v3:2x2", "v4:2x2x1", "v5e:2x2".
    python: an interpreter with jax and libtpu; default: this one.

  Raises:
    UserError: jax or libtpu is missing, or the compiler fails for another reason than memory.

  Example:
    >>> compile_hlo(lower_train_step(config, shape), "v5e:2x2").required_bytes
  """
  python = python or sys.executable
  # Without what decides about this package and a real TPU: TPU_LOAD_LIBRARY=0 is for a TensorFlow
  # with TPU kernels on a machine without one.
  dropped = ("JAX_PLATFORMS", "PYTHONPATH", "TPU_LOAD_LIBRARY")
  environment = {name: value for name, value in os.environ.items() if name not in dropped}
  with tempfile.TemporaryDirectory() as folder:
    hlo_path = pathlib.Path(folder, "step.hlo")
    result_path = pathlib.Path(folder, "result.json")
    hlo_path.write_bytes(hlo)
    process = subprocess.run(
      [python, worker.__file__, hlo_path, topology, result_path],
      env=environment,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      check=False,
    )
    if not result_path.exists():
      output = process.stdout.decode(errors="replace")[-1500:].strip()
      raise UserError(
        f"The TPU compiler must return a program. Received: none for {topology}; its last output: "
        f"{output!r}. Try a smaller batch or another topology."
      )
    result = json.loads(result_path.read_text(encoding="utf-8"))
    if "error" not in result:
      return CompiledStep(fits=True, **result)

  message = result["message"]
  if result["error"] == worker.MISSING:
    raise UserError(
      f"The TPU compiler needs jax and libtpu. Received: {message} in {python}. Install "
      'albert-tf[tpu-compile] (pip install -e ".[tpu-compile]").'
    )
  return _too_large(message, topology)


def _too_large(message: str, topology: str) -> CompiledStep:
  """The memory of a program that does not fit; raises `UserError` for other refusals."""
  sizes = _OUT_OF_MEMORY.search(message)
  if sizes is None:
    raise UserError(
      f"The program must compile for {topology}. Received: {message[:1500]}. Try another topology "
      "or batch."
    )
  # Such as 15.00 and G.
  required_bytes = float(sizes["used"]) * _UNITS[sizes["unit"]]
  return CompiledStep(fits=False, required_bytes=int(required_bytes))
