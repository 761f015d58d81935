"""Compile a step with Google's TPU compiler ahead of time, without a TPU."""

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

# libtpu has two messages for programs that need too much memory.
_OUT_OF_MEMORY = re.compile(
  r"(?:Used |required for HLO temporaries \()([\d.]+)([KMGT]?)\)? (?:of|exceeds available HBM \()"
  r" ?([\d.]+)([KMGT]?)(?: hbm|\))(?:. Exceeded hbm capacity by ([\d.]+)([KMGT]?))?"
)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class CompiledStep(NamedTuple):
  """The compiler's result for a core's program; 0 for unknown numbers."""

  fits: bool  # Whether the program fits the memory of a core.
  required_bytes: int  # Memory the program needs.
  temporary_bytes: int = 0  # Activations, gradients and scratch.
  argument_bytes: int = 0  # Weights, the optimizer's state and the batch.
  alias_bytes: int = 0  # Part of the arguments that is updated in place.
  compile_seconds: float = 0.0  # The compiler's own time.
  program: str = ""  # The optimized program's text.


def compile_hlo(
  hlo: bytes, topology: str = "v3:2x2", *, python: str = "", libtpu_flags: str = ""
) -> CompiledStep:
  """Compiles the program of one core for a TPU topology, in a child process.

  Args:
    hlo: a serialized `HloModuleProto`, from `lower_train_step`.
    topology: chip and shape, such as "v3:2x2", "v4:2x2x1", "v5e:2x2".
    python: an interpreter with jax and libtpu; default: this one.
    libtpu_flags: for LIBTPU_INIT_ARGS.

  Raises:
    UserError: jax or libtpu is missing, or the compiler fails for another reason than memory.

  Example:
    >>> compile_hlo(lower_train_step(config, shape), "v5e:2x2").required_bytes
  """
  # TPU_LOAD_LIBRARY=0 is for a TensorFlow with TPU kernels on a machine without a TPU.
  unwanted = ("JAX_PLATFORMS", "PYTHONPATH", "TPU_LOAD_LIBRARY")
  environment = {
    key: value for key, value in os.environ.items() if key not in unwanted
  } | worker.ENVIRONMENT
  if libtpu_flags:
    environment["LIBTPU_INIT_ARGS"] = (
      f"{environment.get('LIBTPU_INIT_ARGS', '')} {libtpu_flags}".strip()
    )
  python = python or sys.executable
  with tempfile.TemporaryDirectory() as folder:
    step, result, text = (
      pathlib.Path(folder, name) for name in ("step.hlo", "result.json", "program.txt")
    )
    step.write_bytes(hlo)
    done = subprocess.run(
      [python, worker.__file__, str(step), topology, str(result), str(text)],
      env=environment,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      check=False,
    )
    if not result.exists():
      last_words = done.stdout.decode(errors="replace")[-1500:].strip()
      raise UserError(
        f"The TPU compiler must return a program. Received: none for {topology}; its last output: "
        f"{last_words!r}. Try a smaller batch or another topology."
      )
    answer = json.loads(result.read_text(encoding="utf-8"))
    if "error" in answer:
      return _refusal(answer["error"], answer["message"], topology, python)
    required = (
      answer["temporary_bytes"]
      + answer["argument_bytes"]
      + answer.pop("output_bytes")
      - answer["alias_bytes"]
    )
    return CompiledStep(
      fits=True, required_bytes=required, program=text.read_text(encoding="utf-8"), **answer
    )


def _refusal(error: str, message: str, topology: str, python: str) -> CompiledStep:
  """The memory of a program that does not fit; raises `UserError` for other errors."""
  if error == worker.MISSING:
    raise UserError(
      f"The TPU compiler needs jax and libtpu. Received: {message} in {python}. Install "
      'albert-tf[tpu-compile] (pip install -e ".[tpu-compile]"), or name an interpreter that has them.'
    )
  short = _OUT_OF_MEMORY.search(message)
  if short is None:
    raise UserError(
      f"The program must compile for {topology}. Received: {message[:1500]}. Try another topology or batch."
    )
  used, capacity, missing = (
    int(float(short[i] or 0) * _UNITS[short[i + 1] or ""]) for i in (1, 3, 5)
  )
  missing = max(
    missing, used - capacity, 1
  )  # The first two are rounded; the third is not always there.
  return CompiledStep(fits=False, required_bytes=capacity + missing)
