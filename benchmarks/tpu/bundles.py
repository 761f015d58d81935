"""Cycles of one instruction of a compiled TPU program, from the final bundles that libtpu dumps for it.

A bundle is what all units of a core do in one cycle; a `vdelay n` in it holds the core for n more. How often each is
issued is found by running the scalar control code, and nothing else: counters, comparisons, branches.
"""

import bisect
import collections
from collections.abc import Callable, Iterable
import itertools
import operator
import re
from typing import NamedTuple

# "  0x16 PF: > {" opens a bundle; what follows the last one's "}" is a comment that names the regions starting there.
_BUNDLE = re.compile(r"^ *(?:0x[0-9a-f]+|0) *(?:[A-Z]{2})? *: *>* *\{", re.MULTILINE)
_REGION = re.compile(r"Start(?:/End empty)? region (\d+)")
_DELAY = re.compile(r"= vdelay (\d+)")
_MATMUL = re.compile(r"= vmatmul([\w.]*)")
_UNIT = re.compile(r"\.mxu(\d)$")
_BRANCH = re.compile(r"= sbr\.rel (?:\((!?)%(\w+)\) )?target = \$region(\d+)")
_SCALAR = re.compile(r"%([sp]\d\w*) = ([\w.]+) ([^;]*)")
_LOAD, _STORE = (
  re.compile(r"\[smem:(\[[^%\]]*\])\]"),
  re.compile(r"= sst \[smem:(\[[^%\]]*\])\] ([^;]*)"),
)
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_GUARD = re.compile(
  r"\((!?)%(\w+)(?:, ([%\w-]+))?\),? "
)  # (predicate), or (predicate, value if false).
_OPERAND = re.compile(r"(!?)%(\w+)|(-?\d+)\b")

_MOST_BRANCHES = 2_000_000  # More than any program of a training step has.
_LOW_BITS = 0xFFFFFFFF

_Operand = str | int | None  # A name ("!" before it: negated), a number, or neither.


class Machine(NamedTuple):
  """Properties of a chip that its bundles do not show."""

  branch_delay: int  # Bundles after a branch that are issued although it is taken.
  matmul_cycles: Callable[
    [str], int
  ]  # Cycles that one `vmatmul` of this form keeps its matrix unit busy.


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
  return _Program(text, machine).run()


class _Step(NamedTuple):
  """One scalar operation; its name is a register's, or the scalar memory's where a value is kept."""

  name: str
  kind: str
  guard: _Operand  # It happens only where this is true; None: always.
  operands: list[_Operand]


def _operands(text: str) -> list[_Operand]:
  found = (_OPERAND.match(part.strip()) for part in text.split(","))
  return [
    None if each is None else int(each[3]) if each[3] else each[1] + each[2] for each in found
  ]


def _steps(bundle: str) -> list[_Step]:
  """The scalar operations of a bundle, what chooses between two entries of a loop first."""
  found = []
  for name, kind, rest in _SCALAR.findall(bundle):
    load = _LOAD.match(rest) if kind == "sld" else None
    guard = _GUARD.match(rest)
    if load:
      found.append(_Step(name, "smov", None, [load[1]]))
    elif guard and guard[3]:
      choice = [guard[1] + guard[2], *_operands(rest[guard.end() :]), *_operands(guard[3])]
      found.append(_Step(name, "scalar_select", None, choice))
    else:
      rest = rest[guard.end() :] if guard else rest
      found.append(_Step(name, kind, guard[1] + guard[2] if guard else None, _operands(rest)))
  found += [_Step(cell, "smov", None, _operands(value)) for cell, value in _STORE.findall(bundle)]
  return sorted(found, key=lambda step: step.kind != "sphi")


class _Branch(NamedTuple):
  condition: _Operand  # None: always taken.
  target: int  # Bundle.


class _Program:
  def __init__(self, text: str, machine: Machine):
    starts = [match.end() for match in _BUNDLE.finditer(text)]
    bundles = [text[a:b] for a, b in itertools.pairwise([*starts, len(text)])]
    self._length, self._branch_delay = len(bundles), machine.branch_delay
    self._issue = _sums(1 + sum(map(int, _DELAY.findall(bundle))) for bundle in bundles)
    self._units = _matrix_units(bundles, machine)
    regions = {
      int(region): at for at, bundle in enumerate(bundles) for region in _REGION.findall(bundle)
    }
    self._branches: dict[int, _Branch] = {}
    steps: dict[int, list[_Step]] = {}
    for at, bundle in enumerate(bundles):
      code = _COMMENT.sub("", bundle)
      steps[at] = _steps(code)
      branch = _BRANCH.search(code)
      if branch and int(branch[3]) in regions:
        condition = branch[1] + branch[2] if branch[2] else None
        self._branches[at] = _Branch(condition, regions[int(branch[3])])
    self._steps = _needed(steps, [branch.condition for branch in self._branches.values()])
    self._stops = sorted({*self._steps, *self._branches, self._length})

  def run(self) -> Cycles:
    """Goes from one bundle that matters to the next, and counts how often each stretch between them is issued."""
    values: dict[str, int | None] = {}
    issued: collections.Counter[tuple[int, int]] = (
      collections.Counter()
    )  # From the first to before the last.
    once: set[int] = set()
    at, again, branches = 0, False, 0  # `again`: `at` was entered from a loop's end.
    while at < self._length and branches < _MOST_BRANCHES:
      stop = self._stops[bisect.bisect_left(self._stops, at)]
      issued[at, min(stop + 1, self._length)] += 1
      self._do(stop, values, again=again and stop == at)
      at, again = stop + 1, False
      branch = self._branches.get(stop)
      if branch is None:
        continue
      taken = 1 if branch.condition is None else _value(branch.condition, values)
      if taken is None and branch.target <= stop:
        once.add(stop)
      if taken:
        branches += 1
        late = range(stop + 1, min(stop + 1 + self._branch_delay, self._length))
        for bundle in late:
          issued[bundle, bundle + 1] += 1
          self._do(bundle, values)
        at, again = branch.target, branch.target <= stop
    return Cycles(
      issue=_total(self._issue, issued),
      matrix_unit=max((_total(unit, issued) for unit in self._units), default=0),
      loops_counted_once=len(once) + (branches >= _MOST_BRANCHES),
    )

  def _do(self, at: int, values: dict[str, int | None], *, again: bool = False) -> None:
    steps = self._steps.get(at, ())
    entry = [
      _value(step.operands[again], values) for step in steps if step.kind == "sphi"
    ]  # All before any is set.
    for step, value in itertools.zip_longest(steps, entry):
      if step.kind != "sphi":
        if step.guard is not None and _value(step.guard, values) == 0:
          continue
        value = _result(step.kind, [_value(operand, values) for operand in step.operands])
      values[step.name] = value


def _matrix_units(bundles: list[str], machine: Machine) -> list[list[int]]:
  """The running sum of busy cycles of each matrix unit."""
  rows: dict[str, list[int]] = {}
  for at, bundle in enumerate(bundles):
    for form in _MATMUL.findall(bundle):
      unit = _UNIT.search(form)
      rows.setdefault(unit[1] if unit else "", [0] * len(bundles))[at] += machine.matmul_cycles(
        form
      )
  return [_sums(counts) for counts in rows.values()]


def _needed(
  steps: dict[int, list[_Step]], conditions: Iterable[_Operand]
) -> dict[int, list[_Step]]:
  """The steps that a branch depends on."""
  sources: dict[str, list[_Step]] = {}
  for step in itertools.chain.from_iterable(steps.values()):
    sources.setdefault(step.name, []).append(step)
  todo, needed = list(conditions), set()
  while todo:
    name = todo.pop()
    if isinstance(name, str) and name.lstrip("!") not in needed:
      needed.add(name.lstrip("!"))
      for step in sources.get(name.lstrip("!"), ()):
        todo += [step.guard, *step.operands]
  kept = {at: [step for step in found if step.name in needed] for at, found in steps.items()}
  return {at: found for at, found in kept.items() if found}


def _value(operand: _Operand, values: dict[str, int | None]) -> int | None:
  if not isinstance(operand, str):
    return operand
  value = values.get(operand.lstrip("!"))
  return value if value is None or operand[0] != "!" else int(not value)


def _signed(value: int) -> int:
  value &= _LOW_BITS
  return value - (1 << 32) if value >> 31 else value


_COMPARE = {
  "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq, "ne": operator.ne,
}  # fmt: skip
_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
  "sadd": operator.add,
  "ssub": operator.sub,
  "smul": operator.mul,
  "sand": operator.and_,
  "sor": operator.or_,
  "sxor": operator.xor,
  "sshll": lambda a, b: a << (b & 31),
  "sshrl": lambda a, b: (a & _LOW_BITS) >> (b & 31),
  "sshra": lambda a, b: _signed(a) >> (b & 31),
  "smin": min,
  "smax": max,
}


def _result(kind: str, operands: list[int | None]) -> int | None:
  """The result of a scalar operation; None where an operand is missing that matters, or the operation is not known."""
  name, *form = kind.split(".")
  if name in ("smov", "pmov", "pneg") and len(operands) == 1:
    value = operands[0]
    return int(not value) if name == "pneg" and value is not None else value
  if name == "scalar_select" and len(operands) == 3:
    condition, a, b = operands
    if condition is None:
      return a if a == b else None
    return a if condition else b
  if len(operands) != 2:
    return None
  a, b = operands
  if name in ("pand", "pnand", "por", "pnor"):
    decides = 0 if "and" in name else 1
    if a is not None and b is not None:
      value = a and b if decides == 0 else a or b
    elif decides in (a, b):
      value = decides
    else:
      return None
    return int(not value) if name[1] == "n" else int(bool(value))
  if a is None or b is None or form[-1:] == ["f32"]:
    return None
  if name == "scmp" and form[0] in _COMPARE:
    unsigned = form[1].startswith("u")
    a, b = (a & _LOW_BITS, b & _LOW_BITS) if unsigned else (_signed(a), _signed(b))
    return int(_COMPARE[form[0]](a, b))
  return _signed(_ARITHMETIC[name](a, b)) if name in _ARITHMETIC else None


def _sums(numbers: Iterable[int]) -> list[int]:
  return list(itertools.accumulate(numbers, initial=0))


def _total(sums: list[int], issued: dict[tuple[int, int], int]) -> int:
  return sum((sums[last] - sums[first]) * times for (first, last), times in issued.items())
