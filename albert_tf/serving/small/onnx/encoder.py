"""ALBERT in ONNX's operations: the equations of `albert_tf.modeling`, with the same weights' names."""

import math

import numpy as np

from albert_tf.configs import AlbertConfig
from albert_tf.serving.small.onnx.graph import OnnxGraph

_MASKED_SCORE = -10000.0  # As in `albert_tf.modeling`; finite in float16 too.
_ACTIVATIONS = {
  "gelu": ("Gelu", {"approximate": "tanh"}),
  "gelu_exact": ("Gelu", {"approximate": "none"}),
  "relu": ("Relu", {}),
  "tanh": ("Tanh", {}),
}


def dense(graph: OnnxGraph, x: str, name: str, *, activation: str = "linear") -> str:
  """$f(x W + b)$; without `b` where the checkpoint has none."""
  y = graph.op("MatMul", x, graph.weight(f"{name}/kernel"))
  if graph.has_weight(f"{name}/bias"):
    y = graph.op("Add", y, graph.weight(f"{name}/bias"))
  return activate(graph, y, activation)


def activate(graph: OnnxGraph, x: str, name: str) -> str:
  if name == "linear":
    return x
  kind, attributes = _ACTIVATIONS[name]
  return graph.op(kind, x, **attributes)


def layer_norm(graph: OnnxGraph, x: str, name: str, config: AlbertConfig) -> str:
  """Statistics are float32 in half precision too (stash_type 1), where epsilon would vanish."""
  weights = (graph.weight(f"{name}/gamma"), graph.weight(f"{name}/beta"))
  return graph.op("LayerNormalization", x, *weights, axis=-1, epsilon=config.layer_norm_eps, stash_type=1)


class OnnxEncoder:
  """The encoder's tensors in a graph.

  Args:
    graph: where the operations go; it has the inputs `input_ids`, `input_mask`, `segment_ids`.
    config: the model's configuration.
  """

  def __init__(self, graph: OnnxGraph, config: AlbertConfig):
    self._graph = graph
    self._config = config
    blocks = [(i, k) for i in range(config.num_hidden_layers) for k in range(config.inner_group_num)]
    self._owners = [(config.attention_owner(i, k), config.ffn_owner(i, k)) for i, k in blocks]

  def sequence(self, *, positions: str | None = None) -> str:
    """The last block's result: [B, S, H], or [B, P, H] at `positions` int64 [B, P] alone."""
    x, bias = self._embeddings(), self._bias()
    for attention, feed_forward in self._owners[:-1]:
      x = self._feed_forward(self._attention(x, x, bias, attention), feed_forward)
    attention, feed_forward = self._owners[-1]
    queries = x if positions is None else self.rows(x, positions)
    return self._feed_forward(self._attention(x, queries, bias, attention), feed_forward)

  def pooled(self, sequence: str) -> str:
    """[B, S, H] → [B, H], from [CLS]."""
    return dense(self._graph, self.first(sequence), "bert/pooler/dense", activation="tanh")

  def first(self, sequence: str) -> str:
    """[B, S, H] → [B, H], the vector at [CLS]."""
    return self._graph.op("Gather", sequence, self._graph.number(0, like=np.int64), axis=1)

  def rows(self, x: str, positions: str) -> str:
    """[B, S, H], int64 [B, P] → [B, P, H]."""
    index = self._graph.op("Unsqueeze", positions, self._graph.integers(-1))
    return self._graph.op("GatherND", x, index, batch_dims=1)

  def _embeddings(self) -> str:
    g, name = self._graph, "bert/embeddings"
    length = g.op("Shape", "input_ids", start=1, end=2)
    positions = g.op(
      "Slice", g.weight(f"{name}/position_embeddings"), g.integers(0), length, g.integers(0)
    )  # [S, E]
    x = g.op("Gather", g.weight(f"{name}/word_embeddings"), "input_ids")
    x = g.op("Add", x, g.op("Gather", g.weight(f"{name}/token_type_embeddings"), "segment_ids"))
    x = layer_norm(g, g.op("Add", x, positions), f"{name}/LayerNorm", self._config)  # [B, S, E]
    mapping = "bert/encoder/embedding_hidden_mapping_in"
    return dense(g, x, mapping) if g.has_weight(f"{mapping}/kernel") else x  # [B, S, H]

  def _bias(self) -> str:
    """float32 [B, 1, 1, S]: finite, so that a row of padding alone has no NaN, in half precision either."""
    g = self._graph
    padding = g.op("Sub", g.number(1, like=np.float32), g.cast("input_mask", np.float32))
    bias = g.op("Mul", padding, g.number(_MASKED_SCORE, like=np.float32))
    return g.op("Unsqueeze", bias, g.integers(1, 2))

  def _heads(self, x: str, name: str, order: list[int]) -> str:
    g, config = self._graph, self._config
    split = g.integers(0, 0, config.num_attention_heads, config.head_size)  # 0: as it was.
    return g.op("Transpose", g.op("Reshape", dense(g, x, name), split), perm=order)

  def _attention(self, x: str, queries: str, bias: str, owner: tuple[int, int]) -> str:
    g = self._graph
    block = f"bert/encoder/transformer/group_{owner[0]}/inner_group_{owner[1]}"
    own = f"{block}/attention_1/self"
    query = self._heads(queries, f"{own}/query", [0, 2, 1, 3])  # [B, N, P, D]
    query = g.op("Mul", query, g.number(1 / math.sqrt(self._config.head_size)))
    key = self._heads(x, f"{own}/key", [0, 2, 3, 1])  # [B, N, D, S]
    value = self._heads(x, f"{own}/value", [0, 2, 1, 3])  # [B, N, S, D]
    scores = g.op("Add", g.float32(g.op("MatMul", query, key)), bias)
    context = g.op("MatMul", g.narrow(g.op("Softmax", scores, axis=-1)), value)
    context = g.op("Transpose", context, perm=[0, 2, 1, 3])
    context = g.op("Reshape", context, g.integers(0, 0, self._config.hidden_size))  # [B, P, H]
    output = dense(g, context, f"{block}/attention_1/output/dense")
    return layer_norm(g, g.op("Add", output, queries), f"{block}/LayerNorm", self._config)

  def _feed_forward(self, x: str, owner: tuple[int, int]) -> str:
    g = self._graph
    block = f"bert/encoder/transformer/group_{owner[0]}/inner_group_{owner[1]}"
    name = f"{block}/ffn_1/intermediate"
    wide = dense(g, x, f"{name}/dense", activation=self._config.hidden_act)  # [B, P, F]
    output = dense(g, wide, f"{name}/output/dense")
    return layer_norm(g, g.op("Add", output, x), f"{block}/LayerNorm_1", self._config)
