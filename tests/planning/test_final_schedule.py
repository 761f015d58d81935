"""The time of a step from libtpu's final bundles: small dumps written by hand, and a compiler that writes none."""

import pathlib
import sys

import pytest

from albert_tf.planning.chips import CHIPS

sys.path.append(str(pathlib.Path(__file__).parents[2] / "benchmarks"))
from tpu.bundles import Cycles, Machine, read_cycles
from tpu.final_schedule import final_schedule, scheduled_instructions
from tpu.program_text import estimated_cycles

V3 = CHIPS["v3"]
EARLY, LATE = Machine(1, lambda form: 8), Machine(4, lambda form: 16 if "bf16" in form else 8)

# Two bundles before a loop of four; its second one holds the core for three cycles more, and in its first two rounds
# of six a region of two bundles is left out. The bundle after a branch is issued in any case.
LOOP = """= control target key start
LH: loop header
= control target key end

     0   :  { %s9_s0 = smov.u32 0 /* a comment */  ;;  %s8_s9 = smov.u32 7  ;;  %1 = vnop }
   0x1   :  { %2 = sst [smem:[#allocation3_spill]] %s8_s9  ;;  %3 = vnop } /* End region 1 */
   0x2 LB: > { %p1_p0 = scmp.lt.s32.totalorder %s2_s1, 2 ;;  %s2_s1 = sphi %s9_s0, %s3_s2 /* a */ } /* Start region 5 */
   0x3   : > { %v4_v1 = vadd.f32 %v1_v0, %v2_v0  ;;  %4 = vdelay 3 }
   0x4   : > { %5 = sbr.rel (%p1_p0) target = $region7  ;;  %s3_s2 = sadd.s32 1, %s2_s1 }
   0x5   : > { %6 = vnop }
   0x6   : > { %v5_v2 = vld [vmem:[#allocation0] sm:$0xff] /* Start region 99 is no region here */ }
   0x7   : > { %p2_p1 = scmp.eq.s32.totalorder %s3_s2, %s7_s4  ;;  %s7_s4 = sadd.s32 (!%p1_p0), 4294967295, %s6_s5 }
   0x8 PF: > { %s6_s5 = sld [smem:[#allocation3_spill]] /* c */
  ;;  %p3_p2 = scmp.ge.s32.totalorder %s3_s2, 6 } /* Start/End empty region 7 */
   0x9   :  { %7 = sbr.rel (!%p3_p2) target = $region5 }
   0xa   :  { %8 = vnop }
   0xb   :  { %9 = vnop }
"""


def test_a_loop_is_issued_as_often_as_its_counter_says():
  whole_round, shorter_round = 9 + 3, 7 + 3
  assert read_cycles(LOOP, EARLY) == Cycles(2 + 4 * whole_round + 2 * shorter_round + 1, 0, 0)


def test_a_loop_that_depends_on_data_counts_once_and_is_reported():
  unknown = LOOP.replace("%s3_s2, 6 }", "%s3_s2, %s77_s7 }").replace(
    "%s9_s0 = smov.u32 0", "%s9_s0 = spop %v1_v0"
  )
  assert read_cycles(unknown, EARLY) == Cycles(2 + 9 + 3 + 1, 0, 1)


def test_a_matrix_unit_may_need_longer_than_the_bundles():
  text = "\n".join(
    f"   0x{n}   :  {{ %{n} = vmatmul.bf16.gmra.mxu{n % 2} %v{n}_v1  ;;  %{n}9 = vmatmul.f32.gmra.mxu0 %v{n}_v1 }}"
    for n in range(4)
  )
  assert read_cycles(text, LATE) == Cycles(issue=4, matrix_unit=4 * 8 + 2 * 16, loops_counted_once=0)
  assert read_cycles(text, LATE).total == 64


# 0.94 GHz and 450 GB/s: 2,088.9 cycles for the 1,000,000 bytes of f32[500,500] in tiles of [504, 512].
ARRAY, ON_CHIP = "f32[500,500]{1,0:T(8,128)}", "f32[500,500]{1,0:T(8,128)S(1)}"
COST = 'backend_config={"estimated_cycles":"700",'
PROGRAM = f"""HloModule step

%inner (p.9: f32[500,500]) -> f32[500,500] {{
  %p.9 = {ARRAY} parameter(0)
  ROOT %tanh.9 = {ARRAY} tanh(%p.9), metadata={{op_name="one"}}
}}

%inner.2 (p.10: f32[500,500]) -> f32[500,500] {{
  %p.10 = {ARRAY} parameter(0)
  ROOT %tanh.10 = {ARRAY} tanh(%p.10), metadata={{op_name="two {{of}} them"}}
}}

%sliced (p.11: f32[500,500]) -> f32[8,128] {{
  %p.11 = {ARRAY} parameter(0)
  %flat = {ARRAY} bitcast(%p.11)
  ROOT %slice.1 = f32[8,128]{{1,0:T(8,128)}} slice(%flat), slice={{[0:8], [0:128]}}
}}

%body (p.1: f32[500,500]) -> f32[500,500] {{
  %p.1 = {ON_CHIP} parameter(0)
  ROOT %again = {ON_CHIP} fusion(%p.1), calls=%inner, backend_config={{"estimated_cycles":"40"}}
}}

%condition (p.2: f32[500,500]) -> pred[] {{
  ROOT %less = pred[] constant(true)
}}

ENTRY %main (x: f32[500,500]) -> f32[500,500] {{
  %x = {ARRAY} parameter(0)
  %first = {ARRAY} fusion(%x), calls=%inner, metadata={{op_name="one"}}, {COST}"lists":[{{"offset":"0"}}]}}
  %second = {ARRAY} fusion(%first), calls=%inner.2, metadata={{op_name="two"}}, {COST}"lists":[]}}
  %start = ({ON_CHIP}, {ARRAY}, u32[]{{:S(2)}}) copy-start(%second)
  %part = f32[8,128]{{1,0:T(8,128)}} fusion(%second), calls=%sliced, backend_config={{"estimated_cycles":"30"}}
  %done = {ON_CHIP} copy-done(%start)
  %sum = {ARRAY} all-reduce(%second), to_apply=%add, backend_config={{"estimated_cycles":"99"}}
  ROOT %loop = {ON_CHIP} while(%done), condition=%condition, body=%body, config={{"known_trip_count":{{"n":"5"}}}}
}}
"""


def _dump(folder, name, bundles):
  folder.mkdir(exist_ok=True)
  text = "".join(f"   0x{n:x}   :  {{ %{n} = vnop }}\n" for n in range(bundles))
  (folder / f"1234-{name}-01-final_bundles.txt").write_text(text)
  (folder / f"1234-{name}-00-schedule-analysis_final_bundles.txt").write_text("Schedule analysis:\n")


def test_a_step_is_the_sum_of_its_instructions_each_bound_by_bundles_or_memory(tmp_path):
  for name, bundles in {"first": 3000, "again": 20, "part": 10, "TLP": 7}.items():
    _dump(tmp_path, name, bundles)
  size = 504 * 512 * 4
  cycles = {count: count * size / 450e9 * 0.94e9 for count in (1, 2, 3)}
  tile = 8 * 128 * 4 / 450e9 * 0.94e9
  instructions, memory = scheduled_instructions(PROGRAM, tmp_path, V3)
  assert {each.name: (each.runs, each.issue_cycles) for each in instructions} == {
    "first": (1, 3000), "second": (1, 3000), "part": (1, 10), "again": (5, 20), "TLP": (1, 7),
  }  # fmt: skip
  assert cycles[2] > 3000  # Each of the first two waits for its array, there and back.
  assert sum(each.cycles for each in instructions) == pytest.approx(2 * cycles[2] + 2 * tile + 5 * 20 + 7)
  assert memory == pytest.approx(2 * cycles[2] + 2 * tile + cycles[1])  # And the copy beside them.
  got = final_schedule(PROGRAM, tmp_path, V3)
  assert got.cycles == pytest.approx(memory)  # Which no overlap makes shorter.
  assert got.issue_cycles == 2 * 3000 + 10 + 5 * 20 + 7


SLICED = PROGRAM[PROGRAM.index("%sliced") : PROGRAM.index("%body")]
IN_PLACE = f"""%sliced (p.11: f32[500,500]) -> f32[500,500] {{
  %p.11 = {ARRAY} parameter(0)
  %new = f32[8,128]{{1,0:T(8,128)}} constant(0)
  %updated = {ARRAY} dynamic-update-slice(%p.11, %new)
  ROOT %flat = {ARRAY} bitcast(%updated)
}}

"""


@pytest.mark.parametrize(
  ("computation", "tiles"),
  [(SLICED, 2), (IN_PLACE, 1)],
  ids=["slice", "in place"],
)
def test_of_an_array_that_is_read_or_written_in_part_the_part_counts(tmp_path, computation, tiles):
  for name in ("first", "again", "part"):
    _dump(tmp_path, name, 1)
  program = PROGRAM.replace(SLICED, computation)
  if computation == IN_PLACE:
    program = program.replace("%part = f32[8,128]{1,0:T(8,128)}", f"%part = {ARRAY}")
  instructions, _ = scheduled_instructions(program, tmp_path, V3)
  part = next(each for each in instructions if each.name == "part")
  assert part.memory_cycles == pytest.approx(tiles * 8 * 128 * 4 / 450e9 * 0.94e9)


def test_what_has_no_schedule_counts_by_estimate_or_ends_the_schedule(tmp_path):
  assert final_schedule(PROGRAM, tmp_path, V3) is None
  for name in ("first", "again"):
    _dump(tmp_path, name, 100)
  assert final_schedule(PROGRAM, tmp_path, V3) is not None  # 30 of 1,630 cycles are missing.
  assert final_schedule(PROGRAM.replace('"30"', '"3000"'), tmp_path, V3) is None


def test_the_estimate_before_the_final_schedule():
  assert estimated_cycles(PROGRAM) == 700 + 700 + 30 + 99 + 5 * 40
