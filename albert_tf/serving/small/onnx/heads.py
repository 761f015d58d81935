"""The heads of small models in ONNX's operations; each gives name → (tensor, dtype, shape)."""

from typing import Any

import numpy as np

from albert_tf.configs import AlbertConfig
from albert_tf.configs.task import TaskSpec
from albert_tf.models.heads import NEVER
from albert_tf.serving.small.ids_model import IdsModel
from albert_tf.serving.small.onnx.encoder import OnnxEncoder, activate, dense, layer_norm
from albert_tf.serving.small.onnx.graph import OnnxGraph

Outputs = dict[str, tuple[str, Any, list[int | str]]]
B, S, P = "batch", "length", "predictions"


def model_outputs(model: IdsModel, graph: OnnxGraph) -> Outputs:
  """What `IdsModel` gives."""
  encoder = OnnxEncoder(graph, model.config)
  if model.kind == "encoder":
    return encoder_outputs(graph, encoder, model.config)
  if model.kind == "fill_mask":
    return fill_mask_outputs(graph, encoder, model.config)
  if model.kind == "question_answering":
    return squad2_outputs(graph, encoder, model) if model.has_p_mask else span_outputs(graph, encoder)
  assert model.task is not None
  return classifier_outputs(graph, encoder, model.task)


def encoder_outputs(graph: OnnxGraph, encoder: OnnxEncoder, config: AlbertConfig) -> Outputs:
  sequence = encoder.sequence()
  pooled = graph.float32(encoder.pooled(sequence))
  return {
    "pooled_output": (pooled, np.float32, [B, config.hidden_size]),
    "sequence_output": (graph.float32(sequence), np.float32, [B, S, config.hidden_size]),
  }


def fill_mask_outputs(graph: OnnxGraph, encoder: OnnxEncoder, config: AlbertConfig) -> Outputs:
  """See `MaskedLmHead`; the last block is computed at `positions` alone."""
  g, name = graph, "cls/predictions"
  h = encoder.sequence(positions=g.cast("positions", np.int64))  # [B, P, H]
  h = dense(g, h, f"{name}/transform/dense", activation=config.hidden_act)
  h = layer_norm(g, h, f"{name}/transform/LayerNorm", config)
  rows = g.op("Reshape", h, g.integers(-1, config.embedding_size))
  table = g.weight("bert/embeddings/word_embeddings")  # The one copy, read from its other side.
  logits = g.op("Gemm", rows, table, g.weight(f"{name}/output_bias"), transB=1)
  shape = g.op("Concat", g.op("Shape", "positions"), g.integers(config.vocab_size), axis=0)
  logits = g.float32(g.op("Reshape", logits, shape))
  return {"mlm_logits": (logits, np.float32, [B, P, config.vocab_size])}


def classifier_outputs(graph: OnnxGraph, encoder: OnnxEncoder, task: TaskSpec) -> Outputs:
  """See `ClassificationHead`; the last block is computed at [CLS] alone."""
  g = graph
  batch = g.op("Shape", "input_ids", start=0, end=1)
  cls = g.op("Expand", g.integers(0), g.op("Concat", batch, g.integers(1), axis=0))  # [B, 1]
  pooled = encoder.pooled(encoder.sequence(positions=cls))
  logits = g.float32(g.op("Gemm", pooled, g.weight("output_weights"), g.weight("output_bias"), transB=1))
  if task.kind == "regression":
    return {"value": (g.op("Squeeze", logits, g.integers(1)), np.float32, [B])}
  return {"probabilities": (g.op("Softmax", logits, axis=-1), np.float32, [B, task.num_labels])}


def span_outputs(graph: OnnxGraph, encoder: OnnxEncoder) -> Outputs:
  """See `SpanHead`."""
  g = graph
  weights = g.op("Transpose", g.weight("cls/squad/output_weights"), perm=[1, 0])  # [H, 2]
  logits = g.op("MatMul", encoder.sequence(), weights)
  logits = g.float32(g.op("Add", logits, g.weight("cls/squad/output_bias")))
  outputs: Outputs = {}
  for index, name in enumerate(("start_logits", "end_logits")):
    outputs[name] = (g.op("Gather", logits, g.number(index, like=np.int64), axis=2), np.float32, [B, S])
  return outputs


def squad2_outputs(graph: OnnxGraph, encoder: OnnxEncoder, model: IdsModel) -> Outputs:
  """See `Squad2Head`; the product with [x_t, x_u] is done on its halves, which is the same."""
  g, config = graph, model.config
  K, L = model.model.head.start_n_top, model.model.head.end_n_top
  x = encoder.sequence()  # [B, S, H]
  p_mask = g.cast("p_mask", np.float32)
  start = _masked(g, dense(g, x, "start_logits/dense"), p_mask)  # [B, S]
  start_top = g.ops("TopK", 2, g.op("LogSoftmax", start, axis=-1), g.integers(K), axis=-1)  # [B, K]

  halves = g.ops("Split", 2, g.weight("end_logits/dense_0/kernel"), axis=0, num_outputs=2)  # [H, H] each
  of_end = g.op("Unsqueeze", g.op("MatMul", x, halves[0]), g.integers(1))  # [B, 1, S, H]
  of_start = g.op("MatMul", encoder.rows(x, start_top[1]), halves[1])  # [B, K, H]
  pair = g.op("Add", of_end, g.op("Unsqueeze", of_start, g.integers(2)))  # [B, K, S, H]
  pair = activate(g, g.op("Add", pair, g.weight("end_logits/dense_0/bias")), "tanh")
  end = dense(g, layer_norm(g, pair, "end_logits/LayerNorm", config), "end_logits/dense_1")
  end = _masked(g, end, g.op("Unsqueeze", p_mask, g.integers(1)))  # [B, K, S]
  end_top = g.ops("TopK", 2, g.op("LogSoftmax", end, axis=-1), g.integers(L), axis=-1)  # [B, K, L]
  flat = [g.op("Reshape", tensor, g.integers(0, K * L)) for tensor in end_top]

  weights = g.op("Unsqueeze", g.narrow(g.op("Softmax", start, axis=-1)), g.integers(1))  # [B, 1, S]
  summary = g.op("Squeeze", g.op("MatMul", weights, x), g.integers(1))  # [B, H]
  both = g.op("Concat", summary, encoder.first(x), axis=-1)
  hidden = dense(g, both, "answer_class/dense_0", activation="tanh")
  answer = g.op("Squeeze", dense(g, hidden, "answer_class/dense_1"), g.integers(-1))
  return {
    "cls_logits": (g.float32(answer), np.float32, [B]),
    "start_top_log_probs": (start_top[0], np.float32, [B, K]),
    "start_top_index": (g.cast(start_top[1], np.int32), np.int32, [B, K]),
    "end_top_log_probs": (flat[0], np.float32, [B, K * L]),
    "end_top_index": (g.cast(flat[1], np.int32), np.int32, [B, K * L]),
  }


def _masked(graph: OnnxGraph, logits: str, p_mask: str) -> str:
  """[…, S, 1] → float32 […, S]; minus 1e30 where `p_mask` is 1. Float32: float16 has no 1e30."""
  g = graph
  logits = g.float32(g.op("Squeeze", logits, g.integers(-1)))
  allowed = g.op("Sub", g.number(1, like=np.float32), p_mask)
  never = g.op("Mul", p_mask, g.number(NEVER, like=np.float32))
  return g.op("Sub", g.op("Mul", logits, allowed), never)
