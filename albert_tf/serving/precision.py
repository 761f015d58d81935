"""A model's answers in 8 or 16 bits: ranges of its numbers, blocks for an export, and how near they are to float32."""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import dataclasses
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from albert_tf import compat
from albert_tf.errors import UserError
from albert_tf.modeling import named_variables
from albert_tf.modeling.encoder import TEXT_INPUTS
from albert_tf.modeling.low_precision import (
  Bfloat16Block,
  BlockMaps,
  Int8Block,
  ObservedBlock,
  ServedBlock,
)
from albert_tf.serving.settings import ExportSettings

# Inputs of a model, int32 `[B, S]` by name.
Batch = Mapping[str, Any]
# For each pass through a block, the largest absolute input of each of its maps.
Ranges = Sequence[Mapping[str, float]]

_BLOCKS: dict[str, type[ServedBlock]] = {"bfloat16": Bfloat16Block, "int8": Int8Block}


@dataclasses.dataclass(frozen=True)
class Agreement:
  """How near answers are to those in float32.

  Attributes:
    share: of equal decisions: labels, sets of labels, first and last tokens of answers. Of vectors the
      mean cosine, and of values the correlation.
    largest, mean: differences of probabilities; of values or of the numbers of vectors, if these are
      the answers.
    labels: label → how many answers of float32 have it, and how many of these the others have too.
  """

  share: float
  largest: float
  mean: float
  labels: Mapping[str, tuple[int, int]] = dataclasses.field(default_factory=dict)

  def __str__(self) -> str:
    text = (
      f"agreement {self.share:.4f}, largest difference {self.largest:.4f}, mean {self.mean:.5f}"
    )
    if self.labels:
      # A rare label may be lost while the share of all answers stays high.
      name = min(self.labels, key=lambda name: self.labels[name][1] / self.labels[name][0])
      num_given, num_kept = self.labels[name]
      text += (
        f"; of a label at least {num_kept / num_given:.4f}: {num_kept} of {num_given} for {name}"
      )
    return text


class Calibration(NamedTuple):
  """Batches of a model's inputs to measure ranges with, and others to compare answers with."""

  measured: Sequence[Batch]
  compared: Sequence[Batch]


class Measured(NamedTuple):
  """What an export in a precision needs to know of a model."""

  ranges: Ranges
  agreement: Agreement | None  # None for float32.

  def report(self, precision: str) -> dict[str, Any]:
    """What the export keeps of it."""
    if self.agreement is None:
      return {"precision": precision, "agreement": None}
    agreement = dataclasses.asdict(self.agreement)
    return {"precision": precision, "agreement": agreement, "summary": str(self.agreement)}


def measure(
  model: Any, settings: ExportSettings, calibration: Calibration | None = None
) -> Measured:
  """Measures a model's ranges and its agreement with float32.

  Raises:
    UserError: TensorFlow has no products of 8 bits, a calibration is missing or one too many, or the
      answers agree too little.
  """
  precision = settings.precision
  check_supported(precision)
  if precision == "float32":
    if calibration is not None:
      raise UserError(
        "Texts for calibration are for bfloat16 and int8. Received: some, with precision float32. "
        "Leave them out, or give --precision=int8."
      )
    return Measured((), None)
  if calibration is None or not calibration.measured:
    raise UserError(
      f"An export in {precision} is compared with float32 on texts. Received: none. Give some hundred of "
      "those that it will answer: --calibration_file=FILE, or calibration=texts in Python."
    )
  depth = settings.deepest
  ranges: Ranges = ()  # 16 bits have the exponents of float32.
  if precision == "int8":
    ranges = measured_ranges(model, calibration.measured, depth)
  agreement = _agreement(model, precision, ranges, calibration.compared, depth)
  if not agreement.share >= settings.min_agreement:  # Not "<": a NaN does not agree either.
    raise UserError(
      f"An export must answer as float32 does. Received: {precision} with {agreement}. Nothing was written. "
      f"Take a higher precision, or accept it with --min_agreement={agreement.share:.2f}."
    )
  return Measured(ranges, agreement)


def in_float32(model: Any) -> Any:
  """The model, or its copy that computes in float32, if Keras' policy lets it compute in 16 bits.

  A mixed policy is for training: float16 is slow on CPUs, and answers in it differ.
  """
  if model.compute_dtype == "float32":
    return model
  policy = keras.mixed_precision.global_policy()
  # A layer of the user's in the head takes the global policy.
  keras.mixed_precision.set_global_policy("float32")
  try:
    copy = type(model).from_config(model.get_config() | {"dtype": "float32"})
  finally:
    keras.mixed_precision.set_global_policy(policy)
  copy.set_weights(model.get_weights())
  return copy


def check_supported(precision: str) -> None:
  """Raises `UserError` if this TensorFlow has no products of 8 bits, and the precision is int8."""
  if precision == "int8" and not compat.HAS_INT8_PRODUCTS:
    raise UserError(
      "int8 needs TensorFlow 2.19 or later for x86, also where the model is served. "
      f"Received: precision int8 with TensorFlow {tf.__version__}. Take --precision=bfloat16."
    )


def measured_ranges(model: Any, batches: Sequence[Batch], depth: int | None) -> Ranges:
  """The largest absolute inputs of the maps of each pass."""
  with _served_by(model, ObservedBlock, [], depth) as (_, blocks):
    for batch in batches:
      model(dict(batch), training=False, **_at(depth))
  return [block.ranges for block in blocks]


@contextlib.contextmanager
def computed_in(
  model: Any, precision: str, ranges: Ranges = (), depth: int | None = None
) -> Iterator[list[Any]]:
  """Within it a model's encoder computes in a precision.

  Yields:
    What an export tracks: the variables that answer.
  """
  variables = list(named_variables(model).items())
  if precision == "float32":
    with _packed(model):
      yield [variable for _, variable in variables]
    return
  with _served_by(model, _BLOCKS[precision], ranges, depth) as (maps, _):
    yield [variable for name, variable in variables if not _is_replaced(name)] + maps


def _is_replaced(name: str) -> bool:
  """Whether a variable is the weight of one of a block's linear maps."""
  return "/transformer/" in name and name.endswith(("/kernel", "/bias"))


@contextlib.contextmanager
def _packed(model: Any) -> Iterator[Any]:
  """Within it the model's encoder computes no padding, also where TensorFlow sees a GPU.

  An export may be made on one machine and answer on another.
  """
  encoder = getattr(model, "encoder", model)
  encoder.packs = True
  try:
    yield encoder
  finally:
    encoder.packs = None


@contextlib.contextmanager
def _served_by(
  model: Any, kind: type[ServedBlock], ranges: Ranges, depth: int | None
) -> Iterator[tuple[list[BlockMaps], list[ServedBlock]]]:
  """Puts blocks of another kind in the place of the encoder's, one for each pass."""
  encoder = getattr(model, "encoder", model)  # Itself, if it is exported alone.
  num_passes = len(encoder.config.at_depth(depth).owners)
  maps: dict[Any, BlockMaps] = {}
  blocks = []
  for number in range(num_passes):
    block = encoder.block(number)
    sublayers = (id(block.attention), id(block.feed_forward))
    if sublayers not in maps:
      maps[sublayers] = BlockMaps(block, kind.kind)
    ranges_of_pass = ranges[number] if ranges else None
    blocks.append(kind(block, maps[sublayers], encoder.config, ranges_of_pass))
  encoder.served_blocks = blocks
  try:
    with _packed(model):
      yield list(maps.values()), blocks
  finally:
    encoder.served_blocks = ()


def _agreement(
  model: Any, precision: str, ranges: Ranges, batches: Sequence[Batch], depth: int | None
) -> Agreement:
  """Compares a model's answers in a precision with those in float32, for batches of its inputs."""
  # A head of words answers with whole vocabularies: its encoder's vectors are compared.
  answering = model
  if model.export_kind == "fill_mask":
    answering = model.encoder
    batches = [
      {name: array for name, array in batch.items() if name in TEXT_INPUTS} for batch in batches
    ]
  found = []
  for name in ("float32", precision):
    with computed_in(model, name, ranges, depth):
      program = tf.function(
        lambda batch: answering(batch, training=False, **_at(depth)),
        autograph=False,
        reduce_retracing=True,
      )
      found.append(_joined([_answers(model, batch, program(dict(batch))) for batch in batches]))
  (numbers, decisions), (other_numbers, other_decisions) = found

  differences = np.abs(numbers - other_numbers)
  labels: dict[str, tuple[int, int]] = {}
  if decisions is not None and other_decisions is not None:
    share = np.mean(decisions == other_decisions)
    labels = _label_counts(model, decisions, other_decisions)
  elif numbers.shape[1] == 1:
    share = np.corrcoef(numbers[:, 0], other_numbers[:, 0])[0, 1]
  else:
    lengths = np.linalg.norm(numbers, axis=1) * np.linalg.norm(other_numbers, axis=1)
    share = np.mean(np.sum(numbers * other_numbers, axis=1) / np.maximum(lengths, 1e-12))
  return Agreement(float(share), float(differences.max()), float(differences.mean()), labels)


def _label_counts(
  model: Any, decisions: np.ndarray, others: np.ndarray
) -> dict[str, tuple[int, int]]:
  """`Agreement.labels` of two arrays of decisions; empty for a model without names of labels."""
  names = model.task.label_names
  if not names:
    return {}
  if model.task.kind == "multi_label":
    has_label = decisions.reshape(-1, len(names))  # [texts, labels]
    others_have = others.reshape(-1, len(names))
  else:
    has_label = decisions[:, np.newaxis] == np.arange(len(names))
    others_have = others[:, np.newaxis] == np.arange(len(names))
  num_given = has_label.sum(axis=0)
  num_kept = (has_label & others_have).sum(axis=0)
  return {
    name: (int(given), int(kept))
    for name, given, kept in zip(names, num_given, num_kept, strict=True)
    if given
  }


class _Answers(NamedTuple):
  """The answers to n texts, tokens or ends of spans."""

  numbers: np.ndarray  # [n, C]: probabilities; values or vectors, where these are the answers.
  decisions: np.ndarray | None  # [n]; None without decisions.


def _joined(answers: Sequence[_Answers]) -> _Answers:
  numbers = np.concatenate([of_batch.numbers for of_batch in answers])
  if answers[0].decisions is None:
    return _Answers(numbers, None)
  return _Answers(numbers, np.concatenate([of_batch.decisions for of_batch in answers]))


def _answers(model: Any, batch: Batch, outputs: Any) -> _Answers:
  """What is compared of a model's outputs for a batch."""
  is_token = np.asarray(batch["input_mask"]) > 0
  kind = model.task.kind if model.task is not None else "encoder"
  if kind == "encoder":
    return _Answers(outputs["sequence_output"].numpy()[is_token], None)
  if kind in ("regression", "sentence_vectors"):
    vectors = outputs.numpy()
    return _Answers(vectors.reshape(-1, vectors.shape[-1]), None)
  if kind == "question_answering":
    return _span_answers(outputs, is_token)

  logits = outputs.numpy()
  if kind == "multi_label":
    probabilities = 1.0 / (1.0 + np.exp(-logits))
    is_above = probabilities >= (model.task.thresholds or 0.5)
    # Each label is a decision.
    return _Answers(probabilities.reshape(-1, 1), is_above.reshape(-1))
  if kind == "token_classification":
    is_word = batch["word_positions"] > 0 if "word_positions" in batch else is_token
    logits = logits[is_word]
  return _Answers(tf.nn.softmax(logits).numpy(), logits.argmax(axis=-1))


def _span_answers(outputs: Mapping[str, tf.Tensor], is_token: np.ndarray) -> _Answers:
  """Where answers start and end: the probability of the best place, and the place."""
  if "start_top_index" in outputs:
    places = [outputs[f"{end}_top_index"].numpy()[:, 0] for end in ("start", "end")]
    log_probs = [outputs[f"{end}_top_log_probs"].numpy()[:, 0] for end in ("start", "end")]
    return _Answers(np.exp(np.concatenate(log_probs))[:, np.newaxis], np.concatenate(places))
  logits = np.concatenate([outputs["start_logits"].numpy(), outputs["end_logits"].numpy()])
  logits = np.where(np.concatenate([is_token, is_token]), logits, -np.inf)
  probabilities = tf.nn.softmax(logits).numpy()
  return _Answers(probabilities.max(axis=1, keepdims=True), probabilities.argmax(axis=1))


def _at(depth: int | None) -> dict[str, Any]:
  return {} if depth is None else {"depths": (depth,)}
