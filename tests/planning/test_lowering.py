"""The training step as HLO, and through Google's TPU compiler where it is installed."""

import importlib.util
import sys

import pytest
from support.stacks import needs_host_xla

from albert_tf import compat
from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.planning import tpu_compiler
from albert_tf.planning.compiled_program import costly_instructions, program_cost
from albert_tf.planning.lowering import LoweredStep, lower_train_step
from albert_tf.planning.tpu_compiler import compile_hlo

CONFIG = AlbertConfig.from_name("tiny", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
SIZES = {"per_core_batch_size": 2, "max_seq_length": 16, "max_predictions_per_seq": 3}
HAS_COMPILER = importlib.util.find_spec("libtpu") is not None and importlib.util.find_spec("jax") is not None
needs_compiler = pytest.mark.skipif(not HAS_COMPILER, reason="needs jax and libtpu (extra tpu-compile)")

PROGRAM = """HloModule step

%body.1 (p: f32[2]) -> f32[2] {
  ROOT %add.2 = f32[2] fusion(%p), calls=%fused.1, metadata={op_name="inner/Add"}, config={"estimated_cycles":"7"}
}

%condition.1 (p: f32[2]) -> pred[] {
  ROOT %less.1 = pred[] compare(%p, %p), direction=LT
}

ENTRY %main.1 (x: f32[2]) -> f32[2] {
  %x = f32[2] parameter(0)
  %big = f32[2] fusion(%x), calls=%fused.2, config={"estimated_cycles":"100"}
  ROOT %loop = f32[2] while(%big), condition=%condition.1, body=%body.1, config={"known_trip_count":{"n":"5"}}
}
"""

# A loop that counts from 1 to 7, and its gradient's, which runs to where the first one stopped.
TWO_LOOPS = """HloModule step

%forward (p: (f32[2], s32[])) -> (f32[2], s32[]) {
  ROOT %t.1 = (f32[2]{0:T(256)}, s32[]{:T(256)}) fusion(%p), calls=%fused.1, config={"estimated_cycles":"10"}
}

%while_forward (p.1: (f32[2], s32[])) -> pred[] {
  %last = s32[]{:T(256)} constant(7)
  %p.1 = (f32[2]{0:T(256)}, s32[]{:T(256)}) parameter(0)
  %counter = s32[]{:T(256)} get-tuple-element(%p.1), index=1
  ROOT %less.1 = pred[]{:T(1024)} compare(%counter, %last), direction=LT
}

%backward (p.2: (s32[], f32[2], /*index=2*/s32[])) -> (s32[], f32[2], s32[]) {
  ROOT %t.2 = (s32[], f32[2], /*index=2*/s32[]) fusion(%p.2), calls=%fused.2, config={"estimated_cycles":"1000"}
}

%while_backward (p.3: (s32[], f32[2], /*index=2*/s32[])) -> pred[] {
  %p.3 = (s32[], f32[2], /*index=2*/s32[]) parameter(0)
  %done = s32[] get-tuple-element(%p.3), index=0
  %limit = s32[] get-tuple-element(%p.3), index=2
  ROOT %less.2 = pred[]{:T(1024)} compare(%done, %limit), direction=LT
}

ENTRY %main.1 (x: f32[2]) -> f32[2] {
  %x = f32[2] parameter(0)
  %one = s32[]{:T(256)} constant(1)
  %start = s32[]{:T(256)} copy(%one)
  %state = (f32[2]{0:T(256)}, s32[]{:T(256)}) tuple(%x, %start)
  %loop.1 = (f32[2]{0:T(256)}, s32[]{:T(256)}) while(%state), condition=%while_forward, body=%forward
  %counted = s32[]{:T(256)} get-tuple-element(%loop.1), index=1
  %zero = s32[]{:T(256)} constant(0)
  %state.2 = (s32[], f32[2], /*index=2*/s32[]) tuple(%zero, %x, /*index=2*/%counted)
  %loop.2 = (s32[], f32[2], /*index=2*/s32[]) while(%state.2), condition=%while_backward, body=%backward
  ROOT %result = f32[2] get-tuple-element(%loop.2), index=1
}
"""


@pytest.fixture(scope="module")
def lowered() -> LoweredStep:
  return lower_train_step(CONFIG, **SIZES)


@needs_host_xla
def test_the_whole_step_is_lowered(lowered):
  assert lowered.parameters == CONFIG.param_count(heads=("masked_lm", "sentence_order"))
  assert lowered.batch_size == 2
  for operation in (b"dot", b"rsqrt", b"exponential", b"convert"):
    assert operation in lowered.hlo


@needs_host_xla
def test_accumulation_is_a_loop_over_micro_batches():
  several = lower_train_step(CONFIG, gradient_accumulation_steps=3, mixed_precision="float32", **SIZES)
  assert several.batch_size == 6
  assert b"while" in several.hlo


@pytest.mark.parametrize("wrong", ["per_core_batch_size", "max_seq_length", "gradient_accumulation_steps"])
def test_sizes_below_one_are_refused(wrong):
  with pytest.raises(UserError, match=f"{wrong}=0"):
    lower_train_step(CONFIG, **{**SIZES, wrong: 0})


def test_a_loop_costs_its_body_as_often_as_it_runs():
  assert program_cost(PROGRAM) == (100 + 5 * 7, 0)
  instructions, _ = costly_instructions(PROGRAM)
  assert [(each.op_name, each.runs) for each in instructions] == [("", 1), ("inner/Add", 5)]
  assert program_cost(PROGRAM.replace('"known_trip_count":{"n":"5"}', "")) == (107, 1)


def test_the_runs_of_a_loop_follow_from_its_counter():
  assert program_cost(TWO_LOOPS) == (6 * 10 + 7 * 1000, 0)


@pytest.mark.parametrize(
  "change",
  [
    ("direction=LT\n}\n\n%backward", "direction=NE\n}\n\n%backward"),
    ("constant(7)", "parameter(1)"),
    ("get-tuple-element(%loop.1), index=1", "get-tuple-element(%loop.1), index=0"),
    ("constant(0)", "parameter(1)"),
  ],
)
def test_a_loop_whose_counter_is_not_understood_is_counted_once_and_reported(change):
  cost = program_cost(TWO_LOOPS.replace(*change))
  assert cost.loops_of_unknown_length >= 1
  assert cost.estimated_cycles < 6 * 10 + 7 * 1000


@pytest.mark.skipif(compat.HOST_XLA, reason="this TensorFlow can lower a step")
def test_a_tensorflow_that_cannot_lower_says_so():
  with pytest.raises(UserError, match="--estimate_only"):
    lower_train_step(CONFIG, **SIZES)


@pytest.mark.skipif(HAS_COMPILER, reason="the compiler is installed")
def test_without_the_compiler_the_error_names_the_extra():
  with pytest.raises(UserError, match=r"albert-tf\[tpu-compile\]"):
    compile_hlo(b"")


def test_the_compiler_is_loaded_whatever_this_process_loads(monkeypatch):
  monkeypatch.setenv("TPU_LOAD_LIBRARY", "0")
  code = "import os; print(os.environ.get('TPU_LOAD_LIBRARY'), os.environ['TPU_SKIP_MDS_QUERY'])"
  assert tpu_compiler._run([sys.executable, "-c", code], 60.0).split() == ["None", "1"]


def test_an_interpreter_that_is_none():
  with pytest.raises(UserError, match="must be a Python"):
    compile_hlo(b"", python="/no/such/python")


@needs_compiler
def test_the_compiler_refuses_unknown_topologies_and_broken_programs():
  with pytest.raises(UserError, match="v9:2x2"):
    compile_hlo(b"", "v9:2x2")
  with pytest.raises(UserError, match="must compile for v3:2x2"):
    compile_hlo(b"nonsense", "v3:2x2")


@needs_compiler
def test_the_runs_of_real_loops_are_known():
  """The layers' loop, its gradient's, and the one over micro-batches."""
  layers = lower_train_step(CONFIG, encoder_options={"layer_loop": "while"}, **SIZES)
  parts = lower_train_step(CONFIG, gradient_accumulation_steps=3, **SIZES)
  for step, runs in ((layers, CONFIG.num_hidden_layers - 1), (parts, 3)):
    instructions, unknown = costly_instructions(compile_hlo(step.hlo, "v3:2x2").program)
    assert unknown == 0
    assert {each.runs for each in instructions} == {1, runs}


@needs_compiler
def test_rematerialised_layers_leave_nothing_but_their_inputs():
  """Gradients of the shared weights are one sum, not a term for every layer: these are much larger than the rest."""
  wide = CONFIG.replace(hidden_size=512, intermediate_size=4096, num_attention_heads=8)
  sizes = {**SIZES, "max_seq_length": 128, "remat": True}
  temporary = [
    compile_hlo(lower_train_step(wide.replace(num_hidden_layers=n), **sizes).hlo, "v3:2x2").temporary_bytes
    for n in (4, 8)
  ]
  terms = 2 * 512 * 4096 * 2  # Of the feed-forward's kernels, 16-bit.
  assert temporary[1] - temporary[0] < terms


@needs_compiler
def test_the_step_compiles_for_a_tpu(lowered):
  compiled = compile_hlo(lowered.hlo, "v3:2x2")
  assert compiled.fits
  assert compiled.schedule.memory_cycles < compiled.schedule.cycles < compiled.estimated_cycles
  assert compiled.schedule.issue_cycles > 1000
  assert compiled.temporary_bytes > 0
  assert compiled.argument_bytes > 3 * 4 * lowered.parameters  # Weights and two moments.
  assert compiled.alias_bytes > 3 * 4 * lowered.parameters  # Updated in place.
  assert (compiled.device_kind, compiled.num_devices) == ("TPU v3", 8)
