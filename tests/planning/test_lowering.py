"""The training step as HLO, and through Google's TPU compiler where it is installed."""

import dataclasses
import importlib.util

import pytest
from support.stacks import needs_host_xla
import tensorflow as tf

from albert_tf import compat
from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.planning.estimate import StepShape
from albert_tf.planning.lowering import lower_train_step
from albert_tf.planning.tpu_compiler import compile_hlo

CONFIG = AlbertConfig.from_name("tiny", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
SIZES = {"per_core_batch_size": 2, "max_seq_length": 16, "max_predictions_per_seq": 3}
SHAPE = StepShape(**SIZES)
ACCUMULATED = dataclasses.replace(SHAPE, gradient_accumulation_steps=3)
HAS_COMPILER = bool(importlib.util.find_spec("libtpu") and importlib.util.find_spec("jax"))
needs_compiler = pytest.mark.skipif(not HAS_COMPILER, reason="needs the extra tpu-compile")


@pytest.fixture(scope="module")
def lowered() -> bytes:
  return lower_train_step(CONFIG, ACCUMULATED)


@pytest.mark.slow
@needs_host_xla
def test_the_whole_step_is_lowered_with_a_loop_over_micro_batches(lowered):
  for operation in (b"dot", b"rsqrt", b"exponential", b"convert", b"while"):
    assert operation in lowered


@pytest.mark.slow
@needs_host_xla
def test_a_gpu_is_left_alone_and_changes_nothing(lowered, monkeypatch):
  hidden = "devices were hidden"
  monkeypatch.setattr(tf.config, "set_visible_devices", lambda *_: pytest.fail(hidden))
  monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind=None: [f"a {kind}"])
  assert compat.device_kind() == "gpu"
  again = lower_train_step(CONFIG, ACCUMULATED)  # Its names have other numbers.
  for operation in (b"dot", b"reshape", b"transpose", b"convert", b"broadcast"):
    assert again.count(operation) == lowered.count(operation)


@pytest.mark.skipif(compat.HOST_XLA, reason="this TensorFlow can lower a step")
def test_a_tensorflow_that_cannot_lower_says_so():
  with pytest.raises(UserError, match="--estimate_only"):
    lower_train_step(CONFIG, SHAPE)


@pytest.mark.skipif(HAS_COMPILER, reason="the compiler is installed")
def test_without_the_compiler_the_error_names_the_extra():
  with pytest.raises(UserError, match=r"albert-tf\[tpu-compile\]"):
    compile_hlo(b"")


@needs_compiler
def test_the_compiler_refuses_unknown_topologies_and_broken_programs():
  with pytest.raises(UserError, match=r"v9:2x2.*Received: "):
    compile_hlo(b"", "v9:2x2")
  with pytest.raises(UserError, match=r"v3:2x2.*Received: "):
    compile_hlo(b"nonsense", "v3:2x2")


@needs_compiler
def test_rematerialised_layers_leave_nothing_but_their_inputs():
  """Gradients of the shared weights are one sum. A term for every layer would be much larger than other arrays."""
  wide = dataclasses.replace(CONFIG, hidden_size=512, intermediate_size=4096, num_attention_heads=8)
  shape = StepShape(**{**SIZES, "max_seq_length": 128}, remat=True)
  configs = [dataclasses.replace(wide, num_hidden_layers=layers) for layers in (4, 8)]
  four, eight = (compile_hlo(lower_train_step(config, shape), "v3:2x2") for config in configs)
  terms = 2 * 512 * 4096 * 2  # Of the feed-forward's kernels, 16-bit.
  assert eight.temporary_bytes - four.temporary_bytes < terms


@needs_compiler
def test_random_bits_come_from_the_generator_of_the_tpu():
  """The step is lowered on a CPU, with Philox."""
  dropping = AlbertConfig.from_name("tiny", num_hidden_layers=1, hidden_dropout_prob=0.1)
  program = compile_hlo(lower_train_step(dropping, SHAPE), "v5e:2x2").program
  assert "algorithm=rng_default" in program
  assert "philox" not in program.lower()


@needs_compiler
@pytest.mark.parametrize(
  "changes", [{}, {"train_depths": (1, 2, 4)}, {"train_depths": (1, 2, 4), "remat": True}]
)
def test_the_step_compiles_for_a_tpu(changes):
  """One program for all depths compiles."""
  compiled = compile_hlo(lower_train_step(CONFIG, StepShape(**SIZES, **changes)), "v3:2x2")
  parameters = CONFIG.param_count(heads=("masked_lm", "sentence_order"))
  assert compiled.fits
  assert compiled.temporary_bytes > 0
  assert compiled.required_bytes > 3 * 4 * parameters  # Weights and two moments.
