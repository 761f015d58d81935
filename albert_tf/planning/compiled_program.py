"""What is read from the text of a program that XLA's TPU compiler optimized: its cycles, and its sums over cores."""

import re
from typing import NamedTuple

from albert_tf.planning.chips import Topology

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = .*? ([\w\-]+)\(([^)]*)\)")
_CYCLES = re.compile(r'"estimated_cycles":"?(-?\d+)')
_CALLED = re.compile(r"(?:body|condition|to_apply|calls|branch_computations)=(\{[^}]*\}|%?[\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"?(\d+)')
_CONDITION = re.compile(r"condition=%?([\w.\-]+)")
_INDEX = re.compile(r"\), index=(\d+)")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_ARRAY = re.compile(r"\b[a-z]+(\d+)\[([\d,]*)\]")  # Bits of an item, and lengths.
_STRATEGY = re.compile(r'"strategy":"(\w+)".*?colors:(\d+)')
_CALLERS = ("while", "call", "conditional", "async-start")  # A fusion states its own cost, its body none.


class _Line(NamedTuple):
  """One instruction; `text` is its whole line."""

  name: str
  kind: str
  operands: list[str]
  text: str

  @property
  def cycles(self) -> int:
    """Of one run; 0 where the compiler states none."""
    found = _CYCLES.search(self.text)
    return int(found[1]) if found else 0

  @property
  def element(self) -> int | None:
    found = _INDEX.search(self.text)
    return int(found[1]) if found else None

  @property
  def constant(self) -> int | None:
    is_number = self.kind == "constant" and self.operands[0].lstrip("-").isdigit()
    return int(self.operands[0]) if is_number else None


_Body = dict[str, _Line]  # By name, in the order of the compiler's schedule; the root is the last.


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
  """All instructions with a cost, and how many loops have no known number of iterations."""
  bodies, entry = _computations(program)
  found: list[Instruction] = []
  unknown = 0

  def visit(body: _Body, runs: int) -> None:
    nonlocal unknown
    for line in body.values():
      if _CYCLES.search(line.text):
        op_name = _OP_NAME.search(line.text)
        found.append(Instruction(line.name, op_name[1] if op_name else "", line.cycles, runs))
      if line.kind in _CALLERS:
        trips = _trip_count(line, body, bodies) if line.kind == "while" else 1
        unknown += trips is None
        for group in _CALLED.finditer(line.text):
          for called in _names(group[1].strip("{}")):
            visit(bodies.get(called, {}), runs * (trips or 1))

  visit(bodies[entry], 1)
  return found, unknown


def all_reduces(program: str) -> list[AllReduce]:
  """All-reduces in the order of the compiler's schedule; a loop's count once, for a step has none there."""
  found = []
  for body in _computations(program)[0].values():
    lines = list(body.values())
    for at, line in enumerate(lines):
      if line.kind in ("all-reduce", "all-reduce-start"):
        arrays = _ARRAY.findall(line.text.partition(" all-reduce")[0])
        beside = _cycles_until_done(line.name, lines[at + 1 :]) if line.kind == "all-reduce-start" else 0
        found.append(AllReduce(len(arrays), sum(map(_num_bytes, arrays)), _links(line.text), beside))
  return found


def waiting_seconds(found: list[AllReduce], topology: Topology) -> float:
  """Seconds in which a core has nothing to compute: of each all-reduce what no computation runs beside."""
  return sum(
    max(0.0, topology.all_reduce_seconds(each.num_bytes, each.links) - each.beside / topology.chip.clock_hz)
    for each in found
  )


def _computations(program: str) -> tuple[dict[str, _Body], str]:
  """Name → instructions of each computation, and the name of the entry."""
  bodies: dict[str, _Body] = {"": {}}
  entry = name = ""
  for text in program.splitlines():
    header = None if text.startswith(" ") else _COMPUTATION.match(text)
    if header:
      name = header[2]
      bodies[name] = {}
      entry = name if header[1] else entry
    elif found := _INSTRUCTION.match(text):
      bodies[name][found[1]] = _Line(found[1], found[2], _names(found[3]), text)
  return bodies, entry


def _names(text: str) -> list[str]:
  return [name.strip().lstrip("%") for name in re.sub(r"/\*.*?\*/", "", text).split(",")]


def _trip_count(loop: _Line, body: _Body, bodies: dict[str, _Body]) -> int | None:
  """Iterations of a while loop: stated, or the counter's end less its start."""
  stated = _TRIPS.search(loop.text)
  if stated:
    return int(stated[1])
  _, start, end = _counter(loop, body, bodies)
  return None if start is None or end is None else end - start


def _counter(loop: _Line, body: _Body, bodies: dict[str, _Body]) -> tuple[int | None, int | None, int | None]:
  """Of a loop that counts up by one: the place of the counter in its state, and the counter before and after."""
  unknown = None, None, None
  named = _CONDITION.search(loop.text)
  condition = bodies.get(named[1], {}) if named else {}
  root = next(reversed(condition.values()), None)
  if root is None or "direction=LT" not in root.text:
    return unknown
  left, right = (condition.get(name) for name in root.operands)
  state = body.get(loop.operands[0])
  if (
    left is None
    or right is None
    or state is None
    or left.element is None
    or left.element >= len(state.operands)
  ):
    return unknown
  start = _integer(state.operands[left.element], body, bodies)
  if right.element is None:  # Else a bound that the loop hands on unchanged.
    return left.element, start, right.constant
  return left.element, start, _integer(state.operands[right.element], body, bodies)


def _integer(name: str, body: _Body, bodies: dict[str, _Body]) -> int | None:
  """A number that is constant, or what another loop has counted to, as the forward loop for its gradient's."""
  line = body.get(name)
  if line is None:
    return None
  if line.kind == "copy":
    return _integer(line.operands[0], body, bodies)
  if line.kind == "get-tuple-element":
    source = body.get(line.operands[0])
    if source is None or source.kind != "while":
      return None
    place, _, end = _counter(source, body, bodies)
    return end if place == line.element else None
  return line.constant


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


def _cycles_until_done(start: str, rest: list[_Line]) -> int:
  total = 0
  for line in rest:
    if line.kind == "all-reduce-done" and start in line.operands:
      break
    total += line.cycles
  return total
