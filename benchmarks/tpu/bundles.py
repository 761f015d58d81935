"""Cycles of one instruction's bundles. A bundle is what all units of a core do in one cycle.

`read_cycles` counts how often each bundle is issued. For that it runs the scalar control code in
them (counters, comparisons, branches) and nothing else.
"""

import bisect
import collections
from collections.abc import Callable, Iterable, Mapping, Sequence
import itertools
import operator
import re
from typing import NamedTuple

from .program import first_group

# A bundle of a loop's end, with the scalar code that matters here:
#
#   0x1b LB: > { %p5_p1 = scmp.ge.s32.totalorder %s9_s3, 29  ;;  %s9_s3 = sphi 0, %s8_s8 }
#   0x1c   : > { %36 = sbr.rel (!%p5_p1) target = $region12 } /* End region 9 */
#
# After the last bundle's "}" a comment names the regions that start there.
_BUNDLE = re.compile(r"^ *(?:0x[0-9a-f]+|0) *(?:[A-Z]{2})? *: *>* *\{", re.MULTILINE)
_REGION = re.compile(r"Start(?:/End empty)? region (\d+)")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
# The core stands still for so many cycles more.
_DELAY = re.compile(r"= vdelay (\d+)")
# Such as vmatmul.bf16.gmra.mxu1: a product of the second matrix unit.
_MATMUL = re.compile(r"= vmatmul([\w.]*)")
_MATRIX_UNIT = re.compile(r"\.mxu(\d)$")
_BRANCH = re.compile(
  r"= sbr\.rel (?:\((?P<negated>!?)%(?P<predicate>\w+)\) )?target = \$region(?P<region>\d+)"
)
# A scalar (s) or a predicate (p) gets a value.
_SCALAR = re.compile(r"%([sp]\d\w*) = ([\w.]+) ([^;]*)")
# Scalars that are kept in memory between bundles.
_LOAD = re.compile(r"\[smem:(\[[^%\]]*\])\]")
_STORE = re.compile(r"= sst \[smem:(\[[^%\]]*\])\] ([^;]*)")
# (predicate), or (predicate, value if it is false).
_GUARD = re.compile(r"\((?P<negated>!?)%(?P<predicate>\w+)(?:, (?P<otherwise>[%\w-]+))?\),? ")
_OPERAND = re.compile(r"(?P<negated>!?)%(?P<register>\w+)|(?P<number>-?\d+)\b")

_MOVE = "smov"
_SELECT = "scalar_select"
_PHI = "sphi"  # One value where a loop is entered, another one where it begins again.

# More than any program of a training step has: a branch that is not understood must not hang.
_MOST_BRANCHES = 2_000_000

_Operand = str | int | None  # A register ("!" before it: negated), a number, or not understood.
_Registers = dict[str, int | None]  # Register or memory cell → value; None: not known.


class Machine(NamedTuple):
  """Properties of a chip that its bundles do not show."""

  branch_delay: int  # Bundles after a branch that are issued although it is taken.
  # Form of a `vmatmul` → cycles that it keeps its matrix unit busy.
  matmul_cycles: Callable[[str], int]


class Cycles(NamedTuple):
  """Cycles of one run of an instruction."""

  issue: int  # Bundles, with their delays.
  matrix_unit: int  # Cycles of the busiest matrix unit for its rows.
  loops_counted_once: int  # Loops with a number of iterations that the control code does not tell.

  @property
  def total(self) -> int:
    return max(self.issue, self.matrix_unit)


def read_cycles(text: str, machine: Machine) -> Cycles:
  """Cycles of one run of a dumped instruction: all of its loops, without waiting for memory."""
  return _Bundles(text, machine).run()


class _Operation(NamedTuple):
  """One scalar operation."""

  target: str  # The register, or the cell of the scalar memory, that gets the value.
  kind: str
  guard: _Operand  # It happens only where this is true; None: always.
  operands: list[_Operand]


class _Branch(NamedTuple):
  condition: _Operand  # None: always taken.
  target: int  # Number of the bundle.


class _Bundles:
  """The bundles of one instruction, with what decides how often each is issued."""

  def __init__(self, text: str, machine: Machine):
    starts = [match.end() for match in _BUNDLE.finditer(text)]
    bundles = [text[start:end] for start, end in itertools.pairwise([*starts, len(text)])]
    self._length = len(bundles)
    self._branch_delay = machine.branch_delay

    # Running sums: the cycles of a stretch are a difference of two of them.
    self._issue_sums = _running_sums(map(_issue_cycles, bundles))
    self._matrix_sums = _matrix_unit_sums(bundles, machine)

    region_starts = {
      int(region): position
      for position, bundle in enumerate(bundles)
      for region in _REGION.findall(bundle)
    }
    self._branches: dict[int, _Branch] = {}
    operations: dict[int, list[_Operation]] = {}
    for position, bundle in enumerate(bundles):
      code = _COMMENT.sub("", bundle)
      operations[position] = _scalar_operations(code)
      match = _BRANCH.search(code)
      if match and int(match["region"]) in region_starts:
        condition: _Operand = None
        if match["predicate"]:
          condition = match["negated"] + match["predicate"]
        target = region_starts[int(match["region"])]
        self._branches[position] = _Branch(condition, target)
    conditions = [branch.condition for branch in self._branches.values()]
    self._operations = _needed_operations(operations, conditions)
    # Only these bundles are executed; what is between two of them is counted as one stretch.
    self._stops = sorted({*self._operations, *self._branches, self._length})

  def run(self) -> Cycles:
    """Executes the scalar code from the first bundle to the last, and counts what is issued."""
    registers: _Registers = {}
    # (first bundle, the one after the last) → how often that stretch is issued.
    stretches: collections.Counter[tuple[int, int]] = collections.Counter()
    loops_counted_once: set[int] = set()
    num_taken = 0
    position = 0
    is_repetition = False  # Whether `position` was entered from the end of its loop.

    while position < self._length and num_taken < _MOST_BRANCHES:
      stop = self._stops[bisect.bisect_left(self._stops, position)]
      stretches[position, min(stop + 1, self._length)] += 1
      self._execute(stop, registers, is_repetition=is_repetition and stop == position)
      position = stop + 1
      is_repetition = False

      branch = self._branches.get(stop)
      if branch is None:
        continue
      is_taken: int | None = 1
      if branch.condition is not None:
        is_taken = _value(branch.condition, registers)
      goes_back = branch.target <= stop
      if is_taken is None and goes_back:
        loops_counted_once.add(stop)
      if is_taken:
        num_taken += 1
        # The pipeline has already issued the next bundles when the branch is taken.
        for late in range(position, min(position + self._branch_delay, self._length)):
          stretches[late, late + 1] += 1
          self._execute(late, registers, is_repetition=False)
        position = branch.target
        is_repetition = goes_back

    gave_up = num_taken >= _MOST_BRANCHES
    return Cycles(
      issue=_total(self._issue_sums, stretches),
      matrix_unit=max((_total(sums, stretches) for sums in self._matrix_sums), default=0),
      loops_counted_once=len(loops_counted_once) + gave_up,
    )

  def _execute(self, position: int, registers: _Registers, *, is_repetition: bool) -> None:
    """Executes the scalar operations of one bundle."""
    operations = self._operations.get(position, ())
    # All choices of a loop's entry are made before any register changes.
    phis = [operation for operation in operations if operation.kind == _PHI]
    chosen = [_value(phi.operands[is_repetition], registers) for phi in phis]
    for phi, value in zip(phis, chosen, strict=True):
      registers[phi.target] = value
    for operation in operations:
      if operation.kind == _PHI:
        continue
      if operation.guard is not None and _value(operation.guard, registers) == 0:
        continue
      values = [_value(operand, registers) for operand in operation.operands]
      registers[operation.target] = _result(operation.kind, values)


def _issue_cycles(bundle: str) -> int:
  """One cycle, and the delays in the bundle."""
  return 1 + sum(map(int, _DELAY.findall(bundle)))


def _matrix_unit_sums(bundles: Sequence[str], machine: Machine) -> list[list[int]]:
  """The running sum of busy cycles of each matrix unit."""
  busy: dict[str, list[int]] = {}
  for position, bundle in enumerate(bundles):
    for form in _MATMUL.findall(bundle):
      unit = first_group(_MATRIX_UNIT, form)
      of_unit = busy.setdefault(unit, [0] * len(bundles))
      of_unit[position] += machine.matmul_cycles(form)
  return [_running_sums(of_unit) for of_unit in busy.values()]


def _running_sums(numbers: Iterable[int]) -> list[int]:
  """[2, 3] → [0, 2, 5]."""
  return list(itertools.accumulate(numbers, initial=0))


def _total(sums: Sequence[int], stretches: Mapping[tuple[int, int], int]) -> int:
  return sum((sums[end] - sums[start]) * times for (start, end), times in stretches.items())


def _scalar_operations(code: str) -> list[_Operation]:
  """The scalar operations of a bundle, those at a loop's entry first."""
  operations = [_operation(*parts) for parts in _SCALAR.findall(code)]
  for cell, value in _STORE.findall(code):
    operations.append(_Operation(cell, _MOVE, None, _operands(value)))
  return sorted(operations, key=lambda operation: operation.kind != _PHI)


def _operation(target: str, kind: str, text: str) -> _Operation:
  """The operation of a text such as "(!%p4), 130, %s628", which follows its kind."""
  load = _LOAD.match(text)
  if load and kind == "sld":
    return _Operation(target, _MOVE, None, [load[1]])
  match = _GUARD.match(text)
  if match is None:
    return _Operation(target, kind, None, _operands(text))
  guard = match["negated"] + match["predicate"]
  operands = _operands(text[match.end() :])
  if match["otherwise"]:
    # smov (%p31, %s29), 0: zero where the predicate is true, else %s29.
    return _Operation(target, _SELECT, None, [guard, *operands, *_operands(match["otherwise"])])
  return _Operation(target, kind, guard, operands)


def _operands(text: str) -> list[_Operand]:
  return [_operand(part.strip()) for part in text.split(",")]


def _operand(text: str) -> _Operand:
  match = _OPERAND.match(text)
  if match is None:
    return None
  if match["number"]:
    return int(match["number"])
  return str(match["negated"] + match["register"])


def _needed_operations(
  operations: Mapping[int, list[_Operation]], conditions: Iterable[_Operand]
) -> dict[int, list[_Operation]]:
  """The operations on which a branch depends, by the number of their bundle."""
  sources = collections.defaultdict(list)
  for operation in itertools.chain.from_iterable(operations.values()):
    sources[operation.target].append(operation)
  needed = set()
  open_operands = list(conditions)
  while open_operands:
    operand = open_operands.pop()
    if not isinstance(operand, str):
      continue
    register = operand.lstrip("!")
    if register in needed:
      continue
    needed.add(register)
    for source in sources[register]:
      open_operands.append(source.guard)
      open_operands.extend(source.operands)

  of_bundles = {}
  for position, of_bundle in operations.items():
    needed_here = [operation for operation in of_bundle if operation.target in needed]
    if needed_here:
      of_bundles[position] = needed_here
  return of_bundles


def _value(operand: _Operand, registers: _Registers) -> int | None:
  if not isinstance(operand, str):
    return operand
  value = registers.get(operand.lstrip("!"))
  if value is not None and operand.startswith("!"):
    return int(not value)
  return value


_LOW_BITS = 0xFFFFFFFF


def _signed(value: int) -> int:
  """The low 32 bits as a signed number: 0xFFFFFFFF → -1."""
  value &= _LOW_BITS
  is_negative = value >> 31
  if is_negative:
    value -= 1 << 32
  return value


def _shifted_left(value: int, bits: int) -> int:
  return value << (bits & 31)


def _shifted_right(value: int, bits: int) -> int:
  """Zeros come in from the left."""
  return (value & _LOW_BITS) >> (bits & 31)


def _shifted_right_signed(value: int, bits: int) -> int:
  """The sign comes in from the left."""
  return _signed(value) >> (bits & 31)


_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
  "lt": operator.lt,
  "le": operator.le,
  "gt": operator.gt,
  "ge": operator.ge,
  "eq": operator.eq,
  "ne": operator.ne,
}
_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
  "sadd": operator.add,
  "ssub": operator.sub,
  "smul": operator.mul,
  "sand": operator.and_,
  "sor": operator.or_,
  "sxor": operator.xor,
  "sshll": _shifted_left,
  "sshrl": _shifted_right,
  "sshra": _shifted_right_signed,
  "smin": min,
  "smax": max,
}


def _result(kind: str, values: Sequence[int | None]) -> int | None:
  """The value that a scalar operation gives.

  None where a value is missing that matters, or the operation is not known.

  Args:
    kind: the operation with its form, such as "sadd.s32" or "scmp.ge.s32.totalorder".
    values: of its operands.
  """
  name, *form = kind.split(".")
  match name, values:
    case ("smov" | "pmov", [value]):
      return value
    case ("pneg", [int(value)]):
      return int(not value)
    case ("scalar_select", [condition, if_true, if_false]):
      return _selected(condition, if_true, if_false)
    case ("pand" | "pnand" | "por" | "pnor", [left, right]):
      return _logical(name, left, right)
    case (_, [int(left), int(right)]) if form[-1:] != ["f32"]:
      if name == "scmp" and form[0] in _COMPARISONS:
        return _compared(form, left, right)
      if name in _ARITHMETIC:
        return _signed(_ARITHMETIC[name](left, right))
  return None


def _selected(condition: int | None, if_true: int | None, if_false: int | None) -> int | None:
  if condition is None:
    # Both ways may lead to the same value.
    return if_true if if_true == if_false else None
  return if_true if condition else if_false


def _logical(name: str, left: int | None, right: int | None) -> int | None:
  """And, or, and their negations. One operand may decide alone: 0 and x is 0."""
  deciding = name in ("por", "pnor")  # What is true decides an or, what is false an and.
  if deciding in (_truth(left), _truth(right)):
    value = deciding
  elif left is None or right is None:
    return None
  else:
    value = not deciding
  is_negated = name in ("pnand", "pnor")
  return int(value != is_negated)


def _truth(value: int | None) -> bool | None:
  return None if value is None else bool(value)


def _compared(form: Sequence[str], left: int, right: int) -> int:
  """Compares as a form such as ["lt", "u32"] says."""
  relation, type_name = form[:2]
  if type_name.startswith("u"):
    return int(_COMPARISONS[relation](left & _LOW_BITS, right & _LOW_BITS))
  return int(_COMPARISONS[relation](_signed(left), _signed(right)))
