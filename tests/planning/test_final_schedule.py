"""The time of an instruction from libtpu's final bundles: small dumps written by hand."""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parents[2] / "benchmarks"))
from tpu.bundles import Cycles, Machine, read_cycles

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
