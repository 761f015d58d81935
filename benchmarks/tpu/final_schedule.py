"""Time of a compiled step from libtpu's final schedule, which it dumps as VLIW bundles; no TPU runs.

The compiler's `estimated_cycles` are taken before that schedule: 21% (v3) and 61% (v5e) above it for a step of the base
model, and not by the same factor for every instruction.
"""

import math
import pathlib
import re
from typing import NamedTuple

from tpu.bundles import Cycles, Machine, read_cycles
from tpu.program_text import Body, Executed, Line, Program

from albert_tf.planning.chips import Chip

_DUMP = re.compile(r"\d+-(?P<name>.*)-\d+-final_bundles\.txt")
_ANALYSIS = "-schedule-analysis_final_bundles.txt"
_TOP_LEVEL = "TLP"  # Code between the instructions: calls, scalars, starts of copies; runs once.
_LEAST_SHARE = 0.98  # Share of the estimated cycles that must have a schedule.

_ARRAY = re.compile(
  r"\b(?:pred|[a-z]+(\d+)\w*)\[([\d,]*)\](?:\{([^}]*)\})?"
)  # Bits, lengths, layout.
_TILE = re.compile(r"T\(([\d,]+)\)")
_ON_CHIP = re.compile(r"S\([1-9]")  # A memory space other than HBM.
_COPIES_BESIDE = ("copy-start", "slice-start", "async-start")
_READ_IN_PART = ("slice", "dynamic-slice", "gather")
_UPDATES = {"dynamic-update-slice": 1, "scatter": 2}  # In place: which operand holds what is new.
# Their time is the links', or that of what they call.
_NOT_OF_THE_CORE = (
  "all-reduce",
  "all-reduce-start",
  "all-reduce-done",
  "while",
  "call",
  "conditional",
)

_METADATA = re.compile(r', metadata=\{(?:[^{}"]|"[^"]*"|\{[^}]*\})*\}')
_PLACES = re.compile(
  r'"(?:used_scoped_memory_configs|lists)":\[[^\]]*\]'
)  # Where in memory: no part of the code.
_NAME = re.compile(r"%([\w.\-]+)")
_CALLS = re.compile(r"calls=%?([\w.\-]+)")


def dump_flags(folder: str) -> str:
  """The value of LIBTPU_INIT_ARGS that makes libtpu write the final schedule of every instruction into a folder."""
  return f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true --xla_jf_dump_llo_pass_label_regex=final_bundles"


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
  memory_cycles: (
    float  # All bytes to and from HBM, copies during the computation too, at full bandwidth.
  )


def final_schedule(program: str, folder: pathlib.Path, chip: Chip) -> FinalSchedule | None:
  """The time of a step from the dumps of its instructions; None where they do not cover it.

  Args:
    program: the optimized program's text.
    folder: where libtpu has written, given `dump_flags`.
    chip: that it was compiled for.
  """
  instructions, memory = scheduled_instructions(program, folder, chip)
  if not instructions:
    return None
  return FinalSchedule(
    instructions=tuple(instructions),
    cycles=max(sum(each.cycles for each in instructions), memory),
    issue_cycles=sum(each.runs * each.issue_cycles for each in instructions),
    memory_cycles=memory,
  )


def scheduled_instructions(
  program: str, folder: pathlib.Path, chip: Chip
) -> tuple[list[Scheduled], float]:
  """The instructions of a step, in the program's order, and the cycles that all its bytes to and from HBM take.

  Of equal instructions libtpu schedules one. Where nothing was dumped the estimate counts; where that is more than a
  fiftieth of the estimated cycles, there is no schedule and the list is empty.
  """
  dumps, module = _dumps(folder), Program(program)
  if not dumps:
    return [], 0.0
  likeness, machine = _Likeness(module), _machine(chip)
  core = [each for each in module.executed()[0] if each.line.kind not in _NOT_OF_THE_CORE]
  issue: dict[tuple[object, ...], Cycles] = {}
  for each in core:
    if each.line.name in dumps and (kind := likeness.of(each)) not in issue:
      cycles = _cycles(dumps[each.line.name], machine)
      issue |= {kind: cycles} if cycles.total else {}
  cycles_per_byte = chip.clock_hz / chip.hbm_bytes_per_second
  instructions: list[Scheduled] = []
  memory, missing = 0.0, 0
  for each in core:
    line, estimated = each.line, each.line.cycles or 0
    own = _hbm_bytes(each, module) * cycles_per_byte
    if line.kind in _COPIES_BESIDE:
      memory += each.runs * own
    elif (scheduled := issue.get(likeness.of(each))) or estimated or line.name in dumps:
      # Else a name for what is there, or a scalar of the top level. Random bits are scheduled without an estimate.
      missing += 0 if scheduled else each.runs * estimated
      memory += each.runs * own
      instructions.append(_scheduled(line, each.runs, scheduled, own))
  if missing > (1 - _LEAST_SHARE) * sum(each.runs * each.estimated_cycles for each in instructions):
    return [], 0.0
  if _TOP_LEVEL in dumps:
    between = _cycles(dumps[_TOP_LEVEL], machine).total
    instructions.append(Scheduled(_TOP_LEVEL, "", 1, between, 0.0, 0.0, 0))
  return instructions, memory


def _dumps(folder: pathlib.Path) -> dict[str, pathlib.Path]:
  """Name of an instruction → file of its final bundles."""
  paths = [path for path in folder.glob("*.txt") if not path.name.endswith(_ANALYSIS)]
  return {found["name"]: path for path in paths if (found := _DUMP.fullmatch(path.name))}


def _cycles(path: pathlib.Path, machine: Machine) -> Cycles:
  return read_cycles(path.read_text(encoding="utf-8"), machine)


def _scheduled(line: Line, runs: int, cycles: Cycles | None, memory: float) -> Scheduled:
  """An instruction by its schedule; by the estimate where it has none."""
  estimated = line.cycles or 0
  issue, rows = (cycles.total, cycles.matrix_unit) if cycles else (estimated, 0)
  return Scheduled(line.name, line.op_name, runs, issue, rows, memory, estimated)


def _machine(chip: Chip) -> Machine:
  early = chip.name in ("v2", "v3")
  # v6e has two units of 256 x 256: its peak at its clock is two rows a cycle, and its bundles come at that rate.
  rows_a_cycle = 2 if chip.name == "v6e" else 1
  return Machine(
    branch_delay=1 if early else 4,
    matmul_cycles=lambda form: _matmul_rows(form, early=early) // rows_a_cycle,
  )


def _matmul_rows(form: str, *, early: bool) -> int:
  """Rows that one `vmatmul` feeds to a matrix unit: 8 sublanes, which hold 16 rows of packed bfloat16."""
  return 8 if early or ".f32" in form or ".lmr" in form else 16


class _Likeness:
  """The identity of an instruction to the compiler: shapes, places of operands, and computation."""

  def __init__(self, module: Program):
    self._bodies = module.bodies
    self._texts: dict[str, str] = {}

  def of(self, each: Executed) -> tuple[object, ...]:
    line, body = each.line, each.body
    operands = tuple(body[name].shape if name in body else name for name in line.operands)
    attributes = line.text.partition(f" {line.kind}(")[2].partition(")")[2]
    return line.kind, line.shape, operands, self._plain(attributes, {})

  def _plain(self, text: str, names: dict[str, str]) -> str:
    """A line without what is only said about it; names become numbers, and computations their text."""

    def replace(match: re.Match[str]) -> str:
      name = match[1]
      return self._body(name) if name in self._bodies else names.setdefault(name, f"%{len(names)}")

    return _NAME.sub(replace, _PLACES.sub("", _METADATA.sub("", text)))

  def _body(self, name: str) -> str:
    if name not in self._texts:
      self._texts[name] = ""
      names: dict[str, str] = {}
      lines = [self._plain(line.text, names) for line in self._bodies[name].values()]
      self._texts[name] = "{" + "\n".join(lines) + "}"
    return self._texts[name]


def _hbm_bytes(each: Executed, module: Program) -> int:
  """Bytes that one run of an instruction moves to and from HBM: results and operands that are not kept on the chip."""
  line, body = each.line, each.body
  if line.kind in _COPIES_BESIDE:  # (one end, the other, …), of which the smaller one is moved.
    ends = list(_ARRAY.finditer(line.shape))[:2]
    return min(map(_padded_bytes, ends), default=0) * sum(map(_in_hbm, ends))
  called = _CALLS.search(line.text)
  inner = module.bodies.get(called[1], {}) if called else {line.name: line}
  parameters = {part.operands[0]: name for name, part in inner.items() if part.kind == "parameter"}
  total = 0
  for place, operand in enumerate(line.operands):
    if operand in body:
      touched = _touched(parameters.get(str(place), operand), inner, body, module)
      whole = sum(
        _padded_bytes(array) for array in _ARRAY.finditer(body[operand].shape) if _in_hbm(array)
      )
      total += whole if touched is None else min(whole, touched)
  root = next(reversed(inner.values()), line)
  while root.kind == "bitcast" and root.operands[0] in inner:
    root = inner[root.operands[0]]
  written = (
    _size(root.operands[_UPDATES[root.kind]], inner, body) if root.kind in _UPDATES else None
  )
  whole = sum(_padded_bytes(array) for array in _ARRAY.finditer(line.shape) if _in_hbm(array))
  return total + (whole if written is None else min(whole, written))


def _touched(name: str, inner: Body, outer: Body, module: Program) -> int | None:
  """Bytes of an operand that are read where only slices or rows of it are; None where all of it may be."""
  if name == next(reversed(inner)):
    return None  # It is the result.
  total = 0
  for user in inner.values():
    if name not in user.operands:
      continue
    called = _CALLS.search(user.text) if user.kind == "fusion" else None
    if user.kind == "bitcast":
      part = _touched(user.name, inner, outer, module)
    elif called:  # A fusion within one: what it does with its parameter.
      part = _touched_within(called[1], user, name, inner, module)
    elif user.kind in _READ_IN_PART and user.operands[0] == name:
      part = _size(user.name, inner, outer)
    elif user.kind in _UPDATES and user.operands[0] == name:
      part = 0  # Written in place.
    else:
      part = None
    if part is None:
      return None
    total += part
  return total


def _touched_within(called: str, user: Line, name: str, outer: Body, module: Program) -> int | None:
  body = module.bodies[called]
  parameters = [part for part in body.values() if part.kind == "parameter"]
  parts = [
    _touched(part.name, body, outer, module)
    for part in parameters
    if user.operands[int(part.operands[0])] == name
  ]
  return None if None in parts else sum(part or 0 for part in parts)


def _size(name: str, *bodies: Body) -> int | None:
  line = next((body[name] for body in bodies if name in body), None)
  return None if line is None else sum(map(_padded_bytes, _ARRAY.finditer(line.shape)))


def _in_hbm(array: re.Match[str]) -> bool:
  return not _ON_CHIP.search(array[3] or "")


def _padded_bytes(array: re.Match[str]) -> int:
  """Bytes of an array in its tiles: the minor axes are filled up to a tile's lengths."""
  bits, lengths, layout = (
    int(array[1] or 8),
    [int(n) for n in array[2].split(",") if n],
    array[3] or "",
  )
  order = [int(axis) for axis in layout.partition(":")[0].split(",") if axis]
  tile = _TILE.search(layout)
  if tile and len(order) == len(lengths):
    for axis, length in zip(order, reversed(tile[1].split(",")), strict=False):
      lengths[axis] = -(-lengths[axis] // int(length)) * int(length)
  return bits * math.prod(lengths) // 8
