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
from collections.abc import Mapping, Sequence
import csv
import dataclasses
import math
import os
import pathlib
import re
import tempfile
from typing import Any, NamedTuple

from absl import flags
import measuring
from tpu.program import estimated_cycles
from tpu.schedule import Scheduled, dump_flags, final_schedule

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

# Part → pattern at the start of an operation's name, without the name of the outer function. The
# first match counts. The gradient of attention is computed outside of layers; names of other
# gradients begin with "gradient_tape".
_PARTS = {
  "feed-forward, gradients": r"gradient_tape/.*/ffn_",
  "feed-forward, forward": r".*/ffn_",
  "attention, gradients of scores and values": r"einsum|truediv",
  "attention, gradients of the projections": r"gradient_tape/.*/attention_",
  "attention, forward": r".*/attention_",
  "optimizer and norms": r"(?:norm|sub|mul|add|AddN|Sqrt)\w*(?:/|$)",
  "vocabulary and look-ups": r".*(?:masked_lm|embedding|SparseSoftmax|ArgMax|MatMul)",
}
_OTHER_PARTS = "calls, scalars and others"
_LIBTPU_FLAGS = os.environ.get("LIBTPU_INIT_ARGS", "")


class _Measured(NamedTuple):
  """What is printed of a program, and its instructions."""

  figures: dict[str, Any]
  instructions: Sequence[Scheduled]


def _measure() -> Mapping[str, Any]:
  choice = commands.from_flags(ModelChoice)
  measured: dict[str, _Measured] = {}
  for name in _TOPOLOGIES.value:
    topology = parse_topology(name)
    if _HLO.value:
      program = pathlib.Path(_HLO.value).read_bytes()
      measured[topology.name] = _compiled_figures(topology, program)
    else:
      measured[topology.name] = _step_figures(choice.config(), topology)
  if _CSV.value:
    _write_instructions(_CSV.value, measured)

  # Another package's program has sizes that its name may tell.
  described = {"hlo": pathlib.Path(_HLO.value).name} if _HLO.value else choice.to_dict()
  figures = {name: of_topology.figures for name, of_topology in measured.items()}
  return described | {"topologies": figures}


def _step_figures(config: AlbertConfig, topology: Topology) -> _Measured:
  """The step of the flags, in the compiler and by the planner's formula."""
  shape = _shape(config, topology)
  compiled = _compiled_figures(topology, lower_train_step(config, shape))
  formula_cycles = estimate.cycles(config, shape, topology.chip)
  formula_bytes = estimate.memory(config, shape, topology.chip)
  figures = dataclasses.asdict(shape) | compiled.figures
  figures["formula_million_cycles"] = round(formula_cycles / 1e6, 3)
  figures["formula_gib"] = round(formula_bytes / GIB, 3)
  return _Measured(figures, compiled.instructions)


def _shape(config: AlbertConfig, topology: Topology) -> StepShape:
  """The step of the flags, or the planner's micro-batches of --train_batch_size."""
  shape = commands.from_flags(StepShape)
  if not _TRAIN_BATCH_SIZE.value:
    return shape
  # The examples of a core, from which the planner makes micro-batches.
  examples = _TRAIN_BATCH_SIZE.value // topology.num_cores
  undivided = dataclasses.replace(
    shape, per_core_batch_size=examples, gradient_accumulation_steps=1
  )
  return plan.fastest_micro_batches(config, undivided, topology.chip)


def _compiled_figures(topology: Topology, hlo: bytes) -> _Measured:
  """Compiles a program and reads its schedule."""
  with tempfile.TemporaryDirectory() as folder:
    # libtpu reads this variable when the compiler's process starts.
    os.environ["LIBTPU_INIT_ARGS"] = f"{_LIBTPU_FLAGS} {dump_flags(folder)}".strip()
    compiled = compile_hlo(hlo, topology.name, python=_COMPILER_PYTHON.value)
    schedule = final_schedule(compiled.program, pathlib.Path(folder), topology.chip)
  if schedule is None:
    raise UserError(
      f"A final schedule is needed. Received: none for {topology.name}, {compiled.required_bytes / GIB:.2f} GiB. "
      "Use libtpu 0.0.51, and a batch that fits."
    )

  matrix_cycles = sum(step.runs * step.matrix_cycles for step in schedule.instructions)
  estimated = estimated_cycles(compiled.program)
  figures = {
    "million_cycles": round(schedule.cycles / 1e6, 3),
    "milliseconds": round(1e3 * schedule.cycles / topology.chip.clock_hz, 3),
    "share_of_peak": round(matrix_cycles / schedule.cycles, 3),
    "million_cycles_without_waits": round(schedule.issue_cycles / 1e6, 3),
    "million_cycles_of_hbm": round(schedule.memory_cycles / 1e6, 3),
    "million_cycles_estimated_before": round(estimated / 1e6, 3),
    "temporary_gib": round(compiled.temporary_bytes / GIB, 3),
    "required_gib": round(compiled.required_bytes / GIB, 3),
    "compile_s": round(compiled.compile_seconds, 1),
    "parts": _sums_of_parts(schedule.instructions),
    "all": _sums(schedule.instructions),
  }
  return _Measured(figures, schedule.instructions)


def _sums_of_parts(instructions: Sequence[Scheduled]) -> dict[str, dict[str, float]]:
  by_part = collections.defaultdict(list)
  for instruction in instructions:
    by_part[_part_of(instruction.op_name)].append(instruction)
  # In the order of a step, not of the schedule.
  return {part: _sums(by_part[part]) for part in [*_PARTS, _OTHER_PARTS] if part in by_part}


def _part_of(op_name: str) -> str:
  name = op_name.partition(";")[0].removeprefix("StatefulPartitionedCall/")
  for part, pattern in _PARTS.items():
    if re.match(pattern, name):
      return part
  return _OTHER_PARTS


def _sums(instructions: Sequence[Scheduled]) -> dict[str, float]:
  """Million cycles: all, rows of the matrix unit, waits for HBM, and other ones."""
  sums = dict.fromkeys(("cycles", "matrix_rows", "waits_for_hbm", "other_issue"), 0.0)
  for instruction in instructions:
    runs = instruction.runs
    waiting = max(instruction.memory_cycles - instruction.issue_cycles, 0.0)
    sums["cycles"] += instruction.cycles
    sums["matrix_rows"] += runs * instruction.matrix_cycles
    sums["waits_for_hbm"] += runs * waiting
    sums["other_issue"] += runs * (instruction.issue_cycles - instruction.matrix_cycles)
  return {name: round(cycles / 1e6, 3) for name, cycles in sums.items()}


def _write_instructions(path: str, measured: Mapping[str, _Measured]) -> None:
  """A row for each instruction, those with the most cycles first."""
  with open(path, "w", newline="", encoding="utf-8") as stream:
    writer = csv.writer(stream)
    writer.writerow(["topology", "part", "cycles", *Scheduled._fields])
    for topology_name, of_topology in measured.items():
      for instruction in sorted(of_topology.instructions, key=_longest_first):
        part = _part_of(instruction.op_name)
        # Whole cycles: fractions come from bytes over bandwidth.
        cells = [math.ceil(cell) if isinstance(cell, float) else cell for cell in instruction]
        writer.writerow([topology_name, part, math.ceil(instruction.cycles), *cells])


def _longest_first(instruction: Scheduled) -> float:
  return -instruction.cycles


if __name__ == "__main__":
  measuring.run(_measure)
