"""A trained model as a function of ids, which small files are made of and compared with."""

from collections.abc import Mapping
import dataclasses
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf.checkpoints import Checkpoint
from albert_tf.configs import AlbertConfig
from albert_tf.configs.task import LITE_KINDS, TaskSpec
from albert_tf.errors import UserError
from albert_tf.modeling import named_variables
from albert_tf.serving.export import load_task, restore_model

Tensors = dict[str, tf.Tensor]
Arrays = dict[str, np.ndarray]

KINDS = LITE_KINDS
_MIN_LENGTH = 8
_ENCODER_OUTPUTS = ("pooled_output", "sequence_output")
_UNREAD = {  # What no output of a kind depends on.
  "fill_mask": ("bert/pooler/", "cls/seq_relationship/"),
  "question_answering": ("bert/pooler/",),
}


class Sizes(NamedTuple):
  """The sizes of a file's inputs.

  As a user names them None stands for a format's default and 0 for a free size; after `IdsModel.resolve` None is free.

  Attributes:
    batch_size: B; default 1 for TFLite, free for ONNX.
    max_seq_length: S; default for TFLite that of the task, else of the model; free for ONNX.
    max_predictions_per_seq: P of fill_mask; default 1 for TFLite, free for ONNX.
  """

  batch_size: int | None = None
  max_seq_length: int | None = None
  max_predictions_per_seq: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class IdsModel:
  """A model, and which of its outputs are asked for.

  Inputs, all int32: `input_ids`, `input_mask`, `segment_ids` [B, S]; fill_mask also `positions`
  [B, P]; question answering of SQuAD 2 also `p_mask` [B, S].

  Outputs, float32 unless said otherwise:
    encoder: `pooled_output` [B, H], `sequence_output` [B, S, H].
    fill_mask: `mlm_logits` [B, P, V].
    classifier: `probabilities` [B, C], of a regression `value` [B].
    question_answering: `start_logits`, `end_logits` [B, S]; for SQuAD 2 those of `Squad2Head`, with
      int32 indices.

  Attributes:
    kind: one of `KINDS`.
    config: the model's configuration.
    model: a built model of this package.
    task: of a fine-tuned model, else None.
  """

  kind: str
  config: AlbertConfig
  model: Any
  task: TaskSpec | None = None

  @property
  def has_p_mask(self) -> bool:
    return self.task is not None and self.task.squad_version == "2.0"

  @property
  def variables(self) -> dict[str, tf.Variable]:
    """The variables that the outputs depend on, by original checkpoint name."""
    unread = _UNREAD.get(self.kind, ())
    return {name: v for name, v in named_variables(self.model).items() if not name.startswith(unread)}

  @property
  def num_parameters(self) -> int:
    return sum(variable.shape.num_elements() for variable in self.variables.values())

  def resolve(self, sizes: Sizes, *, is_onnx: bool) -> Sizes:
    """The sizes of a file; a `UserError` where the length is not one that the model knows, or must be fixed."""
    limit = self.config.max_position_embeddings
    longest = min(self.task.max_seq_length, limit) if self.task else limit
    defaults = Sizes(0, 0, 0) if is_onnx else Sizes(1, longest, 1)
    batch, length, predictions = (d if g is None else g for g, d in zip(sizes, defaults, strict=True))
    if not is_onnx and not (length and predictions):
      raise UserError(
        "A TFLite file has a fixed max_seq_length and max_predictions_per_seq. Received: 0. "
        "Give a number; only the batch may be free."
      )
    if length and not _MIN_LENGTH <= length <= limit:
      raise UserError(
        f"max_seq_length must be between {_MIN_LENGTH} and the model's max_position_embeddings={limit}. "
        f"Received: {length}."
      )
    return Sizes(batch or None, length or None, predictions or None)

  def input_specs(self, sizes: Sizes) -> list[tf.TensorSpec]:
    """The inputs in order; None leaves a size free."""
    names = ["input_ids", "input_mask", "segment_ids"] + (["p_mask"] if self.has_p_mask else [])
    specs = [tf.TensorSpec(sizes[:2], tf.int32, name=name) for name in names]
    if self.kind == "fill_mask":
      shape = [sizes.batch_size, sizes.max_predictions_per_seq]
      specs.append(tf.TensorSpec(shape, tf.int32, name="positions"))
    return specs

  def __call__(self, inputs: Mapping[str, Any]) -> Tensors:
    """The outputs, eagerly or in a graph."""
    inputs = {name: tf.convert_to_tensor(array) for name, array in inputs.items()}
    if self.kind == "fill_mask":
      inputs["masked_lm_positions"] = inputs.pop("positions")
      return {"mlm_logits": self.model(inputs, training=False)["mlm_logits"]}
    outputs = self.model(inputs, training=False)
    if self.kind == "encoder":
      return {name: tf.cast(outputs[name], tf.float32) for name in _ENCODER_OUTPUTS}
    if self.kind == "question_answering":
      return dict(outputs)
    if self.task is not None and self.task.kind == "regression":
      return {"value": outputs[:, 0]}
    return {"probabilities": tf.nn.softmax(outputs)}

  def sample(self, *, rows: int, length: int, predictions: int = 1, seed: int = 0) -> Arrays:
    """Random inputs of many lengths, from full rows to one piece; two segments in each."""
    rng = np.random.default_rng(seed)
    shares = np.linspace(1, 0, rows) if rows > 1 else rng.random(1)
    sizes = np.maximum(shares * length, 1).round().astype(np.int32)[:, np.newaxis]  # [B, 1]
    place = np.arange(length)[np.newaxis]  # [1, S]
    real = place < sizes
    ids = rng.integers(0, self.config.vocab_size, [rows, length])
    arrays = {
      "input_ids": np.where(real, ids, 0),
      "input_mask": real,
      "segment_ids": real & (place >= sizes // 2) & (self.config.type_vocab_size > 1),
    }
    if self.has_p_mask:  # 0 at [CLS] and in the second segment, the text.
      arrays["p_mask"] = ~arrays["segment_ids"] & (place > 0)
    if self.kind == "fill_mask":
      arrays["positions"] = rng.integers(0, length, [rows, predictions]) % sizes
    return {name: array.astype(np.int32) for name, array in arrays.items()}


class Parity(NamedTuple):
  """How near one output of a file is to the model's.

  Attributes:
    max_difference: largest absolute difference.
    cosine: smallest cosine between two vectors of the last axis; 1 for vectors that are equal.
    top_1: share of vectors whose largest entry is the same; of integers: share that is equal; None where
      an example has a single number.
  """

  max_difference: float
  cosine: float
  top_1: float | None


def compare(expected: Mapping[str, Any], actual: Mapping[str, Any]) -> dict[str, Parity]:
  """The parity of each output, by name."""
  return {name: _compare(np.asarray(expected[name]), np.asarray(actual[name])) for name in expected}


def _compare(expected: np.ndarray, actual: np.ndarray) -> Parity:
  if np.issubdtype(expected.dtype, np.integer):
    return Parity(float(np.abs(expected - actual).max()), 1.0, float((expected == actual).mean()))
  a, b = (np.atleast_2d(x).reshape(-1, x.shape[-1]).astype(np.float64) for x in (expected, actual))
  # A masked position's -1e30 would hide all others.
  visible = (np.abs(a) < 1e20) & (np.abs(b) < 1e20)
  a, b = np.where(visible, a, 0.0), np.where(visible, b, 0.0)
  norms = np.maximum(np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1), 1e-30)
  cosine = np.where((a == b).all(axis=1), 1.0, (a * b).sum(axis=1) / norms)
  same = None if expected.ndim < 2 else float((expected.argmax(-1) == actual.argmax(-1)).mean())
  return Parity(float(np.abs(a - b).max()), float(cosine.min()), same)


def load_ids_model(kind: str, pretrained: Checkpoint, *, use_ema: bool = False) -> IdsModel:
  """A model of a kind; a `UserError` where the checkpoint is of another."""
  if kind not in KINDS:
    raise UserError(f"model must be one of {', '.join(KINDS)}. Received: {kind!r}.")
  task = load_task(kind, pretrained)
  model = restore_model(kind, pretrained, task=task, use_ema=use_ema)
  return IdsModel(kind=kind, config=pretrained.config, model=model, task=task)
