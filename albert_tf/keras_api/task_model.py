"""Base class of the task models: an encoder with one head. `tasks.py` has the tasks."""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any, ClassVar

import keras
import tensorflow as tf

from albert_tf.checkpoints.checkpoint import Checkpoint
from albert_tf.checkpoints.load import ANY_HEAD
from albert_tf.configs import AlbertConfig
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.keras_api.heads import ClassificationHead
from albert_tf.keras_api.text_model import LoadPlan, Options, TextModel
from albert_tf.modeling import Encoder
from albert_tf.modeling.layers import resolve_seed, split_seed
from albert_tf.modeling.micro_batches import count_equal_parts, draw_depth, sum_over_micro_batches
from albert_tf.modeling.text_inputs import Inputs, integers, text_inputs

# Options of `from_pretrained` for `make_task`. The other fields follow from the class.
_TASK_OPTIONS = {field.name for field in dataclasses.fields(TaskSpec)} | {"num_labels", "problem"}
_TASK_OPTIONS -= {"format_version", "kind", "name", "max_seq_length"}
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
  # Of `train_depths`.
  depth_seed = 0
  _train_depths: tuple[int, ...] = ()
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
    **kwargs: Any,
  ):
    super().__init__(config, **kwargs)
    self.head_options = dict(head_options or {})
    self.encoder_options = dict(encoder_options or {})
    if task is None:
      labels = {"problem": problem, "num_labels": self.head_options.get("num_labels")}
      task = self.make_task(**{name: value for name, value in labels.items() if value})
    self.task = task
    self.export_kind = task.export_kind
    self.encoder = Encoder(config, **self.encoder_options, dtype=self.dtype_policy)
    # With low-rank additions only they and the head are trained.
    self.encoder.pooler.trainable = self._reads_pooler and not self.encoder.lora_rank
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
    names = super().option_names() | _TASK_OPTIONS | {"lora_rank"}
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
    options_by_group = {"encoder_options": ("lora_rank",), "head_options": cls.extra_options}
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

  def call(
    self,
    inputs: Inputs,
    training: bool = False,
    seed: tf.Tensor | None = None,
    depth: int | tf.Tensor | None = None,
  ) -> Any:
    # An input decides the dropout of fine-tuning, so that a resumed run repeats it.
    if seed is None and isinstance(inputs, Mapping) and DROPOUT_SEED in inputs:
      seed = integers(inputs[DROPOUT_SEED][0])
    seed = resolve_seed(seed, training=training)
    head_seed = None
    if self.task.has_head_dropout:
      seed, head_seed = split_seed(seed, 2)

    if training and depth is None and self.train_depths:
      step = tf.cast(tf.convert_to_tensor(self.optimizer.iterations), tf.int32)
      depth = draw_depth(self.train_depths, tf.stack([self.depth_seed, step]))
    encoded = self._encode(inputs, training=training, seed=seed, depth=depth)
    return self._answer(encoded, inputs, training=training, seed=head_seed)

  def _encode(self, inputs: Inputs, **options: Any) -> tf.Tensor:
    """The head's input: `[B, S, H]`, or the pooled output `[B, H]`."""
    texts = text_inputs(inputs)
    if self._joins_rows:
      length = texts["input_ids"].shape[-1]
      if length is None:
        length = tf.shape(texts["input_ids"])[-1]
      texts = {name: tf.reshape(tensor, [-1, length]) for name, tensor in texts.items()}
    if not self._reads_pooler:
      return self.encoder(texts, **options)["sequence_output"]
    # The pooler reads [CLS] alone, so the last block is computed for no other position.
    texts["read_positions"] = texts["input_ids"][:, :0]
    return self.encoder(texts, **options)["pooled_output"]

  def _answer(self, encoded: tf.Tensor, inputs: Inputs, **options: Any) -> Any:
    """The head's outputs for the inputs of the model."""
    return self.head(encoded, **options)

  def get_config(self) -> dict[str, Any]:
    config = super().get_config()
    config["task"] = dataclasses.asdict(self.task)
    config["head_options"] = dict(self.head_options)
    config["encoder_options"] = dict(self.encoder_options)
    return config

  @classmethod
  def from_config(cls, config: Options, custom_objects: Any = None) -> Any:
    task = TaskSpec.from_dict(config["task"], source="a saved model")
    return super().from_config(dict(config, task=task), custom_objects)
