"""The optimized program of a TPU step as text: its instructions, and how often a step runs each. Loops multiply."""

from collections.abc import Iterator
import re
from typing import NamedTuple

# Such as: ENTRY %main.7 (Arg_0.1: f32[8]) -> f32[8] {
_COMPUTATION = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) .*\{$")
# Such as:   ROOT %add.3 = f32[8]{0:T(128)} add(%Arg_0.1, %constant.2), metadata={…}
_INSTRUCTION = re.compile(
  r"^\s+(?:ROOT )?%?(?P<name>[\w.\-]+) = (?P<shape>.*?) (?P<kind>[\w\-]+)\((?P<operands>[^)]*)\)"
)
_ESTIMATE = re.compile(r'"estimated_cycles":"?(-?\d+)')
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_ELEMENT = re.compile(r"\), index=(\d+)")
_TRIP_COUNT = re.compile(r'"known_trip_count":\{"n":"?(\d+)')
_CONDITION = re.compile(r"condition=%?([\w.\-]+)")
_CALLED = re.compile(
  r"(?:body|condition|to_apply|calls|branch_computations)=(\{[^}]*\}|%?[\w.\-]+)"
)
# What is inside these is counted for itself. A fusion states its own cost, its body none.
_CALLERS = ("while", "call", "conditional", "async-start")


class Instruction(NamedTuple):
  """One line of the program."""

  name: str
  shape: str  # Of the result, with its layout; a tuple's in parentheses.
  kind: str
  operands: list[str]
  text: str  # The whole line.

  @property
  def estimated_cycles(self) -> int:
    """Of one run; 0 where the compiler states none."""
    return _number(_ESTIMATE, self.text) or 0

  @property
  def op_name(self) -> str:
    """The TensorFlow operation it came from; empty where none is stated."""
    return first_group(_OP_NAME, self.text)

  @property
  def element(self) -> int | None:
    """Which element of a tuple a get-tuple-element takes."""
    return _number(_ELEMENT, self.text)

  @property
  def constant(self) -> int | None:
    """The value of a constant that is a whole number."""
    if self.kind != "constant" or not self.operands[0].lstrip("-").isdigit():
      return None
    return int(self.operands[0])


def first_group(pattern: re.Pattern[str], text: str) -> str:
  """What a pattern's parentheses hold; empty where the text does not have it."""
  match = pattern.search(text)
  return match[1] if match else ""


def _number(pattern: re.Pattern[str], text: str) -> int | None:
  digits = first_group(pattern, text)
  return int(digits) if digits else None


# By name, in the order of the compiler's schedule; the root, which is the result, is the last.
Computation = dict[str, Instruction]


class Executed(NamedTuple):
  """An instruction where it stands, and how often a step runs it."""

  instruction: Instruction
  computation: Computation
  runs: int


class Program:
  """The computations of an optimized program.

  Args:
    text: of the whole module.
  """

  def __init__(self, text: str):
    self.computations: dict[str, Computation] = {}
    self._entry = ""
    name = ""
    for line in text.splitlines():
      # Instructions are indented; the head of a computation is not.
      head = _COMPUTATION.match(line)
      if head:
        name = head["name"]
        self.computations[name] = {}
        if head["entry"]:
          self._entry = name
        continue
      match = _INSTRUCTION.match(line)
      if match and name:
        self.computations[name][match["name"]] = Instruction(
          name=match["name"],
          shape=match["shape"],
          kind=match["kind"],
          operands=_names(match["operands"]),
          text=line,
        )

  def executed(self) -> Iterator[Executed]:
    """All instructions that a step runs, those in loops once each."""
    yield from self._executed(self.computations[self._entry], runs=1)

  def _executed(self, computation: Computation, runs: int) -> Iterator[Executed]:
    for instruction in computation.values():
      yield Executed(instruction, computation, runs)
      if instruction.kind not in _CALLERS:
        continue
      inner_runs = runs
      if instruction.kind == "while":
        # A loop whose length depends on data counts once.
        inner_runs *= self._trip_count(instruction, computation) or 1
      for group in _CALLED.finditer(instruction.text):
        for name in _names(group[1].strip("{}")):
          yield from self._executed(self.computations.get(name, {}), inner_runs)

  def _trip_count(self, loop: Instruction, computation: Computation) -> int | None:
    """How often a while loop runs: stated, or the counter's end less its start."""
    stated = _number(_TRIP_COUNT, loop.text)
    if stated is not None:
      return stated
    counter = self._counter(loop, computation)
    if counter is None or counter.start is None or counter.end is None:
      return None
    return counter.end - counter.start

  def _counter(self, loop: Instruction, computation: Computation) -> "_LoopCounter | None":
    """The counter of a loop whose condition is `counter < end`; None for other loops."""
    condition = self.computations.get(first_group(_CONDITION, loop.text), {})
    root = next(reversed(condition.values()), None)
    state = computation.get(loop.operands[0])
    if root is None or state is None or "direction=LT" not in root.text:
      return None
    left, right = (condition.get(name) for name in root.operands)
    if left is None or right is None:
      return None
    element = left.element
    if element is None or element >= len(state.operands):
      return None

    start = self._integer(state.operands[element], computation)
    if right.element is None:
      end = right.constant
    else:
      # A bound that the loop hands on unchanged.
      end = self._integer(state.operands[right.element], computation)
    return _LoopCounter(element, start, end)

  def _integer(self, name: str, computation: Computation) -> int | None:
    """A number that is constant, or to which another loop has counted.

    A loop of gradients counts down from where the loop of the forward pass ended.
    """
    instruction = computation.get(name)
    if instruction is None:
      return None
    if instruction.kind == "copy":
      return self._integer(instruction.operands[0], computation)
    if instruction.kind != "get-tuple-element":
      return instruction.constant

    loop = computation.get(instruction.operands[0])
    if loop is None or loop.kind != "while":
      return None
    counter = self._counter(loop, computation)
    if counter is None or counter.element != instruction.element:
      return None
    return counter.end


class _LoopCounter(NamedTuple):
  element: int  # Where it stands in the loop's state.
  start: int | None  # Its value before the loop, where that is known.
  end: int | None  # Its value after the loop.


def _names(text: str) -> list[str]:
  """Names of a list: "%a, /*index=1*/%b" → ["a", "b"]."""
  without_comments = re.sub(r"/\*.*?\*/", "", text)
  return [name.strip().lstrip("%") for name in without_comments.split(",")]


def estimated_cycles(program_text: str) -> int:
  """The compiler's own estimate for one step, made before its final schedule."""
  return sum(
    executed.runs * executed.instruction.estimated_cycles
    for executed in Program(program_text).executed()
  )
