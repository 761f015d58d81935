"""Models of downstream tasks: classification, multiple choice, tagging, question answering."""

from collections.abc import Mapping, Sequence
import contextlib
import dataclasses
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from albert_tf.compat import keras
from albert_tf.configs import AlbertConfig
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.keras_api import answers
from albert_tf.keras_api.answer_positions import answer_positions
from albert_tf.keras_api.heads import ClassificationHead, SpanHead, Squad2Head, squad_losses
from albert_tf.keras_api.sentence_vectors import AlbertSentenceEncoder
from albert_tf.keras_api.task_model import WITHOUT_POOLER, TaskModel, joined_rows
from albert_tf.modeling.text_inputs import integers, text_inputs
from albert_tf.tokenization.graph_inputs import holds_text


class _WithLabels(TaskModel):
  """A model with a `ClassificationHead`."""

  def _make_head(self, **options: Any) -> Any:
    return ClassificationHead(self.config, **{"num_labels": self.task.num_labels, **options})

  @classmethod
  def make_task(cls, *, num_labels: int | None = None, problem: str | None = None, **fields: Any) -> TaskSpec:
    if problem and problem not in cls.task_kinds:
      raise UserError(f"problem must be one of {', '.join(cls.task_kinds)}. Received: {problem!r}.")
    names = tuple(fields.pop("label_names", ()))
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
    names = names or tuple(map(str, range(num_labels)))
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
    loss = keras.losses.get(self.loss) if isinstance(self.loss, str) else self.loss
    reads = loss.get_config() if isinstance(loss, keras.losses.Loss) else {}
    if not reads.get("from_logits", not getattr(loss, "__name__", "").endswith("crossentropy")):
      raise UserError(
        f"A loss of this model reads logits. Received: {self.loss!r}. Use Keras' class of it, with from_logits=True."
      )
    binary = (keras.losses.BinaryCrossentropy, keras.losses.BinaryFocalCrossentropy)
    if isinstance(loss, binary) and self.task.kind != "multi_label":
      names = self.task.label_names or ("1",)
      self.task = dataclasses.replace(self.task, kind="multi_label", label_names=names)

  def fit(self, *args: Any, class_weight: Mapping[Any, float] | None = None, **kwargs: Any) -> Any:
    """`TextModel.fit`; keys of `class_weight` may be class names."""
    if class_weight and self.task.kind == "multi_label" and self.task.num_labels > 1:
      raise UserError(
        "class_weight is for classes that exclude each other. Received: a multi-label model. Leave it out."
      )
    if class_weight and self.task.kind == "classification":
      class_weight = {
        int(self.checked_labels(np.array([name]))[0]): weight for name, weight in class_weight.items()
      }
    return super().fit(*args, class_weight=class_weight, **kwargs)

  def predict_labels(self, texts: Any, *, batch_size: int = 32) -> list[answers.PredictedLabels]:
    """The labels of texts, or of a tuple of two for pairs, as the SavedModel gives them."""
    if self.task.kind == "regression":
      raise UserError(
        "predict_labels needs labels. Received: a model of a value (num_labels=1). Use predict."
      )
    rows = answers.served_rows(self, self.columns(texts), batch_size=batch_size)
    return [answers.predicted_labels(row) for row in rows]

  def checked_labels(self, labels: Any) -> Any:
    """Converts class names to ids and checks ids; on an accelerator a wrong id would only give NaN."""
    names = self.task.label_names
    if self.task.kind == "multi_label":
      return multi_hot(labels, names)
    if isinstance(labels, (list, tuple)):
      return labels  # Rows of numbers.
    values = np.asarray(labels)
    if values.size and isinstance(values.flat[0], str):
      places = {name: place for place, name in enumerate(names)}
      unknown = sorted(set(values.ravel().tolist()) - places.keys())
      if unknown:
        raise UserError(
          f"Labels given as texts must be the model's label_names, {', '.join(names) or 'of which it has none'}. "
          f"Received: {', '.join(map(repr, unknown[:4]))}. Give label_names to from_pretrained, or number the classes."
        )
      return np.array([places[name] for name in values.flat]).reshape(values.shape)
    if values.ndim == 1 and len(names) > 1 and np.issubdtype(values.dtype, np.number):
      wrong = np.flatnonzero(~np.isin(values, range(len(names))))  # NaN and 0.5 too.
      if len(wrong):
        raise UserError(
          f"Labels must be whole numbers from 0 to {len(names) - 1}. Received: {values[wrong[0]]} in row {wrong[0]}. "
          "Number the classes from 0, or raise num_labels."
        )
    return labels


def multi_hot(labels: Any, names: Sequence[str]) -> np.ndarray:
  """Converts a 0/1 matrix, or a list of names for each row, to float32 `[n, C]` of 0 and 1."""
  rows = labels.to_numpy() if hasattr(labels, "to_numpy") else labels
  by_name = all(np.ndim(row) == 1 and all(isinstance(name, str) for name in row) for row in rows)
  received = sorted(set().union(*rows) - set(names)) if by_name else list(rows[:2])
  if by_name and not received:
    return np.array([[name in row for name in names] for row in rows], np.float32)
  with contextlib.suppress(TypeError, ValueError):  # Texts, or rows of different lengths.
    matrix = np.asarray(rows, np.float32).reshape(len(rows), -1)  # A single label may be [n].
    if not by_name and matrix.shape[1] == len(names) and np.isin(matrix, (0, 1)).all():
      return matrix
  raise UserError(
    f"Labels are 0/1, [n, {len(names)}], or in each row a list of names of {', '.join(names)}. Received: "
    f"{received!r:.200}. Give label_names to from_pretrained."
  )


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
  _reads_pooler = True

  def _make_head(self, **options: Any) -> Any:
    return ClassificationHead(self.config, num_labels=1, **options)

  def _encode(self, inputs: Mapping[str, tf.Tensor], **options: Any) -> tf.Tensor:
    return super()._encode(joined_rows(inputs), **options)

  def _answer(self, encoded: tf.Tensor, inputs: Mapping[str, tf.Tensor], **options: Any) -> tf.Tensor:
    return tf.reshape(self.head(encoded, **options), tf.shape(inputs["input_ids"])[:2])  # [B C, 1] → [B, C]


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
  per_piece = True
  new_variables = WITHOUT_POOLER

  @property
  def _is_span(self) -> bool:
    return self.task.squad_version == "1.1"

  def _make_head(self, **options: Any) -> Any:
    self._head_dropout = not self._is_span
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
    starts, ends = answer_positions(rows, contexts, y, tokenizer=tokenizer, may_lack=not self._is_span)
    # SQuAD 1.1 has two outputs, and ignores the added input.
    targets = zip(squad_losses(self.task.squad_version), (starts, ends, starts == 0), strict=False)
    return {**rows, "start_positions": starts}, dict(targets)

  def checkpoint_items(self) -> dict[str, Any]:
    prefix = "cls/squad/" if self._is_span else ""
    return {"bert": self.encoder, **{prefix + k: v for k, v in self.head.checkpoint_items().items()}}


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
