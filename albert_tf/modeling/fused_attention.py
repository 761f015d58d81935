"""Attention by cuDNN's fused kernel on NVIDIA GPUs, which writes no array of scores `[B, N, S, S]`.

`Encoder` asks `can_fuse` whether it may, and `AttentionSublayer` calls `fused_attention`.
"""

import functools
import json
import math
from typing import Any

from absl import logging
import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla

from albert_tf import compat
from albert_tf.configs import AlbertConfig

# The oldest cards with the kernel are of the generation Ampere; the widest heads that all of them take.
_OLDEST_CAPABILITY = (8, 0)
_WIDEST_HEAD = 128
_HEAD_MULTIPLE = 8

# 16-bit types: TensorFlow's, that of a StableHLO tensor, and that of XLA's shapes.
_TYPE_NAMES = {tf.bfloat16: ("bf16", "BF16"), tf.float16: ("f16", "F16")}
# Of a product in a call: the axis that it sums over, left and right, and the axis of the heads, left and right.
_FORWARD_PRODUCTS = {"bmm1": (3, 3, 2, 2), "bmm2": (3, 1, 1, 2)}
_BACKWARD_PRODUCTS = {
  "bmm1_grad_gemm1": (2, 1, 1, 2),
  "bmm1_grad_gemm2": (3, 1, 1, 2),
  "bmm2_grad_gemm1": (2, 1, 1, 2),
  "bmm2_grad_gemm2": (3, 3, 2, 2),
}
# Version 9 of XlaCallModule is the first with `disabled_checks`; StableHLO text has no version of its own.
_CALL_VERSION = 9


# ------------------------------------------------------------------ whether it runs


def can_fuse(
  config: AlbertConfig,
  input_ids: tf.Tensor,
  dtype: Any,
  *,
  padding_at_end: bool,
  has_dropout: bool,
) -> bool:
  """Whether `fused_attention` can compute the attention of a model whose step is being traced.

  On a GPU the log says once which form runs, and why.

  Args:
    config: the model's configuration.
    input_ids: `[B, S]`.
    dtype: the type that the model computes in.
    padding_at_end: see `Encoder`.
    has_dropout: whether attention probabilities have dropout in this call.
  """
  if compat.device_kind() != "gpu":
    return False
  reason = _reason_against(config, input_ids, tf.as_dtype(dtype), padding_at_end, has_dropout)
  if reason:
    log_once(f"Attention without cuDNN's fused kernel: {reason}.")
    return False
  log_once("Attention by cuDNN's fused kernel.")
  return True


def _reason_against(
  config: AlbertConfig, input_ids: tf.Tensor, dtype: tf.DType, padding_at_end: bool, dropout: bool
) -> str:
  """Why the kernel cannot run, with the remedy; empty if it can."""
  width = config.hidden_size // config.num_attention_heads
  if not compat.HAS_FUSED_ATTENTION:
    return f"TensorFlow {tf.__version__} cannot call it"
  if not compat.is_compiled_by_xla():
    return "XLA does not compile this step (--use_xla, or jit_compile=True)"
  if dtype not in _TYPE_NAMES:
    return f"it computes in 16 bits, and this model in {dtype.name} (--mixed_precision)"
  if not padding_at_end:
    return "the input mask may have holes (padding_at_end=True says that it has none)"
  if dropout:
    return "the probabilities have dropout (attention_probs_dropout_prob)"
  if not input_ids.shape.is_fully_defined():
    return f"the shape of a batch is not fixed: {input_ids.shape}"
  if width > _WIDEST_HEAD or width % _HEAD_MULTIPLE:
    return f"a head of {width} is no multiple of {_HEAD_MULTIPLE} up to {_WIDEST_HEAD}"
  for card in old_cards():
    return f"{card} is older than the generation Ampere"
  return ""


def old_cards() -> list[str]:
  """The names of this machine's visible GPUs that have no fused attention."""
  names = []
  for gpu in tf.config.get_visible_devices("GPU"):
    details = tf.config.experimental.get_device_details(gpu)
    if details.get("compute_capability", _OLDEST_CAPABILITY) < _OLDEST_CAPABILITY:
      names.append(str(details.get("device_name")))
  return names


@functools.cache
def log_once(message: str) -> None:
  logging.info(message)


# ------------------------------------------------------------------ the call


def fused_attention(
  query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, key_lengths: tf.Tensor
) -> tf.Tensor:
  r"""$O = \mathrm{softmax}(Q K^T / \sqrt D) V$ over the first `key_lengths` keys of each text.

  The backward pass makes the probabilities again, from each row's logarithm of the sum of
  exponentials. There is no dropout: the kernel's seed would be a constant of the program.

  Args:
    query: `[B, Q, N, D]`, bfloat16 or float16.
    key, value: `[B, S, N, D]`.
    key_lengths: int32 `[B]`, from 1 to S.

  Returns:
    `[B, Q, N, D]`.

  Reference: arXiv 2307.08691; XLA's custom calls `__cudnn$fmhaSoftmax` and `__cudnn$fmhaSoftmaxBackward`.
  """
  batch, num_queries, heads, _ = query.shape
  query_lengths = tf.fill([batch], num_queries)  # No query is left out.
  lengths = [query_lengths, key_lengths]
  call = _Call(query, key)

  @tf.custom_gradient
  def attend(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> tuple[tf.Tensor, Any]:
    output, statistics = _run(
      call.forward_module(),
      [query, key, value] + lengths,
      [(query.shape, query.dtype), ([batch, heads, num_queries], tf.float32)],
    )

    def gradient(d_output: tf.Tensor) -> Any:
      return _run(
        call.backward_module(),
        [query, key, value, statistics, d_output, output] + lengths,
        [(x.shape, x.dtype) for x in (query, key, value)],
      )

    return output, gradient

  return attend(query, key, value)


def _run(module: str, arguments: list[tf.Tensor], results: list[tuple[Any, tf.DType]]) -> Any:
  """The results of a StableHLO module, of these shapes and types, as a part of this graph."""
  return xla.call_module(
    arguments,
    version=_CALL_VERSION,
    module=module,
    Sout=[shape for shape, _ in results],
    Tout=[dtype for _, dtype in results],
    platforms=["CUDA"],
    # The step can be lowered for a GPU where there is none.
    disabled_checks=["platform"],
  )


class _Call:
  """The two calls as StableHLO modules, for the shapes of a query `[B, Q, N, D]` and a key `[B, S, N, D]`."""

  # Layouts: the axes, the one with neighbours in memory first.
  _ROWS = "dense<[3, 2, 1, 0]> : tensor<4xindex>"
  # A result [B, N, S, D] that lies in memory as [B, S, N, D], so that its transposition costs nothing.
  _HEADS_FIRST = "dense<[3, 1, 2, 0]> : tensor<4xindex>"
  _STATISTICS = "dense<[2, 1, 0]> : tensor<3xindex>"
  _VECTOR = "dense<0> : tensor<1xindex>"

  def __init__(self, query: tf.Tensor, key: tf.Tensor):
    batch, queries, heads, width = query.shape
    keys = key.shape[1]
    type_name, self._xla_type = _TYPE_NAMES[query.dtype]
    self._scale = 1.0 / math.sqrt(width)
    self._scores_shape = [batch, heads, queries, keys]
    self._query = f"tensor<{batch}x{queries}x{heads}x{width}x{type_name}>"
    self._key = f"tensor<{batch}x{keys}x{heads}x{width}x{type_name}>"
    self._query_by_head = f"tensor<{batch}x{heads}x{queries}x{width}x{type_name}>"
    self._key_by_head = f"tensor<{batch}x{heads}x{keys}x{width}x{type_name}>"
    self._statistics = f"tensor<{batch}x{heads}x{queries}xf32>"
    lengths = f"tensor<{batch}xi32>"
    # Operands of both calls, first and last: name → type and layout.
    self._inputs = {
      "query": (self._query, self._ROWS),
      "key": (self._key, self._ROWS),
      "value": (self._key, self._ROWS),
    }
    self._lengths = {
      "query_lengths": (lengths, self._VECTOR),
      "key_lengths": (lengths, self._VECTOR),
    }

  def forward_module(self) -> str:
    """(query, key, value, query lengths, key lengths) → (output, statistics)."""
    results = [
      (self._query_by_head, self._HEADS_FIRST, self._query),
      (self._statistics, self._STATISTICS, self._statistics),
    ]
    operands = self._inputs | self._lengths
    return self._module("__cudnn$fmhaSoftmax", operands, results, _FORWARD_PRODUCTS)

  def backward_module(self) -> str:
    """(query, key, value, statistics, d_output, output, lengths) → (d_query, d_key, d_value)."""
    of_forward = {
      "statistics": (self._statistics, self._STATISTICS),
      "d_output": (self._query, self._ROWS),
      "output": (self._query, self._ROWS),
    }
    operands = self._inputs | of_forward | self._lengths
    key_result = (self._key_by_head, self._HEADS_FIRST, self._key)
    results = [(self._query_by_head, self._HEADS_FIRST, self._query), key_result, key_result]
    return self._module("__cudnn$fmhaSoftmaxBackward", operands, results, _BACKWARD_PRODUCTS)

  def _module(
    self,
    target: str,
    operands: dict[str, tuple[str, str]],
    results: list[tuple[str, str, str]],
    products: dict[str, tuple[int, int, int, int]],
  ) -> str:
    """The module of one call.

    Args:
      target: the custom call's name.
      operands: name → type and layout.
      results: of each the call's type and layout, and the module's type: `[B, S, N, D]`, where the
        call gives `[B, N, S, D]`.
      products: as `_FORWARD_PRODUCTS`.
    """
    config = self._backend_config(products)
    names = ", ".join(f"%{name}" for name in operands)
    types = ", ".join(type_ for type_, _ in operands.values())
    arguments = ", ".join(f"%{name}: {type_}" for name, (type_, _) in operands.items())
    layouts = ", ".join(layout for _, layout in operands.values())
    # The call's last result is its work space, of which the compiler chooses the size.
    call_types = ", ".join([type_ for type_, _, _ in results] + ["tensor<0xui8>"])
    result_layouts = ", ".join([layout for _, layout, _ in results] + [self._VECTOR])
    module_types = ", ".join(type_ for _, _, type_ in results)

    returned = []
    transpositions = []
    for number, (call_type, _, module_type) in enumerate(results):
      name = f"%call#{number}"
      if call_type != module_type:
        transpositions.append(
          f"%result{number} = stablehlo.transpose {name}, dims = [0, 2, 1, 3] : ({call_type}) -> {module_type}"
        )
        name = f"%result{number}"
      returned.append(name)

    attributes = (
      f'{{api_version = 2 : i32, backend_config = "{config}", '
      f"operand_layouts = [{layouts}], result_layouts = [{result_layouts}]}}"
    )
    call = f"stablehlo.custom_call @{target}({names}) {attributes} : ({types}) -> ({call_types})"
    lines = [
      f"func.func public @main({arguments}) -> ({module_types}) {{",
      f"%call:{len(results) + 1} = {call}",
      *transpositions,
      f"return {', '.join(returned)} : {module_types}",
      "}",
    ]
    return "\n".join(lines)

  def _backend_config(self, products: dict[str, tuple[int, int, int, int]]) -> str:
    """The settings of a call, as XLA reads them: JSON, with quotes as MLIR writes them."""
    config: dict[str, Any] = {
      # As JAX writes it.
      "algorithm": {
        "algo_id": "0",
        "math_type": "TENSOR_OP_MATH",
        "tuning_knobs": {"17": "1", "24": "0"},
        "is_cudnn_frontend": True,
        "workspace_size": "0",
      },
      "fmha_scale": self._scale,
      "intermediate_tensor_shape": {
        "element_type": self._xla_type,
        "dimensions": [str(size) for size in self._scores_shape],
        "layout": {"minor_to_major": ["3", "2", "1", "0"]},
        "is_dynamic_dimension": [False] * 4,
      },
      "is_flash_attention": True,
      "mask_type": "PADDING",
      "dropout_rate": 0.0,
      "seed": 42,  # Of the dropout, which is 0.
      "sliding_window_length": 0,
      "max_seg_per_batch": 1,
      "is_paged_attention": False,
    }
    for name, (left, right, left_heads, right_heads) in products.items():
      config[f"{name}_dot_dimension_numbers"] = {
        "lhs_contracting_dimensions": [str(left)],
        "rhs_contracting_dimensions": [str(right)],
        "lhs_batch_dimensions": ["0", str(left_heads)],
        "rhs_batch_dimensions": ["0", str(right_heads)],
      }
    text = json.dumps({"operation_queue_id": "0", "cudnn_fmha_backend_config": config})
    return text.replace('"', r"\22")
