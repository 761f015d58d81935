"""The step of one core with a formula's all-reduce, against all cores of a slice compiled together.

Prints one JSON line: for every slice the cycles and memory of both programs, what the compiler sums together, and the
seconds that a core waits for it. The claim: what the cores share changes neither the cycles nor the memory of a core by
more than 1%, and the all-reduce is no part of it that matters.

Example:
  python benchmarks/tpu_all_cores.py --size=base --topologies=v3:2x2,v4:2x2x1,v5e:2x4,v6e:2x4
"""

from typing import Any

from absl import flags
import common

from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.planning.chips import Topology, parse_topology
from albert_tf.planning.compiled_program import all_reduces, waiting_seconds
from albert_tf.planning.tpu_compiler import CompiledStep, compile_hlo
from albert_tf.startup import load_tensorflow

_SIZE = flags.DEFINE_string("size", "base", "A named size.")
_LAYERS = flags.DEFINE_integer("num_hidden_layers", None, "Instead of the size's.")
_TOPOLOGIES = flags.DEFINE_list("topologies", "v3:2x2,v4:2x2x1,v5e:2x4,v6e:2x4", "Slices, with commas.")
_BATCH = flags.DEFINE_integer("per_core_batch_size", 8, "Examples of one core.")
_COMPILER_PYTHON = flags.DEFINE_string("compiler_python", "", "An interpreter that has jax and libtpu.")


def _compile(config: AlbertConfig, topology: Topology, cores: int) -> CompiledStep:
  from albert_tf.planning.lowering import lower_train_step  # After TensorFlow is quiet.

  lowered = lower_train_step(
    config,
    per_core_batch_size=_BATCH.value,
    max_seq_length=512,
    max_predictions_per_seq=77,
    num_replicas=cores,
  )
  return compile_hlo(lowered.hlo, topology.name, num_replicas=cores, python=_COMPILER_PYTHON.value)


def _cycles(step: CompiledStep) -> float:
  """Of the final schedule."""
  if step.schedule is None:
    raise UserError("The final schedule is needed. Received: a libtpu that does not write it. Use 0.0.51.")
  return step.schedule.cycles


def compare(config: AlbertConfig, topology: Topology) -> dict[str, Any]:
  """Figures of both programs on one slice."""
  alone, together = (_compile(config, topology, cores) for cores in (1, topology.num_cores))
  sums = all_reduces(together.program)
  return {
    "topology": topology.name,
    "cores": topology.num_cores,
    "cycles": {"one core": _cycles(alone), "all cores": _cycles(together)},
    "required_bytes": {"one core": alone.required_bytes, "all cores": together.required_bytes},
    "compile_seconds": {
      "one core": round(alone.compile_seconds),
      "all cores": round(together.compile_seconds),
    },
    "all_reduces": [each._asdict() for each in sums],
    "waiting_seconds": {
      "both directions of every axis": topology.all_reduce_seconds(
        sum(each.num_bytes for each in sums), 2 * sum(length > 1 for length in topology.shape)
      ),
      "as scheduled": waiting_seconds(sums, topology),
    },
    "compute_seconds": _cycles(together) / topology.chip.clock_hz,
  }


def benchmark() -> dict[str, Any]:
  config = AlbertConfig.from_name(_SIZE.value)
  if _LAYERS.value:
    config = config.replace(num_hidden_layers=_LAYERS.value)
  load_tensorflow()
  rows = [compare(config, parse_topology(name)) for name in _TOPOLOGIES.value]
  return {"size": _SIZE.value, "slices": rows}


if __name__ == "__main__":
  common.run(benchmark)
