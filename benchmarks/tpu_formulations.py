"""Formulations of the training step through Google's TPU compiler: which costs least, at equal results.

Prints one JSON line: cycles of the final schedule and temporary memory of one core's whole step, for the step as
training runs it ("kept") and with one formulation replaced. The claim: none of the others costs less. The trials and
what was made of them: benchmarks/tpu_compile.md. Needs jax and libtpu (extra tpu-compile); a compilation of 12 layers
takes minutes.

Example:
  python benchmarks/tpu_formulations.py --num_hidden_layers=3 --only=kept,plain_attention
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
from typing import Any
from unittest import mock

from absl import flags
import common
import tensorflow as tf

from albert_tf.configs import AlbertConfig, named_sizes
from albert_tf.errors import UserError
from albert_tf.modeling import attention, encoder, layer_norm, rematerialization
from albert_tf.modeling.dot_product_attention import lean_attention, plain_attention
from albert_tf.planning.lowering import lower_train_step
from albert_tf.planning.tpu_compiler import compile_hlo

_SIZE = flags.DEFINE_enum("size", "base", named_sizes(), "The model.")
_LAYERS = flags.DEFINE_integer(
  "num_hidden_layers", 3, "Layers; the differences grow with them.", lower_bound=1
)
_BATCH_SIZE = flags.DEFINE_integer("per_core_batch_size", 8, "Examples of a core.", lower_bound=1)
_MAX_SEQ_LENGTH = flags.DEFINE_integer("max_seq_length", 512, "Tokens of an example.", lower_bound=1)
_PREDICTIONS = flags.DEFINE_integer(
  "max_predictions_per_seq", 77, "Masked tokens of an example.", lower_bound=1
)
_TOPOLOGY = flags.DEFINE_string("topology", "v3:2x2", "Chip and shape, as compile_for_tpu.py takes it.")
_ONLY = flags.DEFINE_list("only", [], "Formulations to compile; empty: all.")
_COMPILER_PYTHON = flags.DEFINE_string(
  "compiler_python", "", "Interpreter with jax and libtpu; default: this one."
)

Replacement = tuple[Any, str, Any]  # Module, name, what stands there instead.


def _two_pass_moments(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  return tf.nn.moments(tf.cast(x, tf.float32), axes=[-1], keepdims=True)


def _recompute_grad(function: rematerialization.Function, x: tf.Tensor) -> tf.Tensor:
  return tf.recompute_grad(function)(x)


def _one_after_the_other(rematerialize: Callable[[rematerialization.Function, tf.Tensor], tf.Tensor]) -> Any:
  """In place of `rematerialize_repeated`: every layer by itself, its gradients added up at the end."""

  def repeated(step: rematerialization.Step, x: tf.Tensor, count: int, *, loop: bool = False) -> tf.Tensor:
    del loop
    for i in range(count):
      x = rematerialize(lambda x, i=i: step(x, i), x)  # type: ignore[misc]
    return x

  return repeated


def _unrolled(rematerialize: Callable[[rematerialization.Function, tf.Tensor], tf.Tensor]) -> Replacement:
  return encoder, "rematerialize_repeated", _one_after_the_other(rematerialize)


_PLAIN: Replacement = (attention, "lean_attention", plain_attention)
_LEAN: Replacement = (attention, "plain_attention", lean_attention)
_TWO_PASS: Replacement = (layer_norm, "moments", _two_pass_moments)
_FOR_CPUS = {"accelerated": False}
# Name → what is replaced, options of the encoder, and whether with rematerialisation.
FORMULATIONS: dict[str, tuple[Sequence[Replacement], dict[str, Any], bool]] = {
  "kept": ((), {}, False),
  "plain_attention": ((_PLAIN,), {}, False),
  "joined_rows": ((_LEAN,), _FOR_CPUS, False),
  "two_pass_moments": ((_TWO_PASS,), {}, False),
  "all_plain": ((_TWO_PASS,), _FOR_CPUS, False),
  "one_hot_embeddings": ((), {"use_one_hot_embeddings": True}, False),
  "while": ((), {"layer_loop": "while"}, False),
  "remat": ((), {}, True),
  "remat_one_hot": ((), {"use_one_hot_embeddings": True}, True),
  "remat_while": ((), {"layer_loop": "while"}, True),
  "remat_unrolled": ((_unrolled(rematerialization.rematerialize),), {}, True),
  "remat_by_recompute_grad": ((_unrolled(_recompute_grad),), {}, True),
}


@contextlib.contextmanager
def replaced(replacements: Sequence[Replacement]) -> Iterator[None]:
  with contextlib.ExitStack() as stack:
    for module, name, other in replacements:
      stack.enter_context(mock.patch.object(module, name, other))
    yield


def measure(name: str) -> dict[str, float | None]:
  replacements, options, remat = FORMULATIONS[name]
  with replaced(replacements):
    lowered = lower_train_step(
      AlbertConfig.from_name(_SIZE.value).replace(num_hidden_layers=_LAYERS.value),
      per_core_batch_size=_BATCH_SIZE.value,
      max_seq_length=_MAX_SEQ_LENGTH.value,
      max_predictions_per_seq=_PREDICTIONS.value,
      remat=remat,
      encoder_options=options,
    )
  compiled = compile_hlo(lowered.hlo, _TOPOLOGY.value, python=_COMPILER_PYTHON.value)
  schedule = compiled.schedule
  return {
    "fits": compiled.fits,
    "million_cycles": schedule and round(schedule.cycles / 1e6, 3),
    "million_cycles_of_hbm": schedule and round(schedule.memory_cycles / 1e6, 3),
    "million_cycles_estimated_before": round(compiled.estimated_cycles / 1e6, 3),
    "temporary_gib": round(compiled.temporary_bytes / 2**30, 3),
    "compile_s": round(compiled.compile_seconds, 1),
  }


def benchmark() -> dict[str, Any]:
  unknown = sorted(set(_ONLY.value) - set(FORMULATIONS))
  if unknown:
    raise UserError(f"--only takes {', '.join(FORMULATIONS)}. Received: {', '.join(unknown)}.")
  return {
    "size": _SIZE.value,
    "topology": _TOPOLOGY.value,
    "num_hidden_layers": _LAYERS.value,
    "per_core_batch_size": _BATCH_SIZE.value,
    "formulations": {name: measure(name) for name in _ONLY.value or FORMULATIONS},
  }


if __name__ == "__main__":
  common.run(benchmark)
