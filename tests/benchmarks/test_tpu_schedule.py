"""The reading of TPU schedules, on a small program that libtpu compiled (tests/goldens/README.md).

The program looks up 48 rows of a table of 1,000 × 256 and multiplies them five times, in a loop, with 256 × 256 in
bfloat16. Then it multiplies with the table in float32, and adds the rows to the table.
"""

import pytest
from support.goldens import golden_rows

from albert_tf.planning.chips import CHIPS
from benchmarks.tpu.bundles import Machine, read_cycles
from benchmarks.tpu.program import estimated_cycles
from benchmarks.tpu.schedule import final_schedule

ROWS, WIDTH, VOCABULARY, LOOPS = 48, 256, 1000, 5
# Matrix units of a core: 128 rows and columns, a row a cycle.
UNITS = {"v3": 2, "v5e": 4}


@pytest.fixture(params=["v3", "v5e"])
def chip(request):
  return CHIPS[request.param]


def write_dumps(folder, chip, *, without=()):
  """Writes the recorded bundles as libtpu does; returns the program's text."""
  recorded = golden_rows("tpu_schedule")[chip.name]
  for number, (name, text) in enumerate(recorded["bundles"].items()):
    if name not in without:
      (folder / f"{number}-{name}-01-final_bundles.txt").write_text(text)
  return recorded["program"]


@pytest.fixture
def schedule(tmp_path, chip):
  return final_schedule(write_dumps(tmp_path, chip), tmp_path, chip)


def scheduled(schedule, op_name, kind="fusion"):
  (found,) = [
    each for each in schedule.instructions if each.op_name == op_name and kind in each.name
  ]
  return found


def test_the_cycles_are_those_that_were_recorded(schedule, chip):
  expected = {"v3": (13074, 5643, 12002), "v5e": (4233, 1922, 4233)}
  figures = (schedule.cycles, schedule.issue_cycles, schedule.memory_cycles)
  assert tuple(map(round, figures)) == expected[chip.name]


def test_rows_through_the_matrix_unit_are_those_of_the_products(schedule, chip):
  in_loop = scheduled(schedule, "while/ffn_product")
  assert in_loop.runs == LOOPS  # The program does not state it: a counter is compared.
  tiles = (WIDTH // 128) * (WIDTH // 128)
  assert in_loop.matrix_cycles == ROWS * tiles / UNITS[chip.name]
  with_table = scheduled(schedule, "head/MatMul")
  tiles = (WIDTH // 128) * -(-VOCABULARY // 128)
  assert with_table.matrix_cycles == ROWS * tiles / UNITS[chip.name]


def test_bytes_from_hbm_are_those_of_what_is_read(schedule, chip):
  """v3 keeps no array on the chip; v5e keeps all, and only copies beside the computation go to HBM."""
  look_up = scheduled(schedule, "embedding/GatherV2", kind="gather_fusion")
  product = scheduled(schedule, "while/ffn_product")
  in_bytes = chip.hbm_bytes_per_second / chip.clock_hz
  if chip.name == "v5e":
    assert look_up.memory_cycles == product.memory_cycles == 0
    assert schedule.memory_cycles > 2 * 4 * VOCABULARY * WIDTH / in_bytes
    return
  # Rows in bfloat16, which alone are read of the table, and written; and the ids, filled up to 1,024.
  assert look_up.memory_cycles * in_bytes == pytest.approx(2 * 2 * ROWS * WIDTH + 4 * 1024)
  # Rows in and out, and the weights.
  assert product.memory_cycles * in_bytes == pytest.approx(2 * (2 * ROWS + WIDTH) * WIDTH)


def test_too_few_bundles_are_no_schedule(tmp_path, chip):
  assert final_schedule("", tmp_path, chip) is None
  program = write_dumps(tmp_path, chip, without=["convolution_reduce_fusion"])
  assert final_schedule(program, tmp_path, chip) is None


def test_the_compilers_estimate_counts_loops(chip):
  program = golden_rows("tpu_schedule")[chip.name]["program"]
  assert estimated_cycles(program) == {"v3": 23048, "v5e": 28014}[chip.name]


LOOP = """
     0   :  { %s1_s0 = smov 0 }
   0x1 LB: > { %s2_s1 = sphi %s1_s0, %s3_s2 ;;  %9 = vmatmul.bf16.gmra.mxu0 %v1 } /* Start region 4 */
   0x2   : > { %s3_s2 = sadd.s32 1, %s2_s1 ;;  %8 = vdelay 10 }
   0x3   : > { %p4_p0 = scmp.ge.s32.totalorder %s3_s2, 7 }
   0x4   : > { %5 = sbr.rel (!%p4_p0) target = $region4 }
   0x5   :  { }
   0x6   :  { }
"""


@pytest.mark.parametrize(("branch_delay", "late"), [(1, 1), (4, 2)])
def test_bundles_of_a_loop_count_as_often_as_its_counter_says(branch_delay, late):
  cycles = read_cycles(LOOP, Machine(branch_delay=branch_delay, matmul_cycles=lambda form: 8))
  before_and_after = 1 + 2
  # Each of six branches back is followed by bundles that are issued although it is taken.
  assert cycles.issue == before_and_after + 7 * (4 + 10) + 6 * late
  assert cycles.matrix_unit == 7 * 8
  assert cycles.loops_counted_once == 0


def test_a_loop_that_depends_on_data_counts_once_and_is_told():
  unknown = LOOP.replace("7 }", "%s99_s9 }")
  cycles = read_cycles(unknown, Machine(branch_delay=1, matmul_cycles=lambda form: 8))
  assert (cycles.matrix_unit, cycles.loops_counted_once) == (8, 1)
