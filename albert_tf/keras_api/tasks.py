"""Models of downstream tasks: classification, multiple choice, tagging, question answering."""

from collections.abc import Mapping
import dataclasses
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from albert_tf.compat import keras
from albert_tf.configs import AlbertConfig
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError, whole_number
from albert_tf.keras_api import answers
from albert_tf.keras_api.answer_positions import answer_positions
from albert_tf.keras_api.heads import ClassificationHead, SpanHead, Squad2Head, squad_losses
from albert_tf.keras_api.labels import as_array, class_ids, class_weights, finite, multi_hot
from albert_tf.keras_api.sentence_vectors import AlbertSentenceEncoder
from albert_tf.keras_api.task_model import WITHOUT_POOLER, TaskModel, joined_rows
from albert_tf.modeling.text_inputs import integers, text_inputs
from albert_tf.tokenization.graph_inputs import holds_text

_MOST_LABELS = 1 << 20


class _WithLabels(TaskModel):
  """A model with a `ClassificationHead`."""

  own_options = ("num_labels", "problem", "classifier_dropout")

  def compile(self, *args: Any, **kwargs: Any) -> None:
    """`keras.Model.compile`; raises `UserError` for a cross-entropy that does not read logits."""
    super().compile(*args, **kwargs)
    loss = self._loss_object()
    reads = loss.get_config() if isinstance(loss, keras.losses.Loss) else {}
    if not reads.get("from_logits", not getattr(loss, "__name__", "").endswith("crossentropy")):
      raise UserError(
        f"A loss of this model reads logits. Received: {self.loss!r}. Use Keras' class of it, with from_logits=True."
      )

  def _loss_object(self) -> Any:
    loss = getattr(self, "loss", None)
    return keras.losses.get(loss) if isinstance(loss, str) else loss

  def _make_head(self, **options: Any) -> Any:
    return ClassificationHead(self.config, **{"num_labels": self.task.num_labels, **options})

  @classmethod
  def make_task(
    cls, *, num_labels: int | None = None, problem: str | None = None, **fields: Any
  ) -> TaskSpec:
    if problem and problem not in cls.task_kinds:
      raise UserError(f"problem must be one of {', '.join(cls.task_kinds)}. Received: {problem!r}.")
    names = fields.pop("label_names", ())
    if num_labels is not None:
      num_labels = whole_number(num_labels, "num_labels", minimum=1, maximum=_MOST_LABELS)
    num_labels = num_labels or len(names) or int(problem == "regression")
    if not num_labels:
      raise UserError(
        f"{cls.__name__} needs its labels. Received: neither num_labels nor label_names, and no run that was "
        "fine-tuned for this. Give one of them; num_labels=1 means a value."
      )
    if names and len(names) != num_labels:
      raise UserError(
        f"num_labels and label_names must agree. Received: {num_labels}, and {len(names)} names. Leave num_labels out."
      )
    names = names or tuple(str(number) for number in range(num_labels))
    kind = problem or cls.task_kinds[0]
    if not problem and num_labels == 1 and "regression" in cls.task_kinds:
      kind = "regression"
    return super().make_task(kind=kind, label_names=() if kind == "regression" else names, **fields)


@keras.saving.register_keras_serializable("albert_tf")
class AlbertClassifier(_WithLabels):
  """Classification of a text or of a pair of texts or, with one label, regression.

  Args:
    config: the encoder's configuration.
    head_options: `num_labels`, `classifier_dropout`; see `ClassificationHead`.
    problem: "classification" (one label), "multi_label" (any number of labels) or "regression". Default: regression
      with one label, else classification. `compile` with a binary cross-entropy makes it "multi_label".

  Call args:
    inputs: those of `AlbertEncoder`; with a preprocessor texts `[B]`, or a tuple of two for pairs.

  Returns:
    Logits, float32 `[B, C]`.

  Example:
    >>> model = AlbertClassifier.from_pretrained("run/", num_labels=2)
    >>> model.predict(["A text.", "Another."])
  """

  task_kinds = ("classification", "multi_label", "regression")
  _reads_pooler = True

  def compile(self, *args: Any, **kwargs: Any) -> None:
    """`keras.Model.compile`; a binary cross-entropy makes the problem "multi_label"."""
    super().compile(*args, **kwargs)
    binary = (keras.losses.BinaryCrossentropy, keras.losses.BinaryFocalCrossentropy)
    if isinstance(self._loss_object(), binary) and self.task.kind != "multi_label":
      names = self.task.label_names or ("1",)
      self.task = dataclasses.replace(self.task, kind="multi_label", label_names=names)

  def checked_class_weight(self, weights: Any) -> Mapping[int, float]:
    """Keys may be class names."""
    if self.task.kind == "classification":
      return class_weights(weights, self.task.label_names)
    if self.task.kind == "multi_label" and self.task.num_labels == 1:
      return class_weights(weights, ("0", "1"))
    raise UserError(
      f"class_weight is for classes that exclude each other. Received: a model of {self.task.kind}. Leave it out."
    )

  def predict_labels(self, texts: Any, *, batch_size: int = 32) -> list[answers.PredictedLabels]:
    """The labels of texts, or of a tuple of two for pairs, as the SavedModel gives them."""
    if self.task.kind == "regression":
      raise UserError(
        "predict_labels needs labels. Received: a model of a value (num_labels=1). Use predict."
      )
    rows = answers.served_rows(self, self.columns(texts), batch_size=batch_size)
    return [answers.predicted_labels(row) for row in rows]

  def checked_labels(self, labels: Any, inputs: Any) -> Any:
    """Converts class names to ids; a row of one value for each class is left to the loss."""
    names = self.task.label_names
    if self.task.kind == "multi_label":
      return multi_hot(labels, names)
    array = as_array(labels, "Labels")
    has_one_column = array.size == len(array)
    if self.task.kind == "regression":
      return finite(array, "Labels")
    if has_one_column:
      return class_ids(array, len(names), names=names).reshape(-1)
    if isinstance(self._loss_object(), keras.losses.SparseCategoricalCrossentropy):
      raise UserError(
        f"{type(self.loss).__name__} reads one class of each text, [n]. Received: labels {list(array.shape)}. Give "
        "the numbers of the classes, or compile with a CategoricalCrossentropy."
      )
    return finite(array, "Labels")


@keras.saving.register_keras_serializable("albert_tf")
class AlbertMultipleChoice(TaskModel):
  """Multiple choice, as in RACE: one score for each choice.

  Call args:
    inputs: those of `AlbertEncoder`, each `[B, C, S]`; with a preprocessor `context`, `question` `[B]` and `choices`
      `[B, C]`.

  Returns:
    Logits over the choices, float32 `[B, C]`.
  """

  task_kinds = ("multiple_choice",)
  text_kind = "choices"
  own_options = ("classifier_dropout",)
  _reads_pooler = True

  def _make_head(self, **options: Any) -> Any:
    return ClassificationHead(self.config, num_labels=1, **options)

  def _encode(self, inputs: Mapping[str, tf.Tensor], **options: Any) -> tf.Tensor:
    return super()._encode(joined_rows(inputs), **options)

  def _answer(
    self, encoded: tf.Tensor, inputs: Mapping[str, tf.Tensor], **options: Any
  ) -> tf.Tensor:
    return tf.reshape(
      self.head(encoded, **options), tf.shape(inputs["input_ids"])[:2]
    )  # [B C, 1] → [B, C]

  def checked_labels(self, labels: Any, inputs: Any) -> Any:
    """The numbers of the right choices."""
    return class_ids(labels, np.shape(inputs["input_ids"])[1])


@keras.saving.register_keras_serializable("albert_tf")
class AlbertTagger(_WithLabels):
  """Tagging: logits for every token or every word.

  Args:
    config: the encoder's configuration.
    head_options: those of `AlbertClassifier`.

  Call args:
    inputs: those of `AlbertEncoder`, and for tags of words `word_positions` int32 `[B, N]`; with a preprocessor
      the `words` of texts, `[B, N]`, padded with "".

  Returns:
    Logits, float32 `[B, S, C]`, or `[B, N, C]` of words.
  """

  task_kinds = ("token_classification",)
  text_kind = "words"
  per_piece = True
  new_variables = WITHOUT_POOLER

  def _make_head(self, **options: Any) -> Any:
    head = super()._make_head(**options)
    head.output_shape = (None, None, self.task.num_labels)
    return head

  def _encode(self, inputs: Mapping[str, tf.Tensor], **options: Any) -> tf.Tensor:
    if "word_positions" not in inputs:
      return super()._encode(inputs, **options)
    words = {"read_positions": integers(inputs["word_positions"])}
    return self.encoder({**text_inputs(inputs), **words}, **options)["sequence_output"]

  def tag(self, texts: Any, *, batch_size: int = 32, **settings: Any) -> list[answers.TaggedText]:
    """Words and entities of whole texts `[B]`, as the SavedModel of these `ExportSettings` gives them."""
    columns = self.columns(texts, kind="tagged_text")
    rows = answers.served_rows(self, columns, batch_size=batch_size, **settings)
    return [answers.tagged_text(row) for row in rows]

  def checked_labels(self, labels: Any, inputs: Any) -> Any:
    """Converts names of tags to ids; -1 is allowed if the loss ignores it. Other losses may read other numbers."""
    loss = self._loss_object()
    if not isinstance(loss, keras.losses.SparseCategoricalCrossentropy):
      return super().checked_labels(labels, inputs)
    names = self.task.label_names
    return class_ids(labels, len(names), names=names, ignored=loss.get_config().get("ignore_class"))


@keras.saving.register_keras_serializable("albert_tf")
class AlbertQuestionAnswering(TaskModel):
  """Question answering as in SQuAD 1.1, or in 2.0 with unanswerable questions.

  Args:
    config: the encoder's configuration.
    task: its `squad_version` decides the head, `SpanHead` or `Squad2Head`. Without a task it is "2.0".

  Call args:
    inputs: those of `AlbertEncoder`; for 2.0 `p_mask` `[B, S]` and, for training, `start_positions` int32 `[B]`. With
      a preprocessor `question` and `context` `[B]`, cut to one window; `answer` and exports read the whole context.

  Returns:
    1.1: `start_logits` and `end_logits`, float32 `[B, S]`. 2.0: see `Squad2Head`.
  """

  task_kinds = ("question_answering",)
  task_defaults: ClassVar = {"name": "squad", "squad_version": "2.0"}
  text_kind = "question"
  own_options = ("classifier_dropout", "start_n_top", "end_n_top")
  per_piece = True
  new_variables = WITHOUT_POOLER

  @property
  def _is_span(self) -> bool:
    return self.task.squad_version == "1.1"

  def _make_head(self, **options: Any) -> Any:
    self._head_dropout = not self._is_span
    self.checkpoint_heads = ("span" if self._is_span else "squad2",)
    return (SpanHead if self._is_span else Squad2Head)(self.config, **options)

  def _answer(self, encoded: tf.Tensor, inputs: Mapping[str, tf.Tensor], **options: Any) -> Any:
    if self._is_span:
      return self.head(encoded)
    starts = inputs.get("start_positions")
    starts = None if starts is None else integers(starts)
    return self.head(encoded, inputs["p_mask"], start_positions=starts, **options)

  def answer(
    self, questions: Any, contexts: Any, *, batch_size: int = 32, **settings: Any
  ) -> list[answers.FoundAnswer]:
    """Answers of contexts to questions `[B]`, as the SavedModel of these `ExportSettings` gives them."""
    columns = self.columns({"question": questions, "context": contexts})
    rows = answers.served_rows(self, columns, batch_size=batch_size, **settings)
    return [answers.found_answer(row) for row in rows]

  def compile(self, *args: Any, **kwargs: Any) -> None:
    """`keras.Model.compile`; the default is the loss of `run_squad.py`."""
    if len(args) < 2 and kwargs.get("loss") is None:
      kwargs["loss"] = squad_losses(self.task.squad_version)
      kwargs.setdefault("loss_weights", dict.fromkeys(kwargs["loss"], 0.5))
    super().compile(*args, **kwargs)

  def _prepared(self, x: Any, y: Any = None) -> tuple[Any, Any]:
    """As in the base class; `y` may be answers as strings."""
    if y is None or not holds_text(y):
      return super()._prepared(x, y)
    rows, _ = super()._prepared(x)
    contexts, tokenizer = self.columns(x)["context"], self.preprocessor.tokenizer
    starts, ends = answer_positions(
      rows, contexts, y, tokenizer=tokenizer, may_lack=not self._is_span
    )
    # SQuAD 1.1 has two outputs, and ignores the added input.
    targets = zip(squad_losses(self.task.squad_version), (starts, ends, starts == 0), strict=False)
    return {**rows, "start_positions": starts}, dict(targets)

  def checked_labels(self, labels: Any, inputs: Any) -> Any:
    """Positions of answers, which lie within the rows, and whether there is none."""
    if not isinstance(labels, Mapping):
      return super().checked_labels(labels, inputs)
    counts = {name: np.shape(inputs["input_ids"])[1] for name in labels}
    if "cls_logits" in counts:
      counts["cls_logits"] = 2
    return {name: class_ids(column, counts[name], what=name) for name, column in labels.items()}


_CLASSES: tuple[type[TaskModel], ...] = (
  AlbertClassifier,
  AlbertMultipleChoice,
  AlbertTagger,
  AlbertQuestionAnswering,
  AlbertSentenceEncoder,
)
_CLASS_OF_KIND = {kind: model for model in _CLASSES for kind in model.task_kinds}


def model_class(task: TaskSpec) -> type[TaskModel]:
  """The class of the model for a task."""
  return _CLASS_OF_KIND[task.kind]


def make_model(task: TaskSpec, config: AlbertConfig, **options: Any) -> TaskModel:
  """Makes the model for a task.

  Args:
    task: the task, which decides class and head.
    config: the encoder's configuration.
    **options: arguments of the class and of `keras.Model`, such as `head_options` and `dtype`.
  """
  return model_class(task)(config, task=task, **options)
