"""Google's TPU compiler, ahead of time and without a TPU: does a step compile, what does it cost."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from typing import Any, NamedTuple

from albert_tf.errors import UserError
from albert_tf.planning import tpu_compiler_worker as worker
from albert_tf.planning.optimized_program import program_cost

# libtpu has two ways of saying how much is needed, and how much there is.
_OUT_OF_MEMORY = re.compile(
  r"(?:Used |required for HLO temporaries \()([\d.]+)([KMGT]?)\)? (?:of|exceeds available HBM \()"
  r" ?([\d.]+)([KMGT]?)(?: hbm|\))(?:. Exceeded hbm capacity by ([\d.]+)([KMGT]?))?"
)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class CompiledStep(NamedTuple):
  """What the compiler says of a core's program.

  Attributes:
    topology: the topology's name, such as "v3:2x2".
    device_kind: the chip, in libtpu's words.
    num_devices: cores (v2, v3) or chips of the topology.
    fits: whether the program fits the memory of a core.
    missing_bytes: memory a core lacks, after the compiler did what it could to save some; 0 where it fits.
    required_bytes: memory the program needs, as far as the compiler says.
    capacity_bytes: memory a program may use; 0 where the compiler did not say (it does where it is short).
    estimated_cycles: of one step, a loop's body as often as it runs; 0 where the program does not fit.
    loops_of_unknown_length: loops whose body counts once in `estimated_cycles`, for want of a number.
    temporary_bytes, argument_bytes, output_bytes, alias_bytes, code_bytes: memory by use; outputs that
      overwrite arguments are in `alias_bytes` too. 0 where it does not fit.
    compile_seconds: the compiler's own time.
    program: the optimized program's text; empty where it does not fit.
  """

  topology: str
  device_kind: str
  num_devices: int
  fits: bool
  missing_bytes: int
  required_bytes: int
  capacity_bytes: int
  estimated_cycles: int
  loops_of_unknown_length: int
  temporary_bytes: int
  argument_bytes: int
  output_bytes: int
  alias_bytes: int
  code_bytes: int
  compile_seconds: float
  program: str


def compile_hlo(
  hlo: bytes,
  topology: str = "v3:2x2",
  *,
  num_replicas: int = 1,
  python: str = "",
  timeout_seconds: float = 3600.0,
) -> CompiledStep:
  """Compiles the program of one core, or of many together, for a TPU topology, in a child process.

  Args:
    hlo: a serialized `HloModuleProto`, from `lower_train_step`.
    topology: chip and shape, such as "v3:2x2", "v4:2x2x1", "v5e:2x2".
    num_replicas: cores of the topology that run it together, as many as it was lowered for.
    python: an interpreter with jax and libtpu; default: this one.
    timeout_seconds: after which to give up.

  Raises:
    UserError: jax or libtpu is missing, an unknown topology, a program that the compiler refuses for another
      reason than memory, a crash of the compiler, or no answer in time.

  Example:
    >>> compile_hlo(lowered.hlo, "v5e:2x2").estimated_cycles
  """
  with tempfile.TemporaryDirectory() as folder:
    paths = [str(pathlib.Path(folder, name)) for name in ("step.hlo", "result.json", "program.txt")]
    hlo_path, result_path, program_path = paths
    pathlib.Path(hlo_path).write_bytes(hlo)
    arguments = [hlo_path, topology, str(num_replicas), result_path, program_path]
    command = [python or sys.executable, worker.__file__, *arguments]
    output = _run(command, timeout_seconds)
    if not pathlib.Path(result_path).exists():
      raise UserError(
        f"The TPU compiler must answer. Received: it ended without one for {topology}; its last words: "
        f"{output[-1500:].strip()!r}. Try a smaller batch or another topology."
      )
    answer = json.loads(pathlib.Path(result_path).read_text(encoding="utf-8"))
    program = ""
    if "error" not in answer:
      program = pathlib.Path(program_path).read_text(encoding="utf-8")
  return _compiled_step(answer, topology, program, python)


def _run(command: list[str], timeout_seconds: float) -> str:
  # TPU_LOAD_LIBRARY=0 is for a TensorFlow with TPU kernels on a machine without a TPU.
  unwanted = ("JAX_PLATFORMS", "PYTHONPATH", "TPU_LOAD_LIBRARY")
  environment = {key: value for key, value in os.environ.items() if key not in unwanted}
  try:
    done = subprocess.run(
      command,
      env={**environment, **worker.ENVIRONMENT},
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      timeout=timeout_seconds,
      check=False,
    )
  except subprocess.TimeoutExpired as error:
    raise UserError(
      f"The TPU compiler must answer within {timeout_seconds:.0f} s. Received: no answer. Allow more time, or "
      "try a smaller model."
    ) from error
  except OSError as error:
    raise UserError(f"The interpreter must be a Python. Received: {command[0]} ({error}).") from error
  return done.stdout.decode(errors="replace")


def _compiled_step(answer: dict[str, Any], topology: str, program: str, python: str) -> CompiledStep:
  fault, message = answer.pop("error", None), answer.pop("message", "")
  if fault == worker.MISSING:
    raise UserError(
      f"The TPU compiler needs jax and libtpu. Received: {message} in {python or sys.executable}. Install "
      'albert-tf[tpu-compile] (pip install -e ".[tpu-compile]"), or name an interpreter that has them.'
    )
  if fault == worker.REFUSED_TOPOLOGY:
    raise UserError(
      f"The topology must be one that libtpu knows. Received: {topology!r} ({_first_line(message)}). "
      "Use a name such as v3:2x2, v4:2x2x1, v5e:2x2, v5p:2x2x1 or v6e:2x2."
    )
  memory = dict.fromkeys(
    ("temporary_bytes", "argument_bytes", "output_bytes", "alias_bytes", "code_bytes"), 0
  )
  found = {**memory, "compile_seconds": 0.0, **answer}
  if fault == worker.REFUSED_PROGRAM:
    short = _OUT_OF_MEMORY.search(message)
    if short is None:
      raise UserError(
        f"The program must compile for {topology}. Received: {message[:1500]}. Try another topology or batch."
      )
    used, capacity, missing = (int(float(short[i] or 0) * _UNITS[short[i + 1] or ""]) for i in (1, 3, 5))
    missing = max(
      missing, used - capacity, 1
    )  # The last number where it is there: the first two are rounded.
    return CompiledStep(
      topology=topology,
      fits=False,
      missing_bytes=missing,
      required_bytes=capacity + missing,
      capacity_bytes=capacity,
      estimated_cycles=0,
      loops_of_unknown_length=0,
      program="",
      **found,
    )
  cost = program_cost(program)
  required = found["temporary_bytes"] + found["argument_bytes"] + found["output_bytes"] - found["alias_bytes"]
  return CompiledStep(
    topology=topology,
    fits=True,
    missing_bytes=0,
    required_bytes=required,
    capacity_bytes=0,
    estimated_cycles=cost.estimated_cycles,
    loops_of_unknown_length=cost.loops_of_unknown_length,
    program=program,
    **found,
  )


def _first_line(message: str) -> str:
  return message.strip().splitlines()[0][:300] if message.strip() else "no reason given"
