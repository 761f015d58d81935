"""The program of all cores together: its sums over them, and what is read from the compiler's schedule."""

import importlib.util

import pytest
from support.stacks import needs_host_xla

from albert_tf import compat
from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.modeling import AlbertForPreTraining, named_variables
from albert_tf.planning import plan, report
from albert_tf.planning.chips import parse_topology
from albert_tf.planning.compiled_program import AllReduce, all_reduces, waiting_seconds
from albert_tf.planning.estimate import StepShape
from albert_tf.planning.judge import Judge
from albert_tf.planning.lowering import lower_train_step
from albert_tf.planning.step_compiler import ALL_CORES, ONE_CORE, TWO_DEPTHS, Figures, StepCompiler
from albert_tf.planning.tpu_compiler import compile_hlo

CONFIG = AlbertConfig(vocab_size=96, embedding_size=16, hidden_size=32, num_hidden_layers=2,
                      num_attention_heads=2, intermediate_size=64, max_position_embeddings=32)  # fmt: skip
SIZES = {"per_core_batch_size": 2, "max_seq_length": 16, "max_predictions_per_seq": 3}
HAS_COMPILER = importlib.util.find_spec("libtpu") is not None and importlib.util.find_spec("jax") is not None
V3 = parse_topology("v3:2x2")

# As libtpu 0.0.51 schedules them: two that the core waits for; and one that runs beside 700 cycles of computation.
WAITED = """HloModule step

ENTRY %main.1 (x: f32[2]) -> f32[2] {
  %all-reduce.1 = f32[]{:T(256)} all-reduce(%sum), replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=%add, config={"emitter":"Binomial"}
  %f.1 = f32[2] fusion(%all-reduce.1), calls=%c, config={"estimated_cycles":"100"}
  %all-reduce.2 = (f32[6]{0:T(256)}, f32[30,128]{1,0:T(8,128)S(1)}, /*index=2*/bf16[5]{0}) all-reduce(%a, %f.1, %b), to_apply=%add, config={"strategy":"UniDirection1DRingStrategy","debug":"\\nUniDirection1DRingStrategy{colors:2 phases:1 cores:{8},{8}}"}
  ROOT %g = f32[2] get-tuple-element(%all-reduce.2), index=1
}
"""  # noqa: E501
BESIDE = """HloModule step

ENTRY %main.1 (x: f32[2]) -> f32[2] {
  %f.1 = f32[2] fusion(%x), calls=%c, config={"estimated_cycles":"50"}
  %all-reduce-start.7 = f32[250000]{0} all-reduce-start(%f.1), to_apply=%add, config={"strategy":"StrategyND","debug":"\\nStrategyND{colors:2 phases:2"}
  %f.2 = f32[2] fusion(%x), calls=%c, config={"estimated_cycles":"300"}
  %f.3 = f32[2] fusion(%f.2), calls=%c, config={"estimated_cycles":"400"}
  %all-reduce-done.7 = f32[250000]{0} all-reduce-done(%all-reduce-start.7)
  ROOT %f.4 = f32[2] fusion(%f.3, %all-reduce-done.7), calls=%c, config={"estimated_cycles":"9000"}
}
"""  # noqa: E501


def test_what_is_summed_together_over_which_links():
  assert all_reduces(WAITED) == [AllReduce(1, 4, 0, 0), AllReduce(3, 4 * (6 + 30 * 128) + 2 * 5, 2, 0)]
  assert all_reduces(BESIDE) == [AllReduce(1, 1_000_000, 4, 700)]


def test_a_core_waits_only_for_what_no_computation_hides():
  whole = V3.all_reduce_seconds(1_000_000, 4)
  assert whole == V3.all_reduce_seconds(1_000_000)  # Both directions of both axes.
  assert waiting_seconds(all_reduces(BESIDE), V3) == pytest.approx(whole - 700 / V3.chip.clock_hz)
  hidden = BESIDE.replace('"400"', '"4000000"')
  assert waiting_seconds(all_reduces(hidden), V3) == 0


@pytest.fixture(scope="module")
def lowered():
  if compat.STACK == "addons":
    pytest.skip("TensorFlow 2.15 has no all-reduce of XLA for the CPU")
  return {replicas: lower_train_step(CONFIG, num_replicas=replicas, **SIZES) for replicas in (1, 8)}


@needs_host_xla
def test_the_program_of_many_cores_holds_one_sum_a_tensor(lowered):
  """The masked-LM weights, every gradient, and the metrics; alone a core has nothing to sum."""
  variables = len(named_variables(AlbertForPreTraining(CONFIG)))
  assert lowered[8].hlo.count(b"all-reduce") >= 1 + variables + 1
  assert b"all-reduce" not in lowered[1].hlo
  assert lowered[8].batch_size == lowered[1].batch_size == 2  # Of one core.
  with pytest.raises(UserError, match="num_replicas=0"):
    lower_train_step(CONFIG, num_replicas=0, **SIZES)


@pytest.mark.skipif(
  compat.STACK != "addons", reason="this TensorFlow can lower many replicas, or none at all"
)
def test_a_tensorflow_without_the_all_reduce_says_so():
  with pytest.raises(UserError, match=r"such as 2\.21"):
    lower_train_step(CONFIG, num_replicas=8, **SIZES)


class _Compiler(StepCompiler):
  """Without TensorFlow and libtpu: all cores together compile only where `accepts` says so."""

  accepts = True
  asked: list[int]

  def _compile_for(self, cores, config, shape):
    self.asked.append(cores)
    if cores > 1 and not self.accepts:
      raise UserError("The TPU compiler must answer. Received: nothing.")
    figures = Figures(ALL_CORES, 10**9, 10**9, 1e6, 5.0)
    return (
      figures._replace(all_reduces=2, all_reduce_bytes=48, all_reduce_seconds=0.25) if cores > 1 else figures
    )


@pytest.fixture
def step_compiler(monkeypatch):
  monkeypatch.setattr("albert_tf.planning.step_compiler.compiler_versions", lambda python: "jax 1 libtpu 1")

  def make(topology, **options):
    compiler = _Compiler(AlbertConfig.from_name("base"), topology, **options)
    compiler.asked = []
    return compiler

  return make


SHAPE = StepShape(per_core_batch_size=8, max_predictions_per_seq=77)


def _plan(compiler, topology):
  judge = Judge(AlbertConfig.from_name("base"), topology, compile_step=compiler, compiles=1)
  return plan.plan_run(judge, SHAPE, plan.RunSettings())


def test_an_answer_of_all_cores_takes_the_all_reduce_from_the_program(step_compiler):
  compiler = step_compiler(V3)
  answer = _plan(compiler, V3)
  assert compiler.asked == [8]
  time = answer["time"]
  assert (time["all_reduce_seconds"], time["all_reduce_bytes"], time["all_reduces"]) == (0.25, 48, 2)
  assert time["step_seconds"] == time["compute_seconds"] + 0.25
  remat = answer["alternatives"][0]  # By formula: the gradients are the same, and so is their sum.
  assert remat["step_seconds"] > 0.25
  assert "GiB in 2) [compiler, all cores]" in report.describe(answer)
  assert "One core alone" not in report.describe(answer)


def test_where_all_cores_do_not_compile_one_does_and_the_reason_is_said(step_compiler):
  said = []
  compiler = step_compiler(V3, say=said.append)
  compiler.accepts = False
  answer = _plan(compiler, V3)
  assert compiler.asked == [8, 1]
  assert answer["time"]["source"] == ONE_CORE
  assert answer["time"]["all_reduce_seconds"] == V3.all_reduce_seconds(answer["time"]["all_reduce_bytes"]) > 0
  assert "[compiler, one core]" in report.describe(answer)
  assert "all together do not compile: The TPU compiler must answer" in report.describe(answer)
  assert any("one core alone follows" in line for line in said)


def test_a_slice_of_one_core_is_all_cores_and_its_refusal_is_the_answer(step_compiler):
  alone = step_compiler(parse_topology("v5e:1x1"))
  assert alone(SHAPE).source == ALL_CORES
  assert alone.asked == [1]


def test_two_depths_extend_the_sums_too(step_compiler):
  figures = step_compiler(V3, shallow=True)(SHAPE)
  assert figures.source == ALL_CORES + TWO_DEPTHS
  assert (figures.all_reduces, figures.all_reduce_bytes, figures.all_reduce_seconds) == (2, 48, 0.25)


@pytest.mark.skipif(not HAS_COMPILER, reason="needs jax and libtpu (extra tpu-compile)")
@pytest.mark.parametrize("name", ["v3:2x2", "v5e:2x4"])
def test_the_compiler_sums_all_gradients_together(lowered, name):
  topology = parse_topology(name)
  compiled = compile_hlo(lowered[8].hlo, name, num_replicas=8)
  weight, rest = all_reduces(compiled.program)
  assert weight.num_bytes == 4
  assert 0 < rest.num_bytes - 4 * lowered[8].parameters < 64  # And the metrics.
  assert waiting_seconds([weight, rest], topology) > 0
  assert all_reduces(compile_hlo(lowered[1].hlo, name).program) == []
