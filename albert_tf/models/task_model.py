"""Base class of the task models: an encoder with one head."""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any, ClassVar

import tensorflow as tf

from albert_tf.checkpoints import ANY_HEAD, Checkpoint
from albert_tf.compat import keras, raw_variable
from albert_tf.configs import AlbertConfig
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.modeling import Encoder
from albert_tf.modeling.layers import resolve_seed, split_seed
from albert_tf.modeling.micro_batches import draw_depth, sum_over_micro_batches
from albert_tf.modeling.text_inputs import integers, text_inputs
from albert_tf.models.text_model import TextModel

WITHOUT_POOLER = f"{ANY_HEAD}|^bert/pooler/"  # New variables of models that do not use the pooler.
_OF_TASK = {field.name for field in dataclasses.fields(TaskSpec)} - {"kind", "name", "max_seq_length"}
DROPOUT_SEED = "dropout_seed"  # An input in training, int32 `[B, 2]`; its first row seeds the call.


def joined_rows(inputs: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
  """Reshapes `[B, C, S]` to `[B C, S]`; leaves `[B, S]`."""
  texts = text_inputs(inputs)
  dynamic, length = tf.shape(texts["input_ids"])[-1], texts["input_ids"].shape[-1]
  return {key: tf.reshape(value, [-1, dynamic if length is None else length]) for key, value in texts.items()}


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

  task_kind: str  # See `configs.task.TASK_KINDS`.
  task_defaults: ClassVar[Mapping[str, Any]] = {"name": "custom"}  # Fields of `TaskSpec`.
  new_variables = ANY_HEAD
  # Micro-batches of an update; set it before `fit`. Metrics other than the loss need 1.
  gradient_accumulation_steps = 1
  train_depths: Sequence[int] = ()  # Each update of `fit` runs one of these numbers of layers, by this seed.
  depth_seed = 0
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
    return TaskSpec(**{"kind": cls.task_kind, **cls.task_defaults, **fields})

  @property
  def export_kind(self) -> str:  # type: ignore[override]
    return self.task.export_kind

  @classmethod
  def _of_checkpoint(
    cls, checkpoint: Checkpoint, max_length: int | None, options: dict[str, Any]
  ) -> tuple[Checkpoint, dict[str, Any], dict[str, Any], str]:
    """Takes the task of a fine-tuned run of this class; else makes one from the fields of `TaskSpec`."""
    limit = checkpoint.config.max_position_embeddings
    given = {name: options.pop(name) for name in ("num_labels", "problem", *_OF_TASK) if name in options}
    given |= {name: tuple(given[name]) for name in ("label_names", "thresholds") if name in given}
    saved = TaskSpec.find(checkpoint.directory)
    is_own = saved is not None and saved.model == f"{cls.__module__}.{cls.__name__}"
    if saved is not None and is_own:
      of_run = {"num_labels": saved.num_labels, "problem": saved.kind}
      task = dataclasses.replace(saved, **{k: v for k, v in given.items() if k not in of_run})
      for name, value in of_run.items():
        if given.get(name, value) != value:
          raise UserError(
            f"A fine-tuned run has its own labels. Received: {name}={given[name]}, and {checkpoint.path} with {value}. "
            f"Leave {name} out, or name the run that this one was fine-tuned from."
          )
    else:
      task = cls.make_task(max_seq_length=max_length or limit, **given)
      if saved is not None:  # Only the encoder: two heads may have the same names and shapes.
        encoder = {name: value for name, value in checkpoint.variables.items() if name.startswith("bert/")}
        checkpoint = dataclasses.replace(checkpoint, variables=encoder)
    if max_length:
      task = dataclasses.replace(task, max_seq_length=max_length)
    if "lora_rank" in options:
      rank = {"lora_rank": options.pop("lora_rank")}
      options["encoder_options"] = {**options.get("encoder_options", {}), **rank}
    known = ("encoder_options", "dtype", "name", "preprocessor", "head_options")
    head = {name: options.pop(name) for name in list(options) if name not in known}
    options |= {"task": task, "head_options": {**options.get("head_options", {}), **head}}
    sizes = {"max_qa_length": task.max_qa_length, "max_query_length": task.max_query_length}
    new = cls.new_variables
    if is_own:  # Complete, except that some Hugging Face models have no pooler.
      new = "" if cls._reads_pooler else "^bert/pooler/"
    return checkpoint, {"max_length": task.max_seq_length, **sizes}, options, new

  # ------------------------------------------------------------------ the model

  def train_step(self, data: Any) -> dict[str, Any]:
    """`keras.Model.train_step`, which may compute a batch as several micro-batches."""
    count = self.gradient_accumulation_steps
    if count == 1:
      return super().train_step(data)
    variables = self.trainable_variables

    def micro_batch(part: Any, i: tf.Tensor) -> list[tf.Tensor]:
      del i  # Each micro-batch has its own dropout seeds.
      with tf.GradientTape() as tape:
        loss = self.noted_loss(*part) / count
      return [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, variables)]

    zeros = [tf.zeros(variable.shape, variable.dtype) for variable in variables]
    batch = [part for part in keras.utils.unpack_x_y_sample_weight(data) if part is not None]
    gradients = sum_over_micro_batches(micro_batch, batch, count, zeros)
    self.optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))
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
      step = tf.cast(raw_variable(self.optimizer.iterations), tf.int32)
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

  def checkpoint_items(self) -> dict[str, Any]:
    return {"bert": self.encoder, **self.head.checkpoint_items()}

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
