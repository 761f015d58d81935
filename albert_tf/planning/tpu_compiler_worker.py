"""Compiles an HLO module for a TPU in a process of its own; run as a file, it imports nothing of this library.

`python tpu_compiler_worker.py HLO TOPOLOGY RESULT PROGRAM`: reads a serialized `HloModuleProto`, writes JSON to RESULT
and the optimized program's text to PROGRAM. A refusal of the compiler is a result too.
"""

import json
import os
import pathlib
import sys
import time
from typing import Any

MISSING, REFUSED = "missing", "refused"
# Without the first three libtpu asks Google Cloud's metadata server about this machine. Without the last it locks the
# TPU, and a second compiler fails.
ENVIRONMENT = {
  "TPU_SKIP_MDS_QUERY": "1",
  "TPU_WORKER_HOSTNAMES": "localhost",
  "TPU_WORKER_ID": "0",
  "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def _module(hlo: bytes) -> Any:
  """StableHLO of an HLO module that was lowered for a CPU, as TensorFlow lowers it for a TPU.

  Random bits come from the TPU's own generator and not from Philox. `mhlo.copy` goes: its compiler does not know it.
  """
  from jax._src.interpreters import mlir
  from jax._src.lib.mlir import ir
  from jax._src.lib.mlir.dialects import hlo as stablehlo
  from jaxlib import _jax

  context = mlir.make_ir_context()
  context.allow_unregistered_dialects = True
  module = ir.Module.parse(_jax.mlir.hlo_to_stablehlo(hlo), context)
  own_generator = ir.Attribute.parse("#stablehlo<rng_algorithm DEFAULT>", context)
  replaced = []

  def find(operation: Any) -> Any:
    if operation.operation.name in ("mhlo.copy", "stablehlo.rng_bit_generator"):
      replaced.append(operation.operation)
    return ir.WalkResult.ADVANCE

  module.operation.walk(find)
  for operation in replaced:
    values = [
      operation.operands[0]
    ]  # A generator's next state, which nothing reads, is its first one.
    if operation.name != "mhlo.copy":
      with ir.InsertionPoint(operation), operation.location:
        state = stablehlo.slice(
          values[0], [0], [2], [1]
        )  # Key and counter; Philox counts in 128 bits.
        drawn = stablehlo.RngBitGeneratorOp(
          state.type, operation.results[1].type, own_generator, state
        )
      values.append(drawn.results[1])
    for result, value in zip(operation.results, values, strict=True):
      result.replace_all_uses_with(value)
    operation.erase()
  return module


def _compile(hlo: bytes, device: Any) -> tuple[dict[str, Any], str]:
  from jax._src import compiler
  from jaxlib import _jax
  import numpy as np

  assignment = np.array([[device.id]])
  options = compiler.get_compile_options(
    num_replicas=1, num_partitions=1, device_assignment=assignment
  )
  module, started = _module(hlo), time.perf_counter()
  executable = device.client.compile(module, _jax.DeviceList((device,)), options)
  seconds = time.perf_counter() - started
  memory = executable.get_compiled_memory_stats()
  return {
    "compile_seconds": seconds,
    "temporary_bytes": memory.temp_size_in_bytes,
    "argument_bytes": memory.argument_size_in_bytes,
    "output_bytes": memory.output_size_in_bytes,
    "alias_bytes": memory.alias_size_in_bytes,
  }, executable.hlo_modules()[0].to_string()


def main(hlo_path: str, topology_name: str, result_path: str, program_path: str) -> None:
  os.environ.update(ENVIRONMENT)
  try:
    from jax.experimental import topologies
    import libtpu  # noqa: F401  The compiler itself.

    hlo = pathlib.Path(hlo_path).read_bytes()
    topology = topologies.get_topology_desc(platform="tpu", topology_name=topology_name)
    answer, program = _compile(hlo, topology.devices[0])
    pathlib.Path(program_path).write_text(program, encoding="utf-8")
  except ImportError as error:
    answer = {"error": MISSING, "message": str(error)}
  except Exception as error:  # The compiler raises many types.
    answer = {"error": REFUSED, "message": str(error)}
  pathlib.Path(result_path).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
  sys.path.pop(0)  # This folder: its files are modules of a package, not packages to import.
  main(*sys.argv[1:])
