"""The text of a program that XLA's TPU compiler optimized: its computations, and how often each instruction runs."""

import re
from typing import NamedTuple

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([\w\-]+)\(([^)]*)\)")
_CYCLES = re.compile(r'"estimated_cycles":"?(-?\d+)')
_CALLED = re.compile(
  r"(?:body|condition|to_apply|calls|branch_computations)=(\{[^}]*\}|%?[\w.\-]+)"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"?(\d+)')
_CONDITION = re.compile(r"condition=%?([\w.\-]+)")
_INDEX = re.compile(r"\), index=(\d+)")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_CALLERS = (
  "while",
  "call",
  "conditional",
  "async-start",
)  # A fusion states its own cost, its body none.


class Line(NamedTuple):
  """One instruction; `text` is its whole line."""

  name: str
  shape: str  # Of the result, with its layout; a tuple's in parentheses.
  kind: str
  operands: list[str]
  text: str

  @property
  def cycles(self) -> int | None:
    """Estimated, of one run; None where the compiler states none."""
    found = _CYCLES.search(self.text)
    return int(found[1]) if found else None

  @property
  def op_name(self) -> str:
    """The TensorFlow operation it came from."""
    found = _OP_NAME.search(self.text)
    return found[1] if found else ""

  @property
  def element(self) -> int | None:
    found = _INDEX.search(self.text)
    return int(found[1]) if found else None

  @property
  def constant(self) -> int | None:
    is_number = self.kind == "constant" and self.operands[0].lstrip("-").isdigit()
    return int(self.operands[0]) if is_number else None


Body = dict[str, Line]  # By name, in the order of the compiler's schedule; the root is the last.


class Executed(NamedTuple):
  """An instruction where it stands, and how often a step runs it."""

  line: Line
  body: Body
  runs: int


class Program:
  """The computations of an optimized program.

  Args:
    text: of the whole module.
  """

  def __init__(self, text: str):
    self.bodies, self._entry = _computations(text)

  def executed(self) -> tuple[list[Executed], int]:
    """All instructions that a step runs, those in loops once each, and how many loops have no known length."""
    found: list[Executed] = []
    unknown = 0

    def visit(body: Body, runs: int) -> None:
      nonlocal unknown
      for line in body.values():
        found.append(Executed(line, body, runs))
        if line.kind in _CALLERS:
          trips = _trip_count(line, body, self.bodies) if line.kind == "while" else 1
          unknown += trips is None
          for group in _CALLED.finditer(line.text):
            for called in _names(group[1].strip("{}")):
              visit(self.bodies.get(called, {}), runs * (trips or 1))

    visit(self.bodies[self._entry], 1)
    return found, unknown


def estimated_cycles(text: str) -> int:
  """The compiler's own estimate for one step, before its final schedule; a loop's body as often as it runs."""
  return sum((each.line.cycles or 0) * each.runs for each in Program(text).executed()[0])


def _computations(program: str) -> tuple[dict[str, Body], str]:
  """Name → instructions of each computation, and the name of the entry."""
  bodies: dict[str, Body] = {"": {}}
  entry = name = ""
  for text in program.splitlines():
    header = None if text.startswith(" ") else _COMPUTATION.match(text)
    if header:
      name = header[2]
      bodies[name] = {}
      entry = name if header[1] else entry
    elif found := _INSTRUCTION.match(text):
      bodies[name][found[1]] = Line(found[1], found[2], found[3], _names(found[4]), text)
  return bodies, entry


def _names(text: str) -> list[str]:
  return [name.strip().lstrip("%") for name in re.sub(r"/\*.*?\*/", "", text).split(",")]


def _trip_count(loop: Line, body: Body, bodies: dict[str, Body]) -> int | None:
  """Iterations of a while loop: stated, or the counter's end less its start."""
  stated = _TRIPS.search(loop.text)
  if stated:
    return int(stated[1])
  _, start, end = _counter(loop, body, bodies)
  return None if start is None or end is None else end - start


def _counter(
  loop: Line, body: Body, bodies: dict[str, Body]
) -> tuple[int | None, int | None, int | None]:
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


def _integer(name: str, body: Body, bodies: dict[str, Body]) -> int | None:
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
