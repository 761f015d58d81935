"""Compiles an HLO module for a TPU in a process of its own.

`tpu_compiler` runs this file, which imports nothing of this library:
`python tpu_compiler_worker.py HLO TOPOLOGY RESULT` reads a serialized `HloModuleProto`, and writes
JSON to RESULT, with the optimized program's text. A refusal of the compiler is a result too.
"""

import json
import os
import pathlib
import sys
import time
from typing import Any

MISSING = "missing"
REFUSED = "refused"
_ENVIRONMENT = {
  # Without these libtpu asks Google Cloud's metadata server about this machine.
  "TPU_SKIP_MDS_QUERY": "1",
  "TPU_WORKER_HOSTNAMES": "localhost",
  "TPU_WORKER_ID": "0",
  # Without this it locks the TPU, and a second compiler fails.
  "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def main(hlo_path: str, topology_name: str, result_path: str) -> None:
  os.environ.update(_ENVIRONMENT)
  try:
    from jax.experimental import topologies
    import libtpu  # noqa: F401  The compiler itself.

    hlo = pathlib.Path(hlo_path).read_bytes()
    topology = topologies.get_topology_desc(platform="tpu", topology_name=topology_name)
    result = _compile(hlo, topology.devices[0])
  except ImportError as error:
    result = {"error": MISSING, "message": str(error)}
  except Exception as error:  # The compiler raises many types.
    result = {"error": REFUSED, "message": str(error)}
  pathlib.Path(result_path).write_text(json.dumps(result), encoding="utf-8")


def _compile(hlo: bytes, device: Any) -> dict[str, Any]:
  """Fields of `tpu_compiler.CompiledStep`."""
  from jax._src import compiler
  from jaxlib import _jax
  import numpy as np

  options = compiler.get_compile_options(
    num_replicas=1, num_partitions=1, device_assignment=np.array([[device.id]])
  )
  module = _module(hlo)
  start = time.perf_counter()
  executable = device.client.compile(module, _jax.DeviceList((device,)), options)
  seconds = time.perf_counter() - start

  memory = executable.get_compiled_memory_stats()
  temporary_bytes = memory.temp_size_in_bytes
  # Outputs that are updated arguments need no memory of their own.
  new_output_bytes = memory.output_size_in_bytes - memory.alias_size_in_bytes
  return {
    "required_bytes": temporary_bytes + memory.argument_size_in_bytes + new_output_bytes,
    "temporary_bytes": temporary_bytes,
    "compile_seconds": seconds,
    "program": executable.hlo_modules()[0].to_string(),
  }


def _module(hlo: bytes) -> Any:
  """StableHLO of an HLO module that was lowered for a CPU, as TensorFlow lowers it for a TPU.

  Random bits come from the TPU's own generator and not from Philox. `mhlo.copy` goes: the TPU
  compiler does not know it.
  """
  from jax._src.interpreters import mlir
  from jax._src.lib.mlir import ir
  from jax._src.lib.mlir.dialects import hlo as stablehlo
  from jaxlib import _jax

  context = mlir.make_ir_context()
  context.allow_unregistered_dialects = True
  module = ir.Module.parse(_jax.mlir.hlo_to_stablehlo(hlo), context)
  tpu_generator = ir.Attribute.parse("#stablehlo<rng_algorithm DEFAULT>", context)

  # The operations first: a walk must not change what it walks through.
  operations = []

  def collect(operation: Any) -> Any:
    if operation.operation.name in ("mhlo.copy", "stablehlo.rng_bit_generator"):
      operations.append(operation.operation)
    return ir.WalkResult.ADVANCE

  module.operation.walk(collect)
  for operation in operations:
    # A copy gives its operand. A generator gives its next state, which nothing reads, and bits.
    values = [operation.operands[0]]
    if operation.name == "stablehlo.rng_bit_generator":
      with ir.InsertionPoint(operation), operation.location:
        # Key and counter; Philox counts in 128 bits.
        state = stablehlo.slice(values[0], [0], [2], [1])
        bits = stablehlo.RngBitGeneratorOp(
          state.type, operation.results[1].type, tpu_generator, state
        )
      values.append(bits.results[1])
    for result, value in zip(operation.results, values, strict=True):
      result.replace_all_uses_with(value)
    operation.erase()
  return module


if __name__ == "__main__":
  sys.path.pop(0)  # This folder: its files are modules of a package, not packages to import.
  main(*sys.argv[1:])
