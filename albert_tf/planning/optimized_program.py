"""The cost that XLA's TPU compiler notes in the text of an optimized program."""

from collections.abc import Iterator
import re
from typing import NamedTuple

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_CYCLES = re.compile(r'"estimated_cycles":"?(-?\d+)')
_OPERATION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = .*? ([\w\-]+)\(([^)]*)\)")
_CALLED = re.compile(r"(?:body|condition|to_apply|calls|branch_computations)=(\{[^}]*\}|%?[\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"?(\d+)')
_CONDITION = re.compile(r"condition=%?([\w.\-]+)")
_INDEX = re.compile(r"\), index=(\d+)")
_COMMENT = re.compile(r"/\*.*?\*/")
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
  bodies, entry = computations(program)
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
        trips = _trip_count(line, bodies[name], bodies) if operation[2] == "while" else 1
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


def _trip_count(loop: str, lines: list[str], bodies: dict[str, list[str]]) -> int | None:
  """Iterations of a while loop among `lines`: stated, or the counter's end less its start."""
  stated = _TRIPS.search(loop)
  if stated:
    return int(stated[1])
  ends = _counter(loop, lines, bodies)
  if ends is None or ends.start is None or ends.end is None:
    return None
  return ends.end - ends.start


class _Counter(NamedTuple):
  """The element of a loop's state that its condition compares, and its values before and after; steps are of one."""

  element: int
  start: int | None
  end: int | None


def _counter(loop: str, lines: list[str], bodies: dict[str, list[str]]) -> _Counter | None:
  found = _CONDITION.search(loop)
  condition = bodies.get(found[1], []) if found else []
  root = next((line for line in condition if line.lstrip().startswith("ROOT")), "")
  if "direction=LT" not in root:
    return None
  left, right = (_defined(name, condition) for name in _operands(root))
  counter = _INDEX.search(left)
  if counter is None:
    return None
  state = _operands(_defined(_operands(loop)[0], lines))
  if len(state) <= int(counter[1]):
    return None
  carried = _INDEX.search(right)  # A bound that the loop hands on unchanged, else a constant.
  end = _integer(state[int(carried[1])], lines, bodies) if carried else _constant(right)
  return _Counter(int(counter[1]), _integer(state[int(counter[1])], lines, bodies), end)


def _integer(name: str, lines: list[str], bodies: dict[str, list[str]]) -> int | None:
  """A number that is constant, or what another loop has counted to, as the forward loop for its gradient's."""
  line = _defined(name, lines)
  operation = _OPERATION.match(line)
  if operation is None:
    return None
  if operation[2] == "copy":
    return _integer(_operands(line)[0], lines, bodies)
  if operation[2] == "get-tuple-element":
    source, index = _defined(_operands(line)[0], lines), _INDEX.search(line)
    ends = _counter(source, lines, bodies) if " while(" in source else None
    return ends.end if ends and index and int(index[1]) == ends.element else None
  return _constant(line)


def _constant(line: str) -> int | None:
  operation = _OPERATION.match(line)
  is_number = operation is not None and operation[2] == "constant" and operation[3].lstrip("-").isdigit()
  return int(operation[3]) if operation and is_number else None


def _operands(line: str) -> list[str]:
  operation = _OPERATION.match(line)
  names = _COMMENT.sub("", operation[3]).split(",") if operation else []
  return [name.strip().lstrip("%") for name in names]


def _defined(name: str, lines: list[str]) -> str:
  """The line of a computation that defines a name; empty where none does."""
  return next((line for line in lines if (found := _OPERATION.match(line)) and found[1] == name), "")


def _called(line: str) -> Iterator[str]:
  for group in _CALLED.finditer(line):
    yield from (name.strip().lstrip("%") for name in group[1].strip("{}").split(","))


def operation(line: str) -> tuple[str, str]:
  """Kind and name of the instruction on a line; both empty where it has none."""
  found = _OPERATION.match(line)
  return (found[2], found[1]) if found else ("", "")


def estimated_cycles(line: str) -> int:
  """Cycles of one run of a line's instruction; 0 where the compiler states none."""
  found = _CYCLES.search(line)
  return int(found[1]) if found else 0


def computations(program: str) -> tuple[dict[str, list[str]], str]:
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
