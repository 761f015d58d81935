"""Measures what limits a training step on a TPU, from the instructions of the compiler's final schedule.

Prints one JSON line with million cycles for each part of the step: all cycles, the lower bound by rows through the
matrix unit, waits for HBM, and other cycles (vector work, unpacking, filling of the unit). Most cycles of a step are
matrix products. With --csv it writes every instruction, the longest first. Needs jax and libtpu (extra tpu-compile).
Beside the compiler's cycles and memory stand those of the planner's formula.

Example:
  python benchmarks/tpu_bound.py --size=base --topology=v3:2x2,v5e:2x4 --csv=instructions.csv
  python benchmarks/tpu_bound.py --size=large --train_batch_size=4096 --topology=v3:2x2,v5e:2x4
"""

import collections
from collections.abc import Iterable
import csv
import dataclasses
import math
import os
import pathlib
import re
import tempfile
from typing import Any

from absl import flags
import common
from tpu.final_schedule import Scheduled, dump_flags, final_schedule
from tpu.program_text import estimated_cycles

from albert_tf.cli import commands
from albert_tf.configs import AlbertConfig, ModelChoice
from albert_tf.errors import UserError
from albert_tf.planning import estimate, plan
from albert_tf.planning.chips import GIB, Topology, parse_topology
from albert_tf.planning.estimate import StepShape
from albert_tf.planning.lowering import lower_train_step
from albert_tf.planning.tpu_compiler import compile_hlo

commands.define_flags(ModelChoice, size="base")
commands.define_flags(StepShape, per_core_batch_size=8, max_predictions_per_seq=77)
_TRAIN_BATCH_SIZE = flags.DEFINE_integer(
  "train_batch_size",
  0,
  "Examples of an update on all cores, in the planner's micro-batches; 0: one micro-batch.",
)
_HLO = flags.DEFINE_string(
  "hlo",
  "",
  "Program to measure, such as tpu/lower_model_garden.py writes. Default: that of the flags.",
)
_TOPOLOGIES = flags.DEFINE_list("topology", ["v3:2x2"], "Types and grids of chips, with commas.")
_CSV = flags.DEFINE_string("csv", "", "CSV file to write, with every instruction.")
_COMPILER_PYTHON = flags.DEFINE_string(
  "compiler_python", "", "Python interpreter with jax and libtpu. Default: this one."
)

# Part → pattern at the start of an operation's name, without the name of the outer function; the first match counts.
# The gradient of attention is computed outside of layers; names of other gradients begin with "gradient_tape".
_PARTS = {
  "feed-forward, gradients": r"gradient_tape/.*/ffn_",
  "feed-forward, forward": r".*/ffn_",
  "attention, gradients of scores and values": r"einsum|truediv",
  "attention, gradients of the projections": r"gradient_tape/.*/attention_",
  "attention, forward": r".*/attention_",
  "optimizer and norms": r"(?:norm|sub|mul|add|AddN|Sqrt)\w*(?:/|$)",
  "vocabulary and look-ups": r".*(?:masked_lm|embedding|SparseSoftmax|ArgMax|MatMul)",
}
_REST = "calls, scalars and others"
_LIBTPU_FLAGS = os.environ.get("LIBTPU_INIT_ARGS", "")


def part_of(op_name: str) -> str:
  name = op_name.partition(";")[0].removeprefix("StatefulPartitionedCall/")
  return next((part for part, pattern in _PARTS.items() if re.match(pattern, name)), _REST)


def sums(instructions: Iterable[Scheduled]) -> dict[str, float]:
  """Million cycles: all, rows of the matrix unit, waits for HBM, and other ones."""
  found: dict[str, float] = dict.fromkeys(
    ("cycles", "matrix_rows", "waits_for_hbm", "other_issue"), 0.0
  )
  for each in instructions:
    waiting = max(each.memory_cycles - each.issue_cycles, 0.0)
    found["cycles"] += each.cycles
    found["matrix_rows"] += each.runs * each.matrix_cycles
    found["waits_for_hbm"] += each.runs * waiting
    found["other_issue"] += each.runs * (each.issue_cycles - each.matrix_cycles)
  return {name: round(value / 1e6, 3) for name, value in found.items()}


def measure(topology: Topology, hlo: bytes) -> tuple[dict[str, Any], tuple[Scheduled, ...]]:
  with tempfile.TemporaryDirectory() as folder:
    os.environ["LIBTPU_INIT_ARGS"] = f"{_LIBTPU_FLAGS} {dump_flags(folder)}".strip()
    compiled = compile_hlo(hlo, topology.name, python=_COMPILER_PYTHON.value)
    schedule = final_schedule(compiled.program, pathlib.Path(folder), topology.chip)
  if schedule is None:
    raise UserError(
      f"A final schedule is needed. Received: none for {topology.name}, {compiled.required_bytes / GIB:.2f} GiB. "
      "Use libtpu 0.0.51, and a batch that fits."
    )
  rows = sum(each.runs * each.matrix_cycles for each in schedule.instructions)
  parts: dict[str, list[Scheduled]] = collections.defaultdict(list)
  for each in schedule.instructions:
    parts[part_of(each.op_name)].append(each)
  return {
    "million_cycles": round(schedule.cycles / 1e6, 3),
    "milliseconds": round(1e3 * schedule.cycles / topology.chip.clock_hz, 3),
    "share_of_peak": round(rows / schedule.cycles, 3),
    "million_cycles_without_waits": round(schedule.issue_cycles / 1e6, 3),
    "million_cycles_of_hbm": round(schedule.memory_cycles / 1e6, 3),
    "million_cycles_estimated_before": round(estimated_cycles(compiled.program) / 1e6, 3),
    "temporary_gib": round(compiled.temporary_bytes / GIB, 3),
    "required_gib": round(compiled.required_bytes / GIB, 3),
    "compile_s": round(compiled.compile_seconds, 1),
    "parts": {part: sums(parts[part]) for part in (*_PARTS, _REST) if part in parts},
    "all": sums(schedule.instructions),
  }, schedule.instructions


def planned(config: AlbertConfig, topology: Topology) -> StepShape:
  """The step of the flags, or the planner's micro-batches of --train_batch_size."""
  shape = commands.from_flags(StepShape)
  if not _TRAIN_BATCH_SIZE.value:
    return shape
  examples = _TRAIN_BATCH_SIZE.value // topology.num_cores
  whole = dataclasses.replace(shape, per_core_batch_size=examples, gradient_accumulation_steps=1)
  return plan.fastest_micro_batches(config, whole, topology.chip)


def benchmark() -> dict[str, Any]:
  model, found = commands.from_flags(ModelChoice), {}
  for topology in map(parse_topology, _TOPOLOGIES.value):
    if _HLO.value:
      found[topology.name] = measure(topology, pathlib.Path(_HLO.value).read_bytes())
      continue
    shape = planned(model.config(), topology)
    figures, instructions = measure(topology, lower_train_step(model.config(), shape))
    cycles = estimate.cycles(model.config(), shape, topology.chip)
    required_bytes = estimate.memory(model.config(), shape, topology.chip)
    figures |= {
      "formula_million_cycles": round(cycles / 1e6, 3),
      "formula_gib": round(required_bytes / GIB, 3),
    }
    found[topology.name] = {**dataclasses.asdict(shape), **figures}, instructions
  if _CSV.value:
    with open(_CSV.value, "w", newline="", encoding="utf-8") as stream:
      writer = csv.writer(stream)
      writer.writerow(["topology", "part", "cycles", *Scheduled._fields])
      for topology_name, (_, instructions) in found.items():
        for each in sorted(instructions, key=lambda each: -each.cycles):
          row = [math.ceil(value) if isinstance(value, float) else value for value in each]
          writer.writerow([topology_name, part_of(each.op_name), math.ceil(each.cycles), *row])
  program = {"hlo": pathlib.Path(_HLO.value).name} if _HLO.value else model.to_dict()
  return {**program, "topologies": {topology: figures for topology, (figures, _) in found.items()}}


if __name__ == "__main__":
  common.run(benchmark)
