"""Base class of the task models: an encoder with one head. `tasks.py` has the tasks.

Its own head is that of classification; SQuAD's are in `squad_heads.py`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import math
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from albert_tf.checkpoints.checkpoint import ANY_HEAD
from albert_tf.compat import device_kind
from albert_tf.configs import AlbertConfig
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.keras_api.examples import Examples
from albert_tf.keras_api.labels import asserted_classes
from albert_tf.keras_api.loading import take_task_fields
from albert_tf.keras_api.logits import loss_object
from albert_tf.keras_api.predictor import Predictor
from albert_tf.keras_api.text_model import Options, TextModel, has_batches
from albert_tf.keras_api.training_step import train_step
from albert_tf.modeling import Encoder
from albert_tf.modeling.dropout import Seed, dropout, resolve_seed, split_seed
from albert_tf.modeling.early_exit import EXIT_RULES, EarlyOutputs, answer_early
from albert_tf.modeling.encoder import Inputs, text_inputs
from albert_tf.modeling.layers import RowsHead

# The input of an answer that may stop early: the confidence above which a row stops, float32 [B].
_THRESHOLD = "exit_threshold"


class ClassificationHead(RowsHead):
  r"""Logits $\mathrm{dropout}(\text{pooled}) W^T + b$ of C classes, or one value.

  Args:
    config: the encoder's configuration.
    num_labels: C; 1 for regression and for multiple choice (one score for each choice).
    classifier_dropout: dropout rate, 0.1 in every recipe of the paper ("Classifier DR").

  Call args:
    pooled_output: `[B, H]`.
    training, seed: see `AlbertEncoder`.

  Returns:
    float32 `[B, C]`.

  Reference: ALBERT appendix, downstream hyper-parameters; the original's `run_classifier` and
  `run_race`.
  """

  def __init__(
    self, config: AlbertConfig, *, num_labels: int, classifier_dropout: float = 0.1, **kwargs: Any
  ):
    super().__init__(config, rows=num_labels, **kwargs)
    self.classifier_dropout = classifier_dropout

  def call(self, pooled_output: tf.Tensor, training: bool = False, seed: Seed = None) -> tf.Tensor:
    seed = resolve_seed(seed, training=training)
    return super().call(dropout(pooled_output, self.classifier_dropout, seed))


class TaskModel(TextModel):
  """A model with an encoder and a head, built by the constructor.

  Args:
    config: the encoder's configuration.
    task: the task, which decides the head and is saved with exports. None: made from `kwargs`.
    head_options: arguments of the head.
    encoder_options: arguments of `Encoder`.
    train_depths: numbers of layers, ascending to the model's own. `fit` runs the encoder once, to
      the last, and trains the head to read each; see `training_step.training_loss`.
    depth_distillation: W of the same equation.
    **kwargs: `preprocessor`, see `TextModel`, and as for `from_pretrained`: `label_names`,
      `num_labels` and other fields of a new task, and arguments of head and encoder.
  """

  # Fields of a new `TaskSpec`.
  task_defaults: ClassVar[dict[str, Any]] = {"name": "custom"}
  # Arguments of encoder and head that may be given without `encoder_options` and `head_options`.
  encoder_option_names: ClassVar[tuple[str, ...]] = ("padding_at_end",)
  head_option_names: ClassVar[tuple[str, ...]] = ()
  may_be_missing = (ANY_HEAD,)
  checkpoint_heads: tuple[str, ...] = ("classifier",)
  # Micro-batches of an update; set it before `fit`.
  gradient_accumulation_steps = 1
  # If false, the pooler is not trained; checkpoints still hold it.
  reads_pooler = False
  # Whether an example may have several rows, `[B, C, S]`; the encoder then gets `[B C, S]`.
  _joins_rows = False

  def __init__(
    self,
    config: AlbertConfig,
    *,
    task: TaskSpec | None = None,
    head_options: Options | None = None,
    encoder_options: Options | None = None,
    train_depths: Sequence[int] = (),
    depth_distillation: float = 0.0,
    **kwargs: Any,
  ):
    # What is given by name is of a new task, of the head, of the encoder, or else of `TextModel`.
    options = {"head_options": head_options, **kwargs}
    task_fields = take_task_fields(options)
    head_options = dict(options.pop("head_options") or {})
    head_options |= _taken(options, self.head_option_names)
    encoder_options = dict(encoder_options or {})
    encoder_options |= _taken(options, self.encoder_option_names)
    super().__init__(config, **options)
    self.head_options = head_options
    self.encoder_options = encoder_options
    if task is None:
      task = self.make_task(**task_fields)
    elif task_fields:
      raise UserError(
        f"A task has its own labels and settings. Received: task and {', '.join(task_fields)}. "
        "Give one of them."
      )
    if train_depths:
      config.check_train_depths(train_depths)
      task = dataclasses.replace(task, exit_depths=tuple(sorted(train_depths)))
    self.train_depths = tuple(sorted(train_depths))
    self.depth_distillation = depth_distillation
    self._early_predictor: Predictor | None = None  # Made by the first `predict_early`.
    if depth_distillation and not (train_depths and task.kind in EXIT_RULES):
      raise UserError(
        f"depth_distillation is for train_depths and for {', '.join(EXIT_RULES)}. Received: "
        f"{depth_distillation} for {task.kind}, train_depths={list(train_depths)}. Leave it out."
      )
    self.task = task
    self.export_kind = task.export_kind
    self.encoder = Encoder(config, **self.encoder_options, dtype=self.dtype_policy)
    self.encoder.pooler.trainable = self.reads_pooler
    self.head = self._make_head(name="head", dtype=self.dtype_policy, **self.head_options)
    self.build()

  def _make_head(self, **options: Any) -> Any:
    options.setdefault("num_labels", self.task.num_labels)
    head = ClassificationHead(self.config, **options)
    # For Keras' summary: `[B, S, C]`, or `[B, C]`.
    if self.per_piece:
      head.output_shape = (None,) + head.output_shape
    return head

  # ------------------------------------------------------------------ the task

  @classmethod
  def make_task(cls, **fields: Any) -> TaskSpec:
    """Makes a task for this class from fields of `TaskSpec`."""
    return TaskSpec(**{"kind": cls.task_kinds[0]} | cls.task_defaults | fields)

  def _loss_object(self) -> Any:
    """The loss that the model was compiled with, if it has one output; else None."""
    return loss_object(getattr(self, "loss", None))  # Keras 2 has none before `compile`.

  def _asserted_classes(self, labels: Any, count: Any, is_read: Any = True) -> Any:
    """Labels of a data set that the compiled loss reads as classes; other losses read other numbers."""
    loss = self._loss_object()
    if not isinstance(loss, keras.losses.SparseCategoricalCrossentropy):
      return labels
    ignored = loss.get_config().get("ignore_class")
    if ignored is not None:
      is_read &= labels != ignored
    return asserted_classes(labels, count, is_read=is_read)

  # ------------------------------------------------------------------ the model

  def train_step(self, data: Any) -> dict[str, Any]:
    """Makes an update; see `training_step.train_step`."""
    return train_step(self, data)

  def call(
    self,
    inputs: Inputs,
    training: bool = False,
    seed: tf.Tensor | None = None,
    depths: Sequence[int] = (),
  ) -> Any:
    return self.outputs_at(depths, inputs, training=training, seed=seed)[-1]

  def outputs_at(
    self,
    depths: Sequence[int],
    inputs: Inputs,
    training: bool = False,
    seed: tf.Tensor | None = None,
  ) -> list[Any]:
    """The outputs of `call` after each of these numbers of layers, in one pass; see `Encoder`."""
    seed = resolve_seed(seed, training=training)
    head_seed = None
    if self.task.has_head_dropout:
      seed, head_seed = split_seed(seed, 2)

    encoded = self.encoder(
      self._encoder_inputs(inputs),
      training=training,
      seed=seed,
      depths=depths,
    )
    return [
      self._answer(self._head_input(of_depth), inputs, training=training, seed=head_seed)
      for of_depth in encoded.get("of_depths", [encoded])
    ]

  def _encoder_inputs(self, inputs: Inputs) -> dict[str, tf.Tensor]:
    texts = text_inputs(inputs)
    if self._joins_rows:
      length = texts["input_ids"].shape[-1]
      if length is None:
        length = tf.shape(texts["input_ids"])[-1]
      texts = {name: tf.reshape(tensor, [-1, length]) for name, tensor in texts.items()}
    if self.reads_pooler:
      # The pooler reads [CLS] alone, so the last block is computed for no other position.
      texts["read_positions"] = texts["input_ids"][:, :0]
    return texts

  def _head_input(self, encoded: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """`[B, S, H]`, or the pooled output `[B, H]`."""
    return encoded["pooled_output" if self.reads_pooler else "sequence_output"]

  def _answer(self, encoded: tf.Tensor, inputs: Inputs, **options: Any) -> Any:
    """The head's outputs for the inputs of the model."""
    return self.head(encoded, **options)

  # ------------------------------------------------------------------ early exit

  def predict_early(self, x: Any, *, threshold: Any = None, batch_size: int = 32) -> EarlyOutputs:
    """As `predict`, but each text stops at the first trained depth that is sure.

    Args:
      x: texts, ids, or batches of them, as for `predict`.
      threshold: the confidence above which a text stops, in [0, 1]; see `ExitRule`. 1 means all
        layers. One for all rows, or `[B]`, one for each row of x. Default: the task's, which
        `run_glue.py --train_depths` chooses.
      batch_size: texts that start together; data sets, generators and the like have their own.

    Returns:
      Arrays: the outputs, those of `predict` at these depths, and `layers` int32 `[B]`.

    Raises:
      UserError: the model was trained at one depth only, or cannot stop early.
    """
    if threshold is None:
      threshold = self.task.exit_threshold
    thresholds = _checked_thresholds(threshold)
    if device_kind(self.distribute_strategy) == "tpu":
      raise UserError(
        "On a TPU all shapes are constant, so no text can leave a batch. Received: predict_early. "
        "Use predict of a model with fewer layers: from_pretrained(…, num_hidden_layers=N)."
      )
    self._check_exits()
    if self._early_predictor is None:
      self._early_predictor = Predictor(self, self._answer_early)
    # The threshold of each row is an input of it.
    if has_batches(x):
      batches = _input_batches(self.prepared_batches(x, reads_labels=False))
      return self._early_predictor.of_batches(_with_thresholds(batches, thresholds))
    examples = self.examples(x)
    of_rows = {_THRESHOLD: _one_for_each_row(thresholds, len(examples))}
    return self._early_predictor(Examples(dict(examples.inputs, **of_rows)), batch_size=batch_size)

  def _answer_early(self, inputs: Inputs) -> EarlyOutputs:
    return self.early_outputs(inputs, inputs[_THRESHOLD])

  def exit_depths(self, num_layers: int | None = None) -> list[int]:
    """The numbers of layers after which a text may stop, ascending; the last is the deepest.

    It is the only one if the model was trained at one depth, or if its kind of task has no rule.

    Args:
      num_layers: the deepest; None: the model's number.
    """
    if num_layers is None:
      num_layers = self.config.num_hidden_layers
    shallower = []
    if self.task.kind in EXIT_RULES:
      shallower = [depth for depth in self.task.exit_depths if depth < num_layers]
    return shallower + [num_layers]

  def _check_exits(self) -> None:
    """Raises a `UserError` if no text can stop early."""
    if self.task.kind not in EXIT_RULES:
      raise UserError(
        f"Answers stop early for {', '.join(EXIT_RULES)}. Received: a model of {self.task.kind}. "
        "Use predict."
      )
    if len(self.exit_depths()) == 1:
      raise UserError(
        "An answer can stop early at depths that the head was trained to read. Received: a model "
        "trained at one depth only. Train with train_depths=(4, 8, 12), in commands --train_depths."
      )

  def early_outputs(
    self, inputs: Inputs, threshold: tf.Tensor, depths: Sequence[int] | None = None
  ) -> EarlyOutputs:
    """See `predict_early`.

    Args:
      inputs: those of `call`.
      threshold: float32 scalar, `[1]` or `[B]`; of N texts in each example, all have the example's.
      depths: as of `exit_depths`; None: those of the model.
    """
    texts = self._encoder_inputs(inputs)
    # A row may go on after any depth, so all its positions are computed.
    texts.pop("read_positions", None)
    shape = tf.shape(inputs["input_ids"])[:-1]  # [B], or [B, N] of N texts in each example.
    texts_per_example = tf.reduce_prod(shape[1:])
    threshold = tf.broadcast_to(tf.reshape(threshold, [-1, 1]), [shape[0], texts_per_example])

    def head(read: Mapping[str, tf.Tensor], mask: tf.Tensor) -> tf.Tensor:
      return self._answer(self._head_input(read), {"input_ids": mask, "input_mask": mask})

    early = answer_early(
      self.encoder,
      texts,
      depths=depths or self.exit_depths(),
      head=head,
      rule=EXIT_RULES[self.task.kind],
      threshold=tf.reshape(threshold, [-1]),
      reads_cls_alone=self.reads_pooler,
    )
    outputs = tf.reshape(early.outputs, tf.concat([shape, tf.shape(early.outputs)[1:]], axis=0))
    return EarlyOutputs(outputs, tf.reshape(early.layers, shape))

  def get_config(self) -> dict[str, Any]:
    config = super().get_config()
    config["task"] = dataclasses.asdict(self.task)
    config["head_options"] = dict(self.head_options)
    config["encoder_options"] = dict(self.encoder_options)
    config["train_depths"] = list(self.train_depths)
    config["depth_distillation"] = self.depth_distillation
    return config

  @classmethod
  def from_config(cls, config: Options, custom_objects: Any = None) -> Any:
    task = TaskSpec.from_dict(config["task"], source="a saved model")
    return super().from_config(dict(config, task=task), custom_objects)


def _taken(options: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
  """Takes the options with these names out."""
  return {name: options.pop(name) for name in names if name in options}


def _checked_thresholds(threshold: Any) -> np.ndarray:
  """A confidence, or one for each row, `[B]`; raises `UserError` for others."""
  thresholds = np.array(math.nan)
  with contextlib.suppress(ValueError):  # Rows of different lengths.
    thresholds = np.asarray(threshold)
  are_numbers = thresholds.dtype.kind in "biuf" and thresholds.ndim <= 1
  if not are_numbers or not np.all((thresholds >= 0) & (thresholds <= 1)):
    raise UserError(
      "threshold must be from 0 to 1, a number or a list with one for each row. Received: "
      f"{threshold!r:.60}. 1 means all layers."
    )
  return thresholds


def _one_for_each_row(thresholds: np.ndarray, num_rows: int) -> np.ndarray:
  """Thresholds float32 `[num_rows]`; raises `UserError` if there are more or fewer."""
  if thresholds.ndim and len(thresholds) != num_rows:
    raise UserError(
      f"Each row has one threshold. Received: {len(thresholds)} thresholds, and {num_rows} rows. "
      "Give as many, or one number for all."
    )
  return np.broadcast_to(thresholds, [num_rows]).astype(np.float32)


def _with_thresholds(batches: Iterable[Inputs], thresholds: np.ndarray) -> Iterator[Inputs]:
  """The batches with the thresholds of their rows; raises `UserError` if there are more or fewer."""
  batches = list(batches)
  counts = [len(batch["input_ids"]) for batch in batches]
  of_rows = _one_for_each_row(thresholds, sum(counts))
  begin = 0
  for batch, count in zip(batches, counts, strict=True):
    yield dict(batch, **{_THRESHOLD: of_rows[begin : begin + count]})
    begin += count


def _input_batches(batches: Any) -> Iterator[Inputs]:
  """The inputs of a data set, a `keras.utils.Sequence` or a generator."""
  elements = batches
  if isinstance(batches, keras.utils.Sequence):
    elements = (batches[number] for number in range(len(batches)))
  for element in elements:
    inputs, *_ = keras.utils.unpack_x_y_sample_weight(element)
    yield inputs
