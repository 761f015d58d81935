"""Formulations of the training step through Google's TPU compiler: which costs least, at equal results.

Prints one JSON line: estimated cycles and temporary memory of one core's whole step, for the step as training runs it
("kept") and with one formulation replaced. The claim: none of the others costs less. The trials and what was made of
them: benchmarks/tpu_compile.md. Needs jax and libtpu (extra tpu-compile); a compilation of 12 layers takes minutes.

Example:
  python benchmarks/tpu_formulations.py --num_hidden_layers=3 --only=kept,plain_attention
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import json
from typing import Any
from unittest import mock

from absl import app, flags
import tensorflow as tf

from albert_tf.configs import AlbertConfig, named_sizes
from albert_tf.errors import UserError, exit_on_user_error
from albert_tf.modeling import dense, dot_product_attention, encoder, layer_norm, rematerialization
from albert_tf.planning.lowering import lower_train_step
from albert_tf.planning.tpu_compiler import compile_hlo

_SIZE = flags.DEFINE_enum("size", "base", named_sizes(), "The model.")
_LAYERS = flags.DEFINE_integer(
  "num_hidden_layers", 3, "Layers; the differences grow with them.", lower_bound=1
)
_BATCH_SIZE = flags.DEFINE_integer("per_core_batch_size", 8, "Examples of a core.", lower_bound=1)
_MAX_SEQ_LENGTH = flags.DEFINE_integer("max_seq_length", 512, "Pieces of an example.", lower_bound=1)
_PREDICTIONS = flags.DEFINE_integer(
  "max_predictions_per_seq", 77, "Masked pieces of an example.", lower_bound=1
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


_REPEATED = "rematerialize_repeated"
_PLAIN: Replacement = (dot_product_attention, "lean_attention", dot_product_attention.plain_attention)
_JOINED: Replacement = (dense, "keeps_rows_apart", lambda dtype: False)
_TWO_PASS: Replacement = (layer_norm, "moments", _two_pass_moments)
FORMULATIONS: dict[str, tuple[Sequence[Replacement], dict[str, Any]]] = {
  "kept": ((), {}),
  "plain_attention": ((_PLAIN,), {}),
  "joined_rows": ((_JOINED,), {}),
  "two_pass_moments": ((_TWO_PASS,), {}),
  "all_plain": ((_PLAIN, _JOINED, _TWO_PASS), {}),
  "one_hot_embeddings": ((), {"encoder_options": {"use_one_hot_embeddings": True}}),
  "while": ((), {"encoder_options": {"layer_loop": "while"}}),
  "remat": ((), {"remat": True}),
  "remat_one_hot": ((), {"remat": True, "encoder_options": {"use_one_hot_embeddings": True}}),
  "remat_while": ((), {"remat": True, "encoder_options": {"layer_loop": "while"}}),
  "remat_unrolled": (
    ((encoder, _REPEATED, _one_after_the_other(rematerialization.rematerialize)),),
    {"remat": True},
  ),
  "remat_by_recompute_grad": (
    ((encoder, _REPEATED, _one_after_the_other(_recompute_grad)),),
    {"remat": True},
  ),
}


@contextlib.contextmanager
def replaced(replacements: Sequence[Replacement]) -> Iterator[None]:
  with contextlib.ExitStack() as stack:
    for module, name, other in replacements:
      stack.enter_context(mock.patch.object(module, name, other))
    yield


def measure(name: str) -> dict[str, float]:
  replacements, options = FORMULATIONS[name]
  with replaced(replacements):
    lowered = lower_train_step(
      AlbertConfig.from_name(_SIZE.value).replace(num_hidden_layers=_LAYERS.value),
      per_core_batch_size=_BATCH_SIZE.value,
      max_seq_length=_MAX_SEQ_LENGTH.value,
      max_predictions_per_seq=_PREDICTIONS.value,
      **options,
    )
  compiled = compile_hlo(lowered.hlo, _TOPOLOGY.value, python=_COMPILER_PYTHON.value)
  return {
    "fits": compiled.fits,
    "million_cycles": round(compiled.estimated_cycles / 1e6, 3),
    "temporary_gib": round(compiled.temporary_bytes / 2**30, 3),
    "compile_s": round(compiled.compile_seconds, 1),
  }


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise UserError(f"Only flags are understood. Received: {' '.join(argv[1:])}. See --help.")
  unknown = sorted(set(_ONLY.value) - set(FORMULATIONS))
  if unknown:
    raise UserError(f"--only takes {', '.join(FORMULATIONS)}. Received: {', '.join(unknown)}.")
  report: dict[str, Any] = {"benchmark": "tpu_formulations", "size": _SIZE.value, "topology": _TOPOLOGY.value}
  report |= {"num_hidden_layers": _LAYERS.value, "per_core_batch_size": _BATCH_SIZE.value}
  report["formulations"] = {name: measure(name) for name in _ONLY.value or FORMULATIONS}
  print(json.dumps(report))


if __name__ == "__main__":
  app.run(exit_on_user_error(main))
