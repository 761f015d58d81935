"""Cycles of a compiled TPU step, read from the final schedule that libtpu dumps; no TPU runs.

A TPU's core does what its compiler scheduled, cycle by cycle. So the time of a step can be read:

1. **The program** (`program.py`): its instructions, and how often a step runs each of them.
2. **The bundles of an instruction** (`bundles.py`): how many cycles its code takes.
3. **The bytes of an instruction** (`hbm.py`): what it moves to and from HBM. An instruction takes
   the longer of its bundles and of these bytes.

`final_schedule` puts them together. The compiler also states an estimate, `estimated_cycles`, which
it makes before that schedule. For a step of the base model it is 21 % above the schedule on v3 and
61 % on v5e, and not by the same factor for every instruction.

How this was checked, and what it found, is in tpu_compile.md beside this folder.
"""

from collections.abc import Iterable, Mapping
import pathlib
import re
from typing import NamedTuple

from albert_tf.planning.chips import Chip

from .bundles import Cycles, Machine, read_cycles
from .hbm import COPIES_BESIDE, hbm_bytes
from .program import Computation, Executed, Program


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
    memory_cycles = hbm_bytes(executed, program) * cycles_per_byte
    if instruction.kind in COPIES_BESIDE:
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
