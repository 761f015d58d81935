"""The cost that XLA's TPU compiler notes in the text of an optimized program."""

from collections.abc import Iterator
import re
from typing import NamedTuple

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_CYCLES = re.compile(r'"estimated_cycles":"?(-?\d+)')
_OPERATION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = .*? ([\w\-]+)\(")
_CALLED = re.compile(r"(?:body|condition|to_apply|calls|branch_computations)=(\{[^}]*\}|%?[\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"?(\d+)')
_CONDITION = re.compile(r"condition=%?([\w.\-]+)")
_INTEGER = re.compile(r"= s32\[\]\S* constant\((\d+)\)")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
CALLERS = ("while", "call", "conditional", "async-start")  # A fusion states its own cost, its body none.


class Instruction(NamedTuple):
  """An instruction that the compiler gave a cost: cycles of one run, and its runs in a step."""

  name: str
  op_name: str  # The TensorFlow operation it came from.
  cycles: int
  runs: int


class ProgramCost(NamedTuple):
  """Cycles of one step; loops whose number of iterations the compiler did not state count once."""

  estimated_cycles: int
  loops_of_unknown_length: int


def costly_instructions(program: str) -> tuple[list[Instruction], int]:
  """All instructions with a cost, and how many loops have no known number of iterations."""
  bodies, entry = _computations(program)
  found: list[Instruction] = []
  unknown = 0

  def visit(name: str, runs: int) -> None:
    nonlocal unknown
    for line in bodies.get(name, []):
      operation = _OPERATION.match(line)
      if operation is None:
        continue
      cycles = _CYCLES.search(line)
      if cycles:
        op_name = _OP_NAME.search(line)
        found.append(Instruction(operation[1], op_name[1] if op_name else "", int(cycles[1]), runs))
      if operation[2] in CALLERS:
        trips = _trip_count(line, bodies) if operation[2] == "while" else 1
        unknown += trips is None
        times = trips or 1
        for called in _called(line):
          visit(called, runs * times)

  visit(entry, 1)
  return found, unknown


def program_cost(program: str) -> ProgramCost:
  """Sum of the estimated cycles of one run of the program, a loop's body as often as it runs."""
  instructions, unknown = costly_instructions(program)
  return ProgramCost(sum(each.cycles * each.runs for each in instructions), unknown)


def _trip_count(line: str, bodies: dict[str, list[str]]) -> int | None:
  """Iterations of a while loop: stated, or the bound that its condition compares a counter with."""
  stated = _TRIPS.search(line)
  if stated:
    return int(stated[1])
  condition = _CONDITION.search(line)
  lines = bodies.get(condition[1], []) if condition else []
  bounds = [found[1] for found in map(_INTEGER.search, lines) if found]
  is_counter = any("ROOT" in each and "direction=LT" in each for each in lines)
  return int(bounds[0]) if is_counter and len(bounds) == 1 else None


def _called(line: str) -> Iterator[str]:
  for group in _CALLED.finditer(line):
    yield from (name.strip().lstrip("%") for name in group[1].strip("{}").split(","))


def _computations(program: str) -> tuple[dict[str, list[str]], str]:
  """Name → lines of each computation, and the name of the entry."""
  bodies: dict[str, list[str]] = {}
  current: list[str] = []
  entry = ""
  for line in program.splitlines():
    header = None if line.startswith(" ") else _COMPUTATION.match(line)
    if header:
      current = bodies[header[2]] = []
      entry = header[2] if header[1] else entry
    else:
      current.append(line)
  return bodies, entry
