"""What is read from a program that XLA's TPU compiler optimized: its estimated cycles, and its sums over cores."""

import re
from typing import NamedTuple

from albert_tf.planning.chips import Topology
from albert_tf.planning.program_text import Line, Program

_ARRAY = re.compile(r"\b[a-z]+(\d+)\[([\d,]*)\]")  # Bits of an item, and lengths.
_STRATEGY = re.compile(r'"strategy":"(\w+)".*?colors:(\d+)')


class Instruction(NamedTuple):
  """An instruction that the compiler gave a cost."""

  name: str
  op_name: str  # The TensorFlow operation it came from.
  cycles: int  # Of one run.
  runs: int  # In a step.


class ProgramCost(NamedTuple):
  """Cycles of one step; loops whose number of iterations the compiler did not state count once."""

  estimated_cycles: int
  loops_of_unknown_length: int


class AllReduce(NamedTuple):
  """One all-reduce of a step."""

  tensors: int  # That the compiler sums together.
  num_bytes: int  # Of all of them, on one core.
  links: int  # Directions of a chip's links that carry it; 0 where the compiler did not say.
  beside: int  # Estimated cycles of what runs between its start and its end; 0 where the core waits.


def program_cost(program: str) -> ProgramCost:
  """Sum of the estimated cycles of one run of the program, a loop's body as often as it runs."""
  instructions, unknown = costly_instructions(program)
  return ProgramCost(sum(each.cycles * each.runs for each in instructions), unknown)


def costly_instructions(program: str) -> tuple[list[Instruction], int]:
  """All instructions with an estimate, and how many loops have no known number of iterations."""
  executed, unknown = Program(program).executed()
  found = [
    Instruction(line.name, line.op_name, line.cycles, runs)
    for line, _, runs in executed
    if line.cycles is not None
  ]
  return found, unknown


def all_reduces(program: str) -> list[AllReduce]:
  """All-reduces in the order of the compiler's schedule; a loop's count once, for a step has none there."""
  found = []
  for body in Program(program).bodies.values():
    lines = list(body.values())
    for at, line in enumerate(lines):
      if line.kind in ("all-reduce", "all-reduce-start"):
        arrays = _ARRAY.findall(line.shape)
        beside = _cycles_until_done(line.name, lines[at + 1 :]) if line.kind == "all-reduce-start" else 0
        found.append(AllReduce(len(arrays), sum(map(_num_bytes, arrays)), _links(line.text), beside))
  return found


def waiting_seconds(found: list[AllReduce], topology: Topology) -> float:
  """Seconds in which a core has nothing to compute: of each all-reduce what no computation runs beside."""
  return sum(
    max(0.0, topology.all_reduce_seconds(each.num_bytes, each.links) - each.beside / topology.chip.clock_hz)
    for each in found
  )


def _num_bytes(array: tuple[str, str]) -> int:
  size = int(array[0]) // 8
  for length in filter(None, array[1].split(",")):
    size *= int(length)
  return size


def _links(text: str) -> int:
  """Each color is a ring of its own over all cores: in one direction, or with half of the data in each."""
  found = _STRATEGY.search(text)
  if found is None:
    return 0
  return int(found[2]) * (1 if found[1].startswith("UniDirection") else 2)


def _cycles_until_done(start: str, rest: list[Line]) -> int:
  total = 0
  for line in rest:
    if line.kind == "all-reduce-done" and start in line.operands:
      break
    total += line.cycles or 0
  return total
