"""Will it fit: the search, the answer, the command, and what it says of bad input."""

import importlib.util
import json
import pathlib
import re
import subprocess
import sys

import pytest

from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.planning import plan, plan_compile, report
from albert_tf.planning.chips import GIB, parse_topology
from albert_tf.planning.estimate import StepShape
from albert_tf.planning.plan_search import (
  ALL_CORES,
  FORMULA,
  TWO_DEPTHS,
  Figures,
  Judge,
  largest_batch,
)

BASE = AlbertConfig.from_name("base")
V3 = parse_topology("v3:16x16")
SHAPE = StepShape(per_core_batch_size=8)


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
  assert len(compiler.asked) == 1
  assert found.figures.source == FORMULA or found.figures.required_bytes <= V3.chip.hbm_bytes
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
  assert estimate.required_bytes * 1.06 <= V3.chip.hbm_bytes  # Whatever the formula's error.


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


def test_loops_that_count_once_are_reported():
  figures = Figures(ALL_CORES, GIB, GIB, 1e6, loops_counted_once=2)
  answer = plan.plan_run(Judge(BASE, V3, compile_step=lambda shape: figures), SHAPE, plan.RunSettings())
  assert "The time is too short: 2 loops" in report.describe(answer)


def test_depths_extend_to_all_layers():
  shallow, deep = Figures(ALL_CORES, 100, 40, 10.0, 1.0), Figures(ALL_CORES, 160, 70, 25.0, 2.0)
  got = plan_compile.by_depth(shallow, deep, depths=(3, 6), layers=12)
  assert got == Figures(ALL_CORES + TWO_DEPTHS, 280, 130, 55.0, 3.0)
  assert plan_compile.can_be_shallow(BASE)
  assert not plan_compile.can_be_shallow(BASE.replace(num_hidden_layers=6))
  assert not plan_compile.can_be_shallow(BASE.replace(num_hidden_groups=2))


def test_compiled_figures_are_kept_until_the_program_changes(tmp_path, monkeypatch):
  monkeypatch.setattr(plan_compile, "compiler_versions", lambda python: "jax 1 libtpu 1")
  calls = []

  def compile_once(self, config, shape):
    calls.append((config.num_hidden_layers, shape.per_core_batch_size))
    return Figures(ALL_CORES, 1, 1, 1.0)

  monkeypatch.setattr(plan_compile.StepCompiler, "_compile", compile_once)

  def ask(batch, **options):
    compiler = plan_compile.StepCompiler(BASE, V3, cache_dir=str(tmp_path), **options)
    return compiler(SHAPE.replace(per_core_batch_size=batch))

  assert ask(8) == ask(8)
  assert calls == [(12, 8)]
  assert ask(9).source == ALL_CORES
  assert len(calls) == 2
  assert ask(8, shallow=True).source == ALL_CORES + TWO_DEPTHS
  assert calls[2:] == [(3, 8), (6, 8)]
  monkeypatch.setattr(plan_compile, "_source_digest", lambda: "changed")
  ask(8)
  assert calls[4:] == [(12, 8)]


def run_command(repository_dir, *arguments):
  command = [sys.executable, str(repository_dir / "tpu_scripts" / "compile_for_tpu.py"), *arguments]
  return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_command_by_formula(repository_dir, tmp_path):
  recipe = repository_dir / "recipes" / "albert_xxlarge_v1.flags"
  path = tmp_path / "plan.json"
  done = run_command(
    repository_dir, f"--flagfile={recipe}", "--remat", "--topology=v3:16x16", "--estimate_only",
    f"--output_json={path}",
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  answer = json.loads(path.read_text())
  assert answer["step"]["per_core_batch_size"] == 8
  assert answer["time"]["num_train_steps"] == 1_500_000
  assert answer["step"]["remat"]
  assert answer["memory"]["source"] == FORMULA
  assert "It fits" in done.stdout
  assert "days" in done.stdout


def test_the_command_sweeps(repository_dir, tmp_path):
  path = tmp_path / "sweep.json"
  done = run_command(
    repository_dir, "--sweep", "--estimate_only", "--per_core_batch_size=8", f"--output_json={path}"
  )
  assert done.returncode == 0, done.stderr
  assert len(json.loads(path.read_text())) == 20
  assert "[20/20] xxlarge on v6e:16x16" in done.stdout
  assert "| base | v3:16x16 | 8 | yes |" in done.stdout
  done = run_command(
    repository_dir, "--sweep", "--estimate_only", "--train_batch_size=4096", "--size=base",
    "--gradient_accumulation_steps=0", "--topology=v3:2x2,v3:16x16",
  )  # fmt: skip
  assert "| base | v3:2x2 | 64 x 8 | yes |" in done.stdout
  assert "| base | v3:16x16 | 8 | yes |" in done.stdout


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["--size=base", "--topology=v3:3x3", "--per_core_batch_size=8"], "v3:16x16"),
    (["--size=base", "--topology=v9:2x2", "--per_core_batch_size=8"], "v6e:2x2"),
    (["--size=base", "--per_core_batch_size=8"], "v5p:2x2x1"),
    (["--size=huge", "--topology=v3:2x2", "--per_core_batch_size=8"], "xxlarge"),
    (["--topology=v3:2x2", "--per_core_batch_size=8"], "exactly one of --size"),
    (["--size=base", "--topology=v3:2x2", "--train_batch_size=9"], "Use 8 or 16"),
    (["--size=base", "--topology=v3:2x2", "--per_core_batch_size=0"], "at least 1"),
    (["--size=base", "--topology=v3:2x2", "--per_core_batch_size=8", "--max_seq_length=1024"], "max_position"),
    (["--size=base", "--topology=v3:2x2", "--per_core_batch_size=8", "--bach=3"], "Received: --bach=3"),
    (["--size=base", "--topology=v3:2x2", "--per_core_batch_size=8", "--compiler_python=/no/such"], "interpreter"),
    (["--size=base", "--topology=v3:2x2", "--per_core_batch_size=8", "--output_json=."], "must be a file"),
  ],
)  # fmt: skip
def test_bad_input_of_the_command(repository_dir, arguments, message):
  done = run_command(repository_dir, "--cache_dir=", *arguments)
  assert done.returncode == 2
  assert done.stderr.startswith("error: ")
  assert "Traceback" not in done.stderr
  assert message in done.stderr


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is not None, reason="libtpu is installed here")
def test_without_the_compiler_the_extra_is_named(repository_dir):
  done = run_command(repository_dir, "--size=base", "--topology=v3:2x2", "--per_core_batch_size=8")
  assert done.returncode == 2
  assert "albert-tf[tpu-compile]" in done.stderr
  assert "--estimate_only" in done.stderr


def test_recipes_have_only_flags_the_command_understands(repository_dir):
  source = (repository_dir / "tpu_scripts" / "compile_for_tpu.py").read_text()
  known = set(re.findall(r'DEFINE_\w+\(\s*"(\w+)"', source))
  known |= set(re.search(r'NOT_USED = frozenset\(\s*("[^.]*")\.split', source)[1].replace('"', " ").split())
  texts = [path.read_text() for path in pathlib.Path(repository_dir, "recipes").glob("*.flags")]
  recipes = [text for text in texts if "run_pretrain.py" in text]
  assert len(recipes) >= 10
  for recipe in recipes:
    assert set(re.findall(r"^--(\w+)", recipe, re.MULTILINE)) <= known, recipe


@pytest.mark.slow
@pytest.mark.skipif(
  importlib.util.find_spec("libtpu") is None or importlib.util.find_spec("jax") is None,
  reason="needs jax and libtpu: the extra tpu-compile",
)
def test_a_real_compile(repository_dir, tmp_path):
  config = AlbertConfig(vocab_size=96, embedding_size=16, hidden_size=32, num_hidden_layers=2,
                        num_attention_heads=2, intermediate_size=64, max_position_embeddings=32)  # fmt: skip
  (tmp_path / "config.json").write_text(config.to_json_string())
  path = tmp_path / "plan.json"
  done = run_command(
    repository_dir, f"--albert_config_file={tmp_path / 'config.json'}", "--topology=v3:2x2",
    "--per_core_batch_size=2", "--max_seq_length=16", "--max_predictions_per_seq=4", "--max_compiles=1",
    f"--cache_dir={tmp_path / 'cache'}", f"--output_json={path}",
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  answer = json.loads(path.read_text())
  assert answer["fits"]
  assert answer["memory"]["source"] == answer["time"]["source"] == ALL_CORES
  assert answer["time"]["cycles"] > 0
  assert answer["compile_seconds"] > 0
  assert len(list((tmp_path / "cache").glob("*.json"))) == 1
