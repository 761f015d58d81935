"""Cycles of a compiled TPU step, read from the final schedule that libtpu dumps; no TPU runs.

A TPU's core does what its compiler scheduled, cycle by cycle. So the time of a step can be read:

1. **The program.** `Program` reads the optimized program's text: its instructions, and how often a
   step runs each of them. Loops multiply.
2. **The bundles of an instruction.** A bundle is what all units of a core do in one cycle.
   `read_cycles` counts how often each is issued. For that it runs the scalar control code in them
   (counters, comparisons, branches) and nothing else.
3. **The bytes of an instruction.** `_hbm_bytes` reads from the shapes and layouts what moves to and
   from HBM. An instruction takes the longer of its bundles and of these bytes.

`final_schedule` puts them together. The compiler also states an estimate, `estimated_cycles`, which
it makes before that schedule. For a step of the base model it is 21 % above the schedule on v3 and
61 % on v5e, and not by the same factor for every instruction.

How this was checked, and what it found, is in tpu_compile.md beside this folder.
"""

import bisect
import collections
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import itertools
import math
import operator
import pathlib
import re
from typing import NamedTuple

from albert_tf.planning.chips import Chip


def dump_flags(folder: str) -> str:
  """The value of LIBTPU_INIT_ARGS with which libtpu writes the bundles of every instruction."""
  return (
    f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true"
    " --xla_jf_dump_llo_pass_label_regex=final_bundles"
  )


class Scheduled(NamedTuple):
  """One instruction of the final schedule."""

  name: str
  op_name: str  # The TensorFlow operation it came from.
  runs: int  # In a step.
  issue_cycles: float  # Of one run: bundles, and the matrix unit where that takes longer.
  matrix_cycles: float  # Of one run: what its rows keep the busiest matrix unit busy.
  memory_cycles: float  # Of one run: its bytes to and from HBM, at full bandwidth.
  estimated_cycles: int  # Of one run, by the compiler before its final schedule.

  @property
  def cycles(self) -> float:
    """Of all runs: computation and memory work at the same time, and the longer one counts."""
    return self.runs * max(self.issue_cycles, self.memory_cycles)


class FinalSchedule(NamedTuple):
  """Cycles of one step of a core, without waiting for other cores."""

  instructions: tuple[Scheduled, ...]  # In the program's order.
  cycles: float  # Of every instruction the longer of issue and memory; at least `memory_cycles`.
  issue_cycles: float  # The same as if memory never had to be waited for.
  # All bytes to and from HBM, copies during the computation too, at full bandwidth.
  memory_cycles: float


# ---------------------------------------------------------------------- 1. the program

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
_FUSED = re.compile(r"calls=%?([\w.\-]+)")
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
    return _group(_OP_NAME, self.text)

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


def _group(pattern: re.Pattern[str], text: str) -> str:
  """What a pattern's parentheses hold; empty where the text does not have it."""
  match = pattern.search(text)
  return match[1] if match else ""


def _number(pattern: re.Pattern[str], text: str) -> int | None:
  digits = _group(pattern, text)
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
    condition = self.computations.get(_group(_CONDITION, loop.text), {})
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


# ---------------------------------------------------------------------- 2. bundles of an instruction

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
      unit = _group(_MATRIX_UNIT, form)
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


# ---------------------------------------------------------------------- 3. bytes of an instruction

# f32[768,3072]{1,0:T(8,128)S(1)}: type, lengths, the order of the axes with the minor one first,
# tiles, and the memory space, which is HBM where none is named.
_ARRAY = re.compile(
  r"\b(?:pred|[a-z]+(?P<bits>\d+)\w*)\[(?P<lengths>[\d,]*)\](?:\{(?P<layout>[^}]*)\})?"
)
_TILE = re.compile(r"T\(([\d,]+)\)")
_ON_CHIP = re.compile(r"S\([1-9]")
# They run beside the computation. The first two parts of their shape are the ends of the copy.
_COPIES_BESIDE = ("copy-start", "slice-start", "async-start")
_READ_IN_PART = ("slice", "dynamic-slice", "gather")
# They write in place. The value: which operand holds what is new.
_WRITTEN_IN_PART = {"dynamic-update-slice": 1, "scatter": 2}


def _hbm_bytes(executed: Executed, program: Program) -> int:
  """Bytes that one run of an instruction moves to and from HBM.

  These are its results and operands that are not kept on the chip. Of arrays that are only sliced,
  or written in part, that part counts.
  """
  instruction = executed.instruction
  if instruction.kind in _COPIES_BESIDE:
    ends = list(_ARRAY.finditer(instruction.shape))[:2]
    # A slice is smaller than what it is cut from, and only the slice moves.
    moved = min(map(_padded_bytes, ends), default=0)
    return moved * sum(map(_is_in_hbm, ends))

  # A fusion's operands are the parameters of its body. Any other instruction is its own body.
  body: Computation = {instruction.name: instruction}
  fused = _group(_FUSED, instruction.text)
  if fused:
    body = program.computations.get(fused, {})
  return _read_bytes(executed, body, program) + _written_bytes(executed, body)


def _read_bytes(executed: Executed, body: Computation, program: Program) -> int:
  outer = executed.computation
  parameters = {
    instruction.operands[0]: name
    for name, instruction in body.items()
    if instruction.kind == "parameter"
  }
  total = 0
  for number, operand in enumerate(executed.instruction.operands):
    if operand not in outer:
      continue
    complete = _bytes_in_hbm(outer[operand].shape)
    touched = _touched_bytes(parameters.get(str(number), operand), body, outer, program)
    total += _smaller(complete, touched)
  return total


def _written_bytes(executed: Executed, body: Computation) -> int:
  complete = _bytes_in_hbm(executed.instruction.shape)
  root = next(reversed(body.values()), executed.instruction)
  # A bitcast only gives another shape to the same bytes.
  while root.kind == "bitcast" and root.operands[0] in body:
    root = body[root.operands[0]]
  if root.kind not in _WRITTEN_IN_PART:
    return complete
  new = root.operands[_WRITTEN_IN_PART[root.kind]]
  return _smaller(complete, _bytes_of(new, body, executed.computation))


def _smaller(complete: int, in_part: int | None) -> int:
  return complete if in_part is None else min(complete, in_part)


def _touched_bytes(
  name: str, body: Computation, outer: Computation, program: Program
) -> int | None:
  """Bytes of a value that its users in a body read, where those only take slices or rows of it.

  Returns:
    None where all of it may be read.
  """
  is_result = name == next(reversed(body))
  if is_result:
    return None
  total = 0
  for user in body.values():
    if name in user.operands:
      touched = _touched_by(user, name, body, outer, program)
      if touched is None:
        return None
      total += touched
  return total


def _touched_by(
  user: Instruction, name: str, body: Computation, outer: Computation, program: Program
) -> int | None:
  """Bytes of a value that one of its users reads; None where it may be all."""
  if user.kind == "bitcast":
    return _touched_bytes(user.name, body, outer, program)
  fused = _group(_FUSED, user.text)
  if fused and user.kind == "fusion":
    return _touched_by_fusion(fused, user, name, body, program)
  is_first = user.operands[0] == name
  if is_first and user.kind in _READ_IN_PART:
    return _bytes_of(user.name, body, outer)
  if is_first and user.kind in _WRITTEN_IN_PART:
    return 0  # Written in place, not read.
  return None


def _touched_by_fusion(
  fused: str, user: Instruction, name: str, outer: Computation, program: Program
) -> int | None:
  """Bytes that a fusion within a fusion reads of its operand: what it does with its parameters."""
  body = program.computations[fused]
  total = 0
  for parameter in body.values():
    if parameter.kind != "parameter" or user.operands[int(parameter.operands[0])] != name:
      continue
    touched = _touched_bytes(parameter.name, body, outer, program)
    if touched is None:
      return None
    total += touched
  return total


def _bytes_of(name: str, body: Computation, outer: Computation) -> int | None:
  """Bytes of a value, wherever it is kept; None where neither computation has it."""
  instruction = body.get(name) or outer.get(name)
  if instruction is None:
    return None
  return sum(map(_padded_bytes, _ARRAY.finditer(instruction.shape)))


def _bytes_in_hbm(shape: str) -> int:
  """Bytes of those arrays of a shape, which may be a tuple's, that are kept in HBM."""
  return sum(_padded_bytes(array) for array in _ARRAY.finditer(shape) if _is_in_hbm(array))


def _is_in_hbm(array: re.Match[str]) -> bool:
  return not _ON_CHIP.search(array["layout"] or "")


def _padded_bytes(array: re.Match[str]) -> int:
  """Bytes of an array in its tiles: the minor axes are filled up to a tile's lengths.

  bf16[2,77,100]{2,1,0:T(8,128)}: 2 × 80 × 128 numbers of 2 bytes.
  """
  bits = int(array["bits"] or 8)
  layout = array["layout"] or ""
  lengths = _numbers(array["lengths"])
  minor_to_major = _numbers(layout.partition(":")[0])
  tile = _TILE.search(layout)
  if tile and len(minor_to_major) == len(lengths):
    tile_lengths = reversed(_numbers(tile[1]))
    for axis, tile_length in zip(minor_to_major, tile_lengths, strict=False):
      lengths[axis] = math.ceil(lengths[axis] / tile_length) * tile_length
  return bits * math.prod(lengths) // 8


def _numbers(text: str) -> list[int]:
  """ "8,128" → [8, 128]."""
  return [int(number) for number in text.split(",") if number]


# ---------------------------------------------------------------------- all of them together

# Such as 1795847282942183291-fusion.12-01-final_bundles.txt.
_DUMP = re.compile(r"\d+-(?P<name>.*)-\d+-final_bundles\.txt")
_ANALYSIS = "-schedule-analysis_final_bundles.txt"
# The code between the instructions: calls, scalars, starts of copies. It runs once.
_TOP_LEVEL = "TLP"
# Their time is the links', or that of what they call.
_NOT_OF_THE_CORE = (
  "all-reduce",
  "all-reduce-start",
  "all-reduce-done",
  "while",
  "call",
  "conditional",
)
_LEAST_SHARE = 0.98  # Share of the estimated cycles that must have a schedule.

# What is only said about an instruction, and where in memory it works: no part of its code.
_METADATA = re.compile(r', metadata=\{(?:[^{}"]|"[^"]*"|\{[^}]*\})*\}')
_MEMORY_PLACES = re.compile(r'"(?:used_scoped_memory_configs|lists)":\[[^\]]*\]')
_NAME = re.compile(r"%([\w.\-]+)")

_Likeness = tuple[object, ...]


def final_schedule(program_text: str, folder: pathlib.Path, chip: Chip) -> FinalSchedule | None:
  """The time of a step from the dumps of its instructions.

  Of equal instructions libtpu schedules one. Where nothing was dumped the estimate counts.

  Args:
    program_text: the optimized program.
    folder: where libtpu has written, given `dump_flags`.
    chip: that it was compiled for.

  Returns:
    None where there are no dumps, or where they miss more than a fiftieth of the estimated cycles.
  """
  dumps = _dumped_files(folder)
  if not dumps:
    return None
  program = Program(program_text)
  machine = _machine(chip)
  of_core = [
    executed for executed in program.executed() if executed.instruction.kind not in _NOT_OF_THE_CORE
  ]

  comparison = _Comparison(program)
  cycles_of = _cycles_by_likeness(of_core, dumps, machine, comparison)

  instructions: list[Scheduled] = []
  all_memory_cycles = 0.0
  unscheduled_cycles = 0
  cycles_per_byte = chip.clock_hz / chip.hbm_bytes_per_second
  for executed in of_core:
    instruction = executed.instruction
    memory_cycles = _hbm_bytes(executed, program) * cycles_per_byte
    if instruction.kind in _COPIES_BESIDE:
      # The core does not wait for it here, but its bytes take their time.
      all_memory_cycles += executed.runs * memory_cycles
      continue
    cycles = cycles_of.get(comparison.likeness(executed))
    # Random bits are scheduled without an estimate.
    takes_time = cycles or instruction.estimated_cycles or instruction.name in dumps
    if not takes_time:
      # Another name for a value, or a scalar of the top level.
      continue
    if cycles is None:
      unscheduled_cycles += executed.runs * instruction.estimated_cycles
    all_memory_cycles += executed.runs * memory_cycles
    instructions.append(_scheduled(executed, cycles, memory_cycles))

  estimated = sum(item.runs * item.estimated_cycles for item in instructions)
  if not instructions or unscheduled_cycles > (1 - _LEAST_SHARE) * estimated:
    return None
  if _TOP_LEVEL in dumps:
    between = _read_file(dumps[_TOP_LEVEL], machine).total
    instructions.append(Scheduled(_TOP_LEVEL, "", 1, between, 0.0, 0.0, 0))
  return FinalSchedule(
    instructions=tuple(instructions),
    cycles=max(sum(item.cycles for item in instructions), all_memory_cycles),
    issue_cycles=sum(item.runs * item.issue_cycles for item in instructions),
    memory_cycles=all_memory_cycles,
  )


def _cycles_by_likeness(
  of_core: Iterable[Executed],
  dumps: Mapping[str, pathlib.Path],
  machine: Machine,
  comparison: "_Comparison",
) -> dict[_Likeness, Cycles]:
  """The cycles of the one that has bundles, for all instructions that are equal to it."""
  cycles_of: dict[_Likeness, Cycles] = {}
  for executed in of_core:
    name = executed.instruction.name
    if name not in dumps:
      continue
    likeness = comparison.likeness(executed)
    if likeness in cycles_of:
      continue
    cycles = _read_file(dumps[name], machine)
    if cycles.total:
      cycles_of[likeness] = cycles
  return cycles_of


def _dumped_files(folder: pathlib.Path) -> dict[str, pathlib.Path]:
  """Name of an instruction → file of its bundles."""
  files = {}
  for path in folder.glob("*.txt"):
    match = _DUMP.fullmatch(path.name)
    if match and not path.name.endswith(_ANALYSIS):
      files[match["name"]] = path
  return files


def _read_file(path: pathlib.Path, machine: Machine) -> Cycles:
  return read_cycles(path.read_text(encoding="utf-8"), machine)


def _scheduled(executed: Executed, cycles: Cycles | None, memory_cycles: float) -> Scheduled:
  """An instruction by its schedule; by the estimate where it has none."""
  instruction = executed.instruction
  if cycles is None:
    cycles = Cycles(issue=instruction.estimated_cycles, matrix_unit=0, loops_counted_once=0)
  return Scheduled(
    name=instruction.name,
    op_name=instruction.op_name,
    runs=executed.runs,
    issue_cycles=cycles.total,
    matrix_cycles=cycles.matrix_unit,
    memory_cycles=memory_cycles,
    estimated_cycles=instruction.estimated_cycles,
  )


def _machine(chip: Chip) -> Machine:
  is_early = chip.name in ("v2", "v3")
  # v6e has two units of 256 × 256: its peak at its clock is two rows a cycle, and its bundles come
  # at that rate.
  rows_a_cycle = 2 if chip.name == "v6e" else 1

  def matmul_cycles(form: str) -> int:
    return _matmul_rows(form, is_early=is_early) // rows_a_cycle

  return Machine(branch_delay=1 if is_early else 4, matmul_cycles=matmul_cycles)


def _matmul_rows(form: str, *, is_early: bool) -> int:
  """Rows that one `vmatmul` feeds to a matrix unit.

  These are 8 sublanes, which hold 16 rows of packed bfloat16.
  """
  is_packed = not (is_early or ".f32" in form or ".lmr" in form)
  return 16 if is_packed else 8


class _Comparison:
  """Tells which instructions are equal to the compiler, so that it schedules one of them alone."""

  def __init__(self, program: Program):
    self._computations = program.computations
    self._plain_bodies: dict[str, str] = {}

  def likeness(self, executed: Executed) -> _Likeness:
    """Equal for equal instructions: shapes, places of operands, and what is computed."""
    instruction = executed.instruction
    operands = tuple(_shape_of(name, executed.computation) for name in instruction.operands)
    _, _, after_kind = instruction.text.partition(f" {instruction.kind}(")
    _, _, attributes = after_kind.partition(")")
    return instruction.kind, instruction.shape, operands, self._plain(attributes, {})

  def _plain(self, text: str, numbered: dict[str, str]) -> str:
    """A line without what is only said about it.

    Names become numbers, and names of computations become their text.
    """

    def replace(match: re.Match[str]) -> str:
      name = match[1]
      if name in self._computations:
        return self._plain_body(name)
      return numbered.setdefault(name, f"%{len(numbered)}")

    code = _MEMORY_PLACES.sub("", _METADATA.sub("", text))
    return _NAME.sub(replace, code)

  def _plain_body(self, name: str) -> str:
    if name not in self._plain_bodies:
      self._plain_bodies[name] = ""
      numbered: dict[str, str] = {}
      instructions = self._computations[name].values()
      lines = [self._plain(instruction.text, numbered) for instruction in instructions]
      self._plain_bodies[name] = "{" + "\n".join(lines) + "}"
    return self._plain_bodies[name]


def _shape_of(operand: str, computation: Computation) -> str:
  """The shape of an operand; what stands there if it is none of the computation's names."""
  return computation[operand].shape if operand in computation else operand
