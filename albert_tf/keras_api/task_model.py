"""Base class of the task models: an encoder with one head. `tasks.py` has the tasks."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from albert_tf.checkpoints.checkpoint import Checkpoint
from albert_tf.checkpoints.load import ANY_HEAD
from albert_tf.compat import device_kind
from albert_tf.configs import AlbertConfig
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.keras_api.heads import ClassificationHead
from albert_tf.keras_api.text_model import LoadPlan, Options, TextModel
from albert_tf.modeling import Encoder
from albert_tf.modeling.early_exit import EXIT_RULES, EarlyOutputs, answer_early
from albert_tf.modeling.layers import resolve_seed, split_seed
from albert_tf.modeling.micro_batches import count_equal_parts, sum_over_micro_batches
from albert_tf.modeling.text_inputs import Inputs, integers, text_inputs

# Options of `from_pretrained` for `make_task`. The other fields follow from the class.
_TASK_OPTIONS = {field.name for field in dataclasses.fields(TaskSpec)} | {"num_labels", "problem"}
_TASK_OPTIONS -= {"format_version", "kind", "name", "max_seq_length", "exit_depths"}
# An input in training, int32 `[B, 2]`; its first row seeds the call.
DROPOUT_SEED = "dropout_seed"


class TaskModel(TextModel):
  """A model with an encoder and a head, built by the constructor.

  Args:
    config: the encoder's configuration.
    task: the task, which decides the head and is saved with exports. None: made from
      `head_options`.
    problem: see `AlbertClassifier`.
    head_options: arguments of the head.
    encoder_options: arguments of `Encoder`.
    train_depths: numbers of layers, ascending to the model's own. `fit` runs the encoder once, to
      the last, and trains the head to read each; see `predictions_and_loss`.
    depth_distillation: W of the same equation.
    preprocessor: see `TextModel`.
  """

  # Of `configs.task.TASK_KINDS`, the default first.
  task_kinds: ClassVar[tuple[str, ...]]
  # Fields of a new `TaskSpec`.
  task_defaults: ClassVar[dict[str, Any]] = {"name": "custom"}
  # Further arguments of `from_pretrained`: labels, and the head's.
  extra_options: ClassVar[tuple[str, ...]] = ()
  may_be_missing = (ANY_HEAD,)
  checkpoint_heads: tuple[str, ...] = ("classifier",)
  # Micro-batches of an update; set it before `fit`.
  gradient_accumulation_steps = 1
  # If false, the pooler is not trained; checkpoints still hold it.
  _reads_pooler = False
  # Whether an example may have several rows, `[B, C, S]`; the encoder then gets `[B C, S]`.
  _joins_rows = False

  def __init__(
    self,
    config: AlbertConfig,
    *,
    task: TaskSpec | None = None,
    problem: str | None = None,
    head_options: Options | None = None,
    encoder_options: Options | None = None,
    train_depths: Sequence[int] = (),
    depth_distillation: float = 0.0,
    **kwargs: Any,
  ):
    super().__init__(config, **kwargs)
    self.head_options = dict(head_options or {})
    self.encoder_options = dict(encoder_options or {})
    if task is None:
      labels = {"problem": problem, "num_labels": self.head_options.get("num_labels")}
      task = self.make_task(**{name: value for name, value in labels.items() if value})
    if train_depths:
      config.check_train_depths(train_depths)
      task = dataclasses.replace(task, exit_depths=tuple(sorted(train_depths)))
    self.train_depths = tuple(sorted(train_depths))
    self.depth_distillation = depth_distillation
    self._early_step: Any = None  # Made by the first `predict_early`.
    if depth_distillation and not (train_depths and task.kind in EXIT_RULES):
      raise UserError(
        f"depth_distillation is for train_depths and for {', '.join(EXIT_RULES)}. Received: "
        f"{depth_distillation} for {task.kind}, train_depths={list(train_depths)}. Leave it out."
      )
    self.task = task
    self.export_kind = task.export_kind
    self.encoder = Encoder(config, **self.encoder_options, dtype=self.dtype_policy)
    self.encoder.pooler.trainable = self._reads_pooler
    self.head = self._make_head(name="head", dtype=self.dtype_policy, **self.head_options)
    self.build()

  def _make_head(self, **options: Any) -> Any:
    options.setdefault("num_labels", self.task.num_labels)
    head = ClassificationHead(self.config, **options)
    # For Keras' summary: `[B, S, C]`, or `[B, C]`.
    if self.per_piece:
      head.output_shape = (None,) + head.output_shape
    return head

  # ------------------------------------------------------------------ from_pretrained

  @classmethod
  def make_task(cls, **fields: Any) -> TaskSpec:
    """Makes a task for this class from fields of `TaskSpec`."""
    return TaskSpec(**{"kind": cls.task_kinds[0]} | cls.task_defaults | fields)

  @classmethod
  def option_names(cls) -> set[str]:
    """See `TextModel.option_names`; fields of the task, and the class's own."""
    names = super().option_names() | _TASK_OPTIONS | {"padding_at_end"}
    return names.difference(["task", "trainable", "num_labels", "problem"]).union(cls.extra_options)

  @classmethod
  def plan_load(cls, checkpoint: Checkpoint, max_length: int | None, options: Options) -> LoadPlan:
    """See `TextModel.plan_load`; a run fine-tuned for this class brings its task and its head."""
    # Options are fields of the task, arguments of the class, or those of encoder and head.
    arguments = dict(options)
    task_fields = {}
    for name in _TASK_OPTIONS.intersection(options):
      task_fields[name] = arguments.pop(name)
    for name in ("label_names", "thresholds"):
      if name in task_fields and not isinstance(task_fields[name], str):
        task_fields[name] = tuple(task_fields[name])  # Also of an array.
    options_by_group = {
      "encoder_options": ("padding_at_end",),
      "head_options": cls.extra_options,
    }
    for group, names in options_by_group.items():
      moved = {name: arguments.pop(name) for name in names if name in arguments}
      arguments[group] = dict(arguments.get(group) or {}, **moved)

    # The task: that of a run which was fine-tuned for this class, else a new one.
    positions = checkpoint.config.max_position_embeddings
    if max_length is not None:
      task_fields["max_seq_length"] = max_length
    variables = checkpoint.variables
    may_be_missing: tuple[str, ...] = ()
    saved_task = TaskSpec.find(checkpoint.directory)
    if saved_task is not None and saved_task.kind in cls.task_kinds:
      labels = {"num_labels": saved_task.num_labels, "problem": saved_task.kind}
      for name, of_run in labels.items():
        requested = task_fields.pop(name, of_run)
        if requested != of_run:
          raise UserError(
            f"A fine-tuned run has its own labels. Received: {name}={requested}, and "
            f"{checkpoint.path} with {of_run}. Leave {name} out, or name the run that this one was "
            "fine-tuned from."
          )
      task = dataclasses.replace(saved_task, **task_fields)
    else:
      task = cls.make_task(**{"max_seq_length": positions} | task_fields)
      may_be_missing = cls.may_be_missing
      # Fine-tuned for another class. Two heads may have the same names and shapes, so only the
      # encoder is taken.
      if saved_task is not None:
        variables = {name: value for name, value in variables.items() if name.startswith("bert/")}

    # Some models of Hugging Face have no pooler.
    if not cls._reads_pooler:
      may_be_missing += ("^bert/pooler/",)
    # A task of Hugging Face may name a greater length than the model has positions.
    lengths = {
      "max_length": min(task.max_seq_length, positions),
      "max_qa_length": task.max_qa_length,
      "max_query_length": task.max_query_length,
    }
    arguments["task"] = task
    return LoadPlan(variables, may_be_missing, lengths, arguments)

  # ------------------------------------------------------------------ the model

  def train_step(self, data: Any) -> dict[str, Any]:
    """`keras.Model.train_step`, which may have several micro-batches and several depths."""
    if self.gradient_accumulation_steps == 1 and not self.train_depths:
      return super().train_step(data)
    variables = self.trainable_variables
    batch = [values for values in keras.utils.unpack_x_y_sample_weight(data) if values is not None]
    # As many equal parts as are needed: 30 rows for 4 are 5 micro-batches of 6.
    count = count_equal_parts(tf.nest.flatten(batch)[0], at_least=self.gradient_accumulation_steps)

    def micro_batch(rows: Any, number: tf.Tensor) -> list[tf.Tensor]:
      del number  # Each micro-batch has its own dropout seeds.
      with tf.GradientTape() as tape:
        loss = self.micro_batch_loss(*rows)
        loss /= tf.cast(count, loss.dtype)
      # Dense: a loop cannot add up the gradients of lookups.
      return [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, variables)]

    zeros = [tf.zeros(variable.shape, variable.dtype) for variable in variables]
    gradients = sum_over_micro_batches(micro_batch, batch, count, zeros)
    self.apply_scaled_gradients(gradients, variables)
    return self.shown_metrics(self.get_metrics_result())

  def predictions_and_loss(self, x: Any, y: Any, sample_weight: Any) -> tuple[Any, tf.Tensor]:
    r"""The deepest predictions and, with `train_depths`, the loss over all of them.

    $L = \sum_d d\, (L_d + W D_d) / \sum_d d$, where $D_d$ is the distance of depth d's answers from
    the deepest ones, which get no gradient from it; see `ExitRule`.

    Reference: arXiv 2006.04152, equation 5.
    """
    if not self.train_depths:
      return super().predictions_and_loss(x, y, sample_weight)
    outputs = self.outputs_at(self.train_depths, x, training=True)
    deepest = outputs[-1]
    loss = 0.0
    for depth, of_depth in zip(self.train_depths, outputs, strict=True):
      loss_of_depth = self.compute_loss(x, y, of_depth, sample_weight)
      if self.depth_distillation and of_depth is not deepest:
        rule = EXIT_RULES[self.task.kind]
        distances = rule.distance(of_depth, tf.stop_gradient(deepest))
        if sample_weight is not None:
          distances *= tf.cast(tf.reshape(sample_weight, [-1]), distances.dtype)
        # As Keras' losses: the mean of this replica's rows, for a sum over the replicas.
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        loss_of_depth += self.depth_distillation * tf.reduce_mean(distances) / replicas
      loss += depth / sum(self.train_depths) * loss_of_depth
    return deepest, loss

  def call(
    self,
    inputs: Inputs,
    training: bool = False,
    seed: tf.Tensor | None = None,
    depth: int | None = None,
  ) -> Any:
    return self.outputs_at((depth,), inputs, training=training, seed=seed)[0]

  def outputs_at(
    self,
    depths: Sequence[Any],
    inputs: Inputs,
    training: bool = False,
    seed: tf.Tensor | None = None,
  ) -> list[Any]:
    """The outputs of `call` after each of these numbers of layers, ascending, in one pass."""
    # An input decides the dropout of fine-tuning, so that a resumed run repeats it.
    if seed is None and isinstance(inputs, Mapping) and DROPOUT_SEED in inputs:
      seed = integers(inputs[DROPOUT_SEED][0])
    seed = resolve_seed(seed, training=training)
    head_seed = None
    if self.task.has_head_dropout:
      seed, head_seed = split_seed(seed, 2)

    encoded = self.encoder(
      self._encoder_inputs(inputs),
      training=training,
      seed=seed,
      depth=depths[-1],
      also_read=depths[:-1],
    )
    return [
      self._answer(self._head_input(of_depth), inputs, training=training, seed=head_seed)
      for of_depth in encoded.get("shallower", []) + [encoded]
    ]

  def _encoder_inputs(self, inputs: Inputs) -> dict[str, tf.Tensor]:
    texts = text_inputs(inputs)
    if self._joins_rows:
      length = texts["input_ids"].shape[-1]
      if length is None:
        length = tf.shape(texts["input_ids"])[-1]
      texts = {name: tf.reshape(tensor, [-1, length]) for name, tensor in texts.items()}
    if self._reads_pooler:
      # The pooler reads [CLS] alone, so the last block is computed for no other position.
      texts["read_positions"] = texts["input_ids"][:, :0]
    return texts

  def _head_input(self, encoded: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """`[B, S, H]`, or the pooled output `[B, H]`."""
    return encoded["pooled_output" if self._reads_pooler else "sequence_output"]

  def _answer(self, encoded: tf.Tensor, inputs: Inputs, **options: Any) -> Any:
    """The head's outputs for the inputs of the model."""
    return self.head(encoded, **options)

  # ------------------------------------------------------------------ early exit

  def predict_early(
    self, x: Any, *, threshold: float | None = None, batch_size: int = 32
  ) -> EarlyOutputs:
    """As `predict`, but each text stops at the first trained depth that is sure.

    Args:
      x: texts, ids, or a data set of batches of them, as for `predict`.
      threshold: the confidence above which a text stops, in [0, 1]; see `ExitRule`. 1 means all
        layers. Default: the task's, which `run_glue.py --train_depths` chooses.
      batch_size: texts that start together; a data set has its own.

    Returns:
      Arrays: the outputs, those of `predict` at these depths, and `layers` int32 `[B]`.

    Raises:
      UserError: the model was trained at one depth only, or cannot stop early.
    """
    if threshold is None:
      threshold = self.task.exit_threshold
    if not 0 <= threshold <= 1:
      raise UserError(f"threshold must be from 0 to 1. Received: {threshold}. 1 means all layers.")
    if device_kind(self.distribute_strategy) == "tpu":
      raise UserError(
        "On a TPU all shapes are constant, so no text can leave a batch. Received: predict_early. "
        "Use predict of a model with fewer layers: from_pretrained(…, num_hidden_layers=N)."
      )
    self._check_exits()
    inputs, _ = self._prepared(x)
    if self._early_step is None:
      self._early_step = tf.function(self.early_outputs, autograph=False, reduce_retracing=True)
    of_batches = [
      self._early_step(batch, tf.constant(threshold, tf.float32))
      for batch in _batches(inputs, batch_size)
    ]
    return EarlyOutputs(
      outputs=np.concatenate([of_batch.outputs for of_batch in of_batches]),
      layers=np.concatenate([of_batch.layers for of_batch in of_batches]),
    )

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
      threshold: float32 scalar, `[1]` or `[B]`.
      depths: as of `exit_depths`; None: those of the model.
    """
    texts = self._encoder_inputs(inputs)
    # A row may go on after any depth, so all its positions are computed.
    texts.pop("read_positions", None)
    num_rows = tf.shape(texts["input_ids"])[0]

    def head(read: Mapping[str, tf.Tensor], mask: tf.Tensor) -> tf.Tensor:
      return self._answer(self._head_input(read), {"input_ids": mask, "input_mask": mask})

    early = answer_early(
      self.encoder,
      texts,
      depths=depths or self.exit_depths(),
      head=head,
      rule=EXIT_RULES[self.task.kind],
      threshold=tf.broadcast_to(threshold, [num_rows]),
      reads_cls_alone=self._reads_pooler,
    )
    shape = tf.shape(inputs["input_ids"])[:-1]  # [B], or [B, N] of N texts in each example.
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


def _batches(inputs: Any, batch_size: int) -> Iterator[Inputs]:
  """Batches of ids by name, of arrays or of a data set that has them; no text is one empty batch."""
  if isinstance(inputs, tf.data.Dataset):
    for element in inputs:
      batch, *_ = keras.utils.unpack_x_y_sample_weight(element)
      yield batch
    return
  num_rows = len(inputs["input_ids"])
  for first in range(0, max(1, num_rows), batch_size):
    yield {name: rows[first : first + batch_size] for name, rows in inputs.items()}
