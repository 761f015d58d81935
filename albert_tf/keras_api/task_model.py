"""Base class of the task models: an encoder with one head."""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from albert_tf.checkpoints.checkpoint import Checkpoint
from albert_tf.checkpoints.load import ANY_HEAD
from albert_tf.compat import keras
from albert_tf.configs import AlbertConfig
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.keras_api.text_model import LoadPlan, TextModel
from albert_tf.modeling import Encoder
from albert_tf.modeling.layers import resolve_seed, split_seed
from albert_tf.modeling.micro_batches import count_equal_parts, draw_depth, sum_over_micro_batches
from albert_tf.modeling.text_inputs import integers, text_inputs

WITHOUT_POOLER = f"{ANY_HEAD}|^bert/pooler/"  # New variables of models that do not use the pooler.
# Options of `from_pretrained`: fields of the task, and arguments of the class. Others are the head's.
_LABEL_OPTIONS = ("num_labels", "problem")  # A fine-tuned run has its own.
_TASK_OPTIONS = {*_LABEL_OPTIONS, *(field.name for field in dataclasses.fields(TaskSpec))}
_TASK_OPTIONS -= {"format_version", "kind", "name", "max_seq_length"}
_CLASS_OPTIONS = ("encoder_options", "dtype", "name", "preprocessor", "head_options")
DROPOUT_SEED = "dropout_seed"  # An input in training, int32 `[B, 2]`; its first row seeds the call.


def joined_rows(inputs: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
  """Reshapes `[B, C, S]` to `[B C, S]`; leaves `[B, S]`."""
  texts = text_inputs(inputs)
  dynamic, length = tf.shape(texts["input_ids"])[-1], texts["input_ids"].shape[-1]
  return {
    key: tf.reshape(value, [-1, dynamic if length is None else length])
    for key, value in texts.items()
  }


class TaskModel(TextModel):
  """A model with an encoder and a head, built by the constructor.

  Args:
    config: the encoder's configuration.
    task: the task, which decides the head and is saved with exports. None: made from `head_options`.
    problem: see `AlbertClassifier`.
    head_options: arguments of the head.
    encoder_options: arguments of `Encoder`.
    preprocessor: see `TextModel`.
  """

  task_kinds: ClassVar[tuple[str, ...]]  # Of `configs.task.TASK_KINDS`, the default first.
  task_defaults: ClassVar[Mapping[str, Any]] = {"name": "custom"}  # Fields of `TaskSpec`.
  own_options: ClassVar[
    tuple[str, ...]
  ] = ()  # Further arguments of `from_pretrained`: labels, and the head's.
  new_variables = ANY_HEAD
  gradient_accumulation_steps = 1  # Micro-batches of an update; set it before `fit`.
  depth_seed = 0  # Of `train_depths`.
  checkpoint_heads: tuple[str, ...] = ("classifier",)
  _train_depths: tuple[int, ...] = ()
  _head_dropout = True
  _reads_pooler = False  # If false, the pooler is not trained; checkpoints still hold it.

  def __init__(
    self,
    config: AlbertConfig,
    *,
    task: TaskSpec | None = None,
    problem: str | None = None,
    head_options: Mapping[str, Any] | None = None,
    encoder_options: Mapping[str, Any] | None = None,
    **kwargs: Any,
  ):
    super().__init__(config, **kwargs)
    self.head_options = dict(head_options or {})
    self.encoder_options = dict(encoder_options or {})
    given = {"num_labels": self.head_options.get("num_labels"), "problem": problem}
    self.task = task or self.make_task(**{name: value for name, value in given.items() if value})
    self.encoder = Encoder(config, **self.encoder_options, dtype=self.dtype_policy)
    self.encoder.pooler.trainable = self._reads_pooler and not self.encoder.lora_rank
    self.head = self._make_head(name="head", dtype=self.dtype_policy, **self.head_options)
    self.build()

  def _make_head(self, **options: Any) -> Any:
    raise NotImplementedError

  # ------------------------------------------------------------------ the task

  @classmethod
  def make_task(cls, **fields: Any) -> TaskSpec:
    """Makes a task for this class from fields of `TaskSpec`; `num_labels` may replace `label_names`."""
    return TaskSpec(**{"kind": cls.task_kinds[0], **cls.task_defaults, **fields})

  @classmethod
  def option_names(cls) -> set[str]:
    """See `TextModel.option_names`; fields of the task, and the class's own."""
    names = super().option_names() | _TASK_OPTIONS | {"lora_rank"}
    return (names - {"task", "trainable", *_LABEL_OPTIONS}) | set(cls.own_options)

  @property
  def export_kind(self) -> str:  # type: ignore[override]
    return self.task.export_kind

  @classmethod
  def plan_load(
    cls, checkpoint: Checkpoint, max_length: int | None, options: Mapping[str, Any]
  ) -> LoadPlan:
    """See `TextModel.plan_load`; a run fine-tuned for this class brings its task and its head."""
    task_fields = {name: value for name, value in options.items() if name in _TASK_OPTIONS}
    for name in ("label_names", "thresholds"):
      if name in task_fields and not isinstance(task_fields[name], str):
        task_fields[name] = tuple(task_fields[name])
    if max_length is not None:
      task_fields["max_seq_length"] = max_length

    saved_task = TaskSpec.find(checkpoint.directory)
    if saved_task is not None and saved_task.kind in cls.task_kinds:
      _refuse_other_labels(saved_task, task_fields, checkpoint.path)
      # Complete, except that some Hugging Face models have no pooler.
      may_be_missing = ""
      if not cls._reads_pooler:
        may_be_missing = "^bert/pooler/"
      changes = {name: value for name, value in task_fields.items() if name not in _LABEL_OPTIONS}
      task = dataclasses.replace(saved_task, **changes)
      return cls._make_plan(task, options, checkpoint.variables, may_be_missing)

    task_fields.setdefault("max_seq_length", checkpoint.config.max_position_embeddings)
    variables = checkpoint.variables
    if saved_task is not None:
      # Fine-tuned for another class. Two heads may have the same names and shapes, so only the
      # encoder is taken.
      variables = {name: value for name, value in variables.items() if name.startswith("bert/")}
    return cls._make_plan(cls.make_task(**task_fields), options, variables, cls.new_variables)

  @classmethod
  def _make_plan(
    cls,
    task: TaskSpec,
    options: Mapping[str, Any],
    variables: Mapping[str, np.ndarray],
    may_be_missing: str,
  ) -> LoadPlan:
    arguments = {name: value for name, value in options.items() if name in _CLASS_OPTIONS}
    encoder_options = dict(options.get("encoder_options") or {})
    if "lora_rank" in options:
      encoder_options["lora_rank"] = options["lora_rank"]
    head_options = dict(options.get("head_options") or {})
    for name, value in options.items():
      if name not in (*_CLASS_OPTIONS, *_TASK_OPTIONS, "lora_rank"):
        head_options[name] = value
    return LoadPlan(
      variables=variables,
      may_be_missing=may_be_missing,
      lengths={
        "max_length": task.max_seq_length,
        "max_qa_length": task.max_qa_length,
        "max_query_length": task.max_query_length,
      },
      options={
        **arguments,
        "task": task,
        "encoder_options": encoder_options,
        "head_options": head_options,
      },
    )

  # ------------------------------------------------------------------ the model

  @property
  def train_depths(self) -> Sequence[int]:
    """Each update of `fit` runs one of these numbers of layers, drawn by `depth_seed`."""
    return self._train_depths

  @train_depths.setter
  def train_depths(self, depths: Sequence[int]) -> None:
    self.config.check_train_depths(depths)
    self._train_depths = tuple(depths)

  def train_step(self, data: Any) -> dict[str, Any]:
    """`keras.Model.train_step`, which may compute a batch as several micro-batches."""
    if self.gradient_accumulation_steps == 1:
      return super().train_step(data)
    variables = self.trainable_variables
    batch = [values for values in keras.utils.unpack_x_y_sample_weight(data) if values is not None]
    count = count_equal_parts(tf.nest.flatten(batch)[0], at_least=self.gradient_accumulation_steps)

    def micro_batch(part: Any, i: tf.Tensor) -> list[tf.Tensor]:
      del i  # Each micro-batch has its own dropout seeds.
      with tf.GradientTape() as tape:
        loss = self.micro_batch_loss(*part)
        loss /= tf.cast(count, loss.dtype)
      return [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, variables)]

    zeros = [tf.zeros(variable.shape, variable.dtype) for variable in variables]
    gradients = sum_over_micro_batches(micro_batch, batch, count, zeros)
    self.apply_scaled_gradients(gradients, variables)
    return self.shown_metrics(self.get_metrics_result())

  def call(
    self,
    inputs: Mapping[str, tf.Tensor],
    training: bool = False,
    seed: tf.Tensor | None = None,
    depth: int | tf.Tensor | None = None,
  ) -> Any:
    if seed is None and isinstance(inputs, Mapping) and DROPOUT_SEED in inputs:
      seed = integers(inputs[DROPOUT_SEED][0])
    seed = resolve_seed(seed, training=training)
    encoder_seed, head_seed = split_seed(seed, 2) if self._head_dropout else (seed, None)
    if training and depth is None and self.train_depths:
      step = tf.cast(tf.convert_to_tensor(self.optimizer.iterations), tf.int32)
      depth = draw_depth(self.train_depths, tf.stack([self.depth_seed, step]))
    encoded = self._encode(inputs, training=training, seed=encoder_seed, depth=depth)
    return self._answer(encoded, inputs, training=training, seed=head_seed)

  def _encode(self, inputs: Mapping[str, tf.Tensor], **options: Any) -> tf.Tensor:
    """The head's input: `[B, S, H]`, or the pooled output `[B, H]`, for which the last block computes [CLS] only."""
    texts = text_inputs(inputs)
    if not self._reads_pooler:
      return self.encoder(texts, **options)["sequence_output"]
    nowhere = {"read_positions": texts["input_ids"][:, :0]}
    return self.encoder({**texts, **nowhere}, **options)["pooled_output"]

  def _answer(self, encoded: tf.Tensor, inputs: Mapping[str, tf.Tensor], **options: Any) -> Any:
    """The head's outputs for the inputs of the model."""
    return self.head(encoded, **options)

  def get_config(self) -> dict[str, Any]:
    return {
      **super().get_config(),
      "task": dataclasses.asdict(self.task),
      "head_options": dict(self.head_options),
      "encoder_options": dict(self.encoder_options),
    }

  @classmethod
  def from_config(cls, config: Mapping[str, Any], custom_objects: Any = None) -> Any:
    task = TaskSpec.from_dict(config["task"], source="a saved model")
    return super().from_config({**config, "task": task}, custom_objects)


def _refuse_other_labels(saved_task: TaskSpec, task_fields: Mapping[str, Any], path: str) -> None:
  """Raises `UserError` where the caller asks for other labels than those of a fine-tuned run."""
  of_run = {"num_labels": saved_task.num_labels, "problem": saved_task.kind}
  for name in _LABEL_OPTIONS:
    if name in task_fields and task_fields[name] != of_run[name]:
      raise UserError(
        f"A fine-tuned run has its own labels. Received: {name}={task_fields[name]}, and {path} with "
        f"{of_run[name]}. Leave {name} out, or name the run that this one was fine-tuned from."
      )
