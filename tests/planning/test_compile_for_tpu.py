"""Will it fit: the search and the answer."""

import json
import re

import pytest

from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.planning import plan, report, step_compiler
from albert_tf.planning.chips import GIB, parse_topology
from albert_tf.planning.estimate import CYCLES_ERROR, MEMORY_ERROR, StepShape
from albert_tf.planning.judge import Judge, largest_batch
from albert_tf.planning.step_compiler import ALL_CORES, FORMULA, TWO_DEPTHS, Figures

BASE = AlbertConfig.from_name("base")
V3 = parse_topology("v3:16x16")
SHAPE = StepShape(per_core_batch_size=8, max_predictions_per_seq=77)


class FakeCompiler:
  """A chip that needs 1 GiB and half a GiB an example, a quarter of that with rematerialisation."""

  def __init__(self, topology=V3, gib_an_example=0.5):
    self.asked = []
    self._available = topology.chip.hbm_bytes
    self._each = gib_an_example

  def __call__(self, shape):
    self.asked.append(shape.per_core_batch_size)
    each = self._each * (0.25 if shape.remat else 1)
    required = int((1 + each * shape.per_core_batch_size) * GIB)
    refused = required > self._available
    return Figures(ALL_CORES, required, 0, 0.0 if refused else 1e6 * shape.examples, 10.0, refused)


@pytest.mark.parametrize(
  ("train", "core", "accumulation", "expected"), [(4096, None, 1, 8), (4096, None, 2, 4), (None, 3, 2, 3)]
)
def test_split_batch(train, core, accumulation, expected):
  got = plan.split_batch(
    V3, train_batch_size=train, per_core_batch_size=core, gradient_accumulation_steps=accumulation
  )
  assert got == expected


@pytest.mark.parametrize(
  ("train", "core", "message"),
  [(4000, None, "512 cores.*Use 3584 or 4096"), (100, None, "Use 512"), (None, None, "exactly one"),
   (8, 8, "exactly one")],
)  # fmt: skip
def test_a_batch_that_cannot_be_split(train, core, message):
  with pytest.raises(UserError, match=message):
    plan.split_batch(V3, train_batch_size=train, per_core_batch_size=core)


@pytest.mark.parametrize("gib", [0.01, 0.5, 3.0, 20.0])
def test_the_search_finds_the_largest_batch_with_few_compiles(gib):
  compiler = FakeCompiler(gib_an_example=gib)
  found = largest_batch(Judge(BASE, V3, compile_step=compiler), SHAPE)
  exact = max(n for n in range(2000) if int((1 + gib * n) * GIB) <= V3.chip.hbm_bytes)
  assert 0.97 * exact - 1 <= found.examples <= exact
  assert len(compiler.asked) <= 10
  if found.examples:
    assert found.figures.source == ALL_CORES
    assert not found.figures.refused


def test_the_search_stops_where_no_compile_is_left_and_says_so():
  compiler = FakeCompiler()
  found = largest_batch(Judge(BASE, V3, compile_step=compiler, compiles=1), SHAPE)
  assert found.next_too_large == compiler.asked[0] > found.examples  # The formula's guess was refused.
  assert len(compiler.asked) == 1
  assert found.figures.source == FORMULA
  alone = largest_batch(Judge(BASE, V3), SHAPE)
  assert alone.figures.source == FORMULA
  assert alone.figures.required_bytes <= V3.chip.hbm_bytes
  assert alone.next_too_large is None


def test_the_formula_learns_from_the_compiler():
  judge = Judge(BASE, V3, compile_step=FakeCompiler(), compiles=1)
  before = judge.estimated(SHAPE.replace(per_core_batch_size=9))
  judge.compiled(SHAPE)
  after = judge.estimated(SHAPE.replace(per_core_batch_size=9))
  assert after.required_bytes == pytest.approx(5.5 * GIB, rel=0.03) != pytest.approx(before.required_bytes)
  assert after.cycles == pytest.approx(9e6, rel=0.05)


def test_an_answer_that_fits():
  run = plan.RunSettings(num_train_steps=1000, usd_per_chip_hour=2.0)
  answer = plan.plan_run(Judge(BASE, V3, compile_step=FakeCompiler()), SHAPE, run)
  time, largest = answer["time"], answer["largest_batch"]
  assert answer["fits"]
  assert answer["memory"]["missing_bytes"] == 0
  assert [option["flags"] for option in answer["alternatives"]] == ["--remat"]
  assert time["compute_seconds"] == pytest.approx(8e6 / 940e6)
  assert time["step_seconds"] == time["compute_seconds"] + time["all_reduce_seconds"]
  assert time["examples_per_second"] == pytest.approx(4096 / time["step_seconds"])
  assert time["days"] == pytest.approx(1000 * time["step_seconds"] / 86400)
  assert time["usd"] == pytest.approx(time["days"] * 24 * 256 * 2)
  assert largest["plain"]["per_core_batch_size"] in (27, 28)
  assert largest["remat"]["per_core_batch_size"] in range(112, 116)
  json.dumps(answer)
  text = report.describe(answer)
  assert "It fits: 5.00 GiB of 15.48 GiB" in text
  assert "largest batch a core: 2" in text


def test_an_answer_that_does_not_fit_says_what_is_missing_and_what_would():
  shape = SHAPE.replace(per_core_batch_size=32)
  answer = plan.plan_run(Judge(BASE, V3, compile_step=FakeCompiler()), shape, plan.RunSettings())
  assert not answer["fits"]
  assert answer["time"] is None
  assert answer["memory"]["missing_bytes"] == pytest.approx((17 - 15.48) * GIB, rel=1e-3)
  options = {option["flags"]: option for option in answer["alternatives"]}
  assert options["--remat"]["fits"]
  assert options["--remat"]["source"] == ALL_CORES
  assert options["--gradient_accumulation_steps=2"]["fits"]
  text = report.describe(answer)
  assert "does NOT fit" in text
  assert "1.52 GiB too much" in text
  assert "with --remat: 5.00 GiB, fits" in text


@pytest.mark.parametrize(("gib", "parts"), [(0.25, 2), (0.5, 4), (3.0, 24)])
def test_the_fewest_micro_batches_that_fit_are_found_and_checked(gib, parts):
  """The formula alone would take 2 micro-batches of 48: the compiler's word counts."""
  shape = SHAPE.replace(per_core_batch_size=96)
  compiler = FakeCompiler(gib_an_example=gib)
  found = plan.fewest_parts(Judge(BASE, V3, compile_step=compiler), shape)
  assert (found.gradient_accumulation_steps, found.examples) == (parts, 96)
  assert found.per_core_batch_size == compiler.asked[-1]
  by_formula = Judge(BASE, V3)
  estimate = by_formula.estimated(plan.fewest_parts(by_formula, shape))
  assert estimate.required_bytes * (1 + MEMORY_ERROR) <= V3.chip.hbm_bytes  # Fits even if it errs that much.


def test_where_not_even_one_example_fits_the_fewest_are_all():
  found = plan.fewest_parts(Judge(BASE, V3, compile_step=FakeCompiler(gib_an_example=20.0)), SHAPE)
  assert (found.per_core_batch_size, found.gradient_accumulation_steps) == (1, 8)


def test_what_has_rematerialisation_is_not_offered_it():
  shape = SHAPE.replace(remat=True)
  answer = plan.plan_run(Judge(BASE, V3, compile_step=FakeCompiler()), shape, plan.RunSettings())
  assert answer["alternatives"] == []
  assert list(answer["largest_batch"]) == ["remat"]


def test_a_sweep_says_which_largest_batches_no_compiler_has_checked():
  run, compiler = plan.RunSettings(), FakeCompiler()
  checked = plan.plan_run(Judge(BASE, V3, compile_step=compiler), SHAPE, run)
  unchecked = plan.plan_run(Judge(BASE, V3, compile_step=compiler), SHAPE, run, check_largest=False)
  for answer, mark in ((checked, ""), (unchecked, "~")):
    cells = dict(zip(report.SWEEP_HEADER, report.sweep_row("base", answer), strict=True))
    for cell in (cells["largest batch a core"], cells["with --remat"]):
      assert cell.startswith("~") == (mark == "~")


def test_a_chip_without_a_schedule_that_was_read_has_a_larger_error():
  by_formula = plan.plan_run(Judge(BASE, parse_topology("v2:2x2")), SHAPE, plan.RunSettings())
  assert by_formula["time"]["relative_error"] > CYCLES_ERROR
  assert by_formula["memory"]["relative_error"] == MEMORY_ERROR


def test_days_and_dollars_by_formula_carry_its_error():
  run = plan.RunSettings(usd_per_chip_hour=2.0)
  by_formula = plan.plan_run(Judge(BASE, V3), SHAPE, run)
  assert by_formula["time"]["relative_error"] == CYCLES_ERROR
  text = report.describe(by_formula)
  error = f"± {100 * CYCLES_ERROR:.0f}%"
  assert re.search(f"steps: [\\d.]+ hours {error}, [\\d,]+ US dollars {error} for 256 chips", text)
  assert f" GiB ± {100 * MEMORY_ERROR:.0f}% of 15.48 GiB" in text
  compiled = plan.plan_run(Judge(BASE, V3, compile_step=FakeCompiler()), SHAPE, run)
  assert compiled["time"]["relative_error"] is None
  assert "±" not in report.describe(compiled)


@pytest.mark.parametrize(("batch", "warned"), [(8, False), (80, True)])
def test_what_fits_only_if_the_formula_does_not_err_is_said(batch, warned):
  answer = plan.plan_run(Judge(BASE, V3), SHAPE.replace(per_core_batch_size=batch), plan.RunSettings())
  assert answer["fits"]
  assert ("let the compiler check it" in report.describe(answer)) == warned


def test_loops_that_count_once_are_reported():
  figures = Figures(ALL_CORES, GIB, GIB, 1e6, loops_counted_once=2)
  answer = plan.plan_run(Judge(BASE, V3, compile_step=lambda shape: figures), SHAPE, plan.RunSettings())
  assert "The time is too short: 2 loops" in report.describe(answer)


def test_depths_extend_to_all_layers():
  shallow, deep = Figures(ALL_CORES, 100, 40, 10.0, 1.0), Figures(ALL_CORES, 160, 70, 25.0, 2.0)
  got = step_compiler.by_depth(shallow, deep, depths=(3, 6), layers=12)
  assert got == Figures(ALL_CORES + TWO_DEPTHS, 280, 130, 55.0, 3.0)
  large = BASE.replace(num_hidden_layers=24)
  assert step_compiler.depths_to_compile(BASE, remat=False) == (3, 6)
  assert step_compiler.depths_to_compile(large, remat=True) == (6, 9)
  assert step_compiler.depths_to_compile(BASE, remat=True) is None  # 15 layers to compile instead of 12.
  assert step_compiler.depths_to_compile(large.replace(num_hidden_groups=2), remat=False) is None


def test_compiled_figures_are_kept_until_the_program_changes(tmp_path, monkeypatch):
  monkeypatch.setattr(step_compiler, "compiler_versions", lambda python: "jax 1 libtpu 1")
  calls = []

  def compile_once(self, config, shape):
    calls.append((config.num_hidden_layers, shape.per_core_batch_size))
    return Figures(ALL_CORES, 1, 1, 1.0)

  monkeypatch.setattr(step_compiler.StepCompiler, "_compile", compile_once)

  def ask(batch, **options):
    compiler = step_compiler.StepCompiler(BASE, V3, cache_dir=str(tmp_path), **options)
    return compiler(SHAPE.replace(per_core_batch_size=batch))

  assert ask(8) == ask(8)
  assert calls == [(12, 8)]
  assert ask(9).source == ALL_CORES
  assert len(calls) == 2
  assert ask(8, shallow=True).source == ALL_CORES + TWO_DEPTHS
  assert calls[2:] == [(3, 8), (6, 8)]
  monkeypatch.setattr(step_compiler, "_source_digest", lambda: "changed")
  ask(8)
  assert calls[4:] == [(12, 8)]
