"""Models of downstream tasks: classification, multiple choice, tagging, question answering.

`CLASS_OF_KIND` is the table of all kinds of task; fine-tuning and exports take classes from it.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError, whole_number
from albert_tf.keras_api import answers
from albert_tf.keras_api.heads import SpanHead, Squad2Head, squad_losses
from albert_tf.keras_api.labels import as_array, class_ids, class_weights, finite, multi_hot
from albert_tf.keras_api.sentence_vectors import AlbertSentenceEncoder
from albert_tf.keras_api.task_model import TaskModel
from albert_tf.modeling.text_inputs import Inputs, integers

_MOST_LABELS = 1 << 20


class _WithLabels(TaskModel):
  """A model whose head has a logit for each label."""

  extra_options = ("num_labels", "problem", "classifier_dropout")

  def compile(self, *args: Any, **kwargs: Any) -> None:
    """`keras.Model.compile`; a binary cross-entropy makes a classifier "multi_label".

    Raises:
      UserError: a cross-entropy does not read logits.
    """
    super().compile(*args, **kwargs)
    loss = self._loss_object()
    reads_logits = not getattr(loss, "__name__", "").endswith("crossentropy")
    if isinstance(loss, keras.losses.Loss):
      reads_logits = loss.get_config().get("from_logits", True)
    if not reads_logits:
      raise UserError(
        f"A loss of this model reads logits. Received: {self.loss!r}. Use Keras' class of it, with "
        "from_logits=True."
      )
    binary = (keras.losses.BinaryCrossentropy, keras.losses.BinaryFocalCrossentropy)
    if isinstance(loss, binary) and "multi_label" in self.task_kinds:
      # A model of a value has no name for its one label.
      names = self.task.label_names or ("1",)
      self.task = dataclasses.replace(self.task, kind="multi_label", label_names=names)

  def _loss_object(self) -> Any:
    loss = getattr(self, "loss", None)  # Keras 2 has none before `compile`.
    if isinstance(loss, str):
      return keras.losses.get(loss)
    return loss

  @classmethod
  def make_task(
    cls,
    *,
    num_labels: int | None = None,
    problem: str | None = None,
    label_names: Any = (),
    **fields: Any,
  ) -> TaskSpec:
    """See `TaskModel.make_task`; `num_labels` names the labels by number."""
    kind = problem or cls.task_kinds[0]
    if kind not in cls.task_kinds:
      raise UserError(f"problem must be one of {', '.join(cls.task_kinds)}. Received: {problem!r}.")
    if num_labels is not None:
      num_labels = whole_number(num_labels, "num_labels", minimum=1, maximum=_MOST_LABELS)
      if label_names and len(label_names) != num_labels:
        raise UserError(
          f"num_labels and label_names must agree. Received: {num_labels}, and "
          f"{len(label_names)} names. Leave num_labels out."
        )
      label_names = label_names or tuple(map(str, range(num_labels)))

    # A head with one output gives a value, unless the caller says that it is a probability.
    if not problem and len(label_names) == 1 and "regression" in cls.task_kinds:
      kind = "regression"
    if kind == "regression":
      label_names = ()
    elif not label_names:
      raise UserError(
        f"{cls.__name__} needs its labels. Received: neither num_labels nor label_names, and no "
        "run that was fine-tuned for this. Give one of them; num_labels=1 means a value."
      )
    return super().make_task(kind=kind, label_names=label_names, **fields)


@keras.saving.register_keras_serializable("albert_tf")
class AlbertClassifier(_WithLabels):
  """Classification of a text or of a pair of texts or, with one label, regression.

  Args:
    config: the encoder's configuration.
    head_options: `num_labels`, `classifier_dropout`; see `ClassificationHead`.
    problem: "classification" (one label), "multi_label" (any number of labels) or "regression".
      Default: regression with one label, else classification. `compile` with a binary cross-entropy
      makes it "multi_label".

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

  def checked_class_weight(self, weights: Any) -> Mapping[int, float]:
    """Keys may be class names."""
    if self.task.kind == "classification":
      return class_weights(weights, self.task.label_names)
    # Without the label and with it are two classes.
    if self.task.kind == "multi_label" and self.task.num_labels == 1:
      return class_weights(weights, ("0", "1"))
    raise UserError(
      "class_weight is for classes that exclude each other. Received: a model of "
      f"{self.task.kind}. Leave it out."
    )

  def predict_labels(self, texts: Any, *, batch_size: int = 32) -> list[answers.PredictedLabels]:
    """The labels of texts, or of a tuple of two for pairs, as the SavedModel gives them."""
    if self.task.kind == "regression":
      raise UserError(
        "predict_labels needs labels. Received: a model of a value (num_labels=1). Use predict."
      )
    rows = answers.served_rows(self, self.columns(texts), batch_size=batch_size)
    return list(map(answers.predicted_labels, rows))

  def checked_labels(self, labels: Any, inputs: Any) -> Any:
    """Converts class names to ids; a row of one value for each class is left to the loss."""
    names = self.task.label_names
    if self.task.kind == "multi_label":
      return multi_hot(labels, names)
    array = as_array(labels)
    if self.task.kind == "regression":
      return finite(array)
    if array.size == len(array):  # `[n]` or `[n, 1]`.
      return class_ids(array, len(names), names=names).reshape(-1)
    if isinstance(self._loss_object(), keras.losses.SparseCategoricalCrossentropy):
      raise UserError(
        f"{type(self.loss).__name__} reads one class of each text, [n]. Received: labels "
        f"{list(array.shape)}. Give the numbers of the classes, or compile with a "
        "CategoricalCrossentropy."
      )
    return finite(array)


@keras.saving.register_keras_serializable("albert_tf")
class AlbertMultipleChoice(TaskModel):
  """Multiple choice, as in RACE: one score for each choice.

  Call args:
    inputs: those of `AlbertEncoder`, each `[B, C, S]`; with a preprocessor `context`, `question`
      `[B]` and `choices` `[B, C]`.

  Returns:
    Logits over the choices, float32 `[B, C]`.
  """

  task_kinds = ("multiple_choice",)
  preprocessor_kind = "choices"
  id_ranks = (3,)
  extra_options = ("classifier_dropout",)
  _reads_pooler = True
  _joins_rows = True

  def _answer(self, encoded: tf.Tensor, inputs: Inputs, **options: Any) -> tf.Tensor:
    scores = self.head(encoded, **options)  # [B C, 1]
    return tf.reshape(scores, tf.shape(inputs["input_ids"])[:2])

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
    inputs: those of `AlbertEncoder`, and for tags of words `word_positions` int32 `[B, N]`; with a
      preprocessor the `words` of texts, `[B, N]`, padded with "".

  Returns:
    Logits, float32 `[B, S, C]`, or `[B, N, C]` of words.
  """

  task_kinds = ("token_classification",)
  preprocessor_kind = "words"
  per_piece = True

  def _encoder_inputs(self, inputs: Inputs) -> dict[str, tf.Tensor]:
    texts = super()._encoder_inputs(inputs)
    if "word_positions" in inputs:
      # The tag of a word is predicted from its first token.
      texts["read_positions"] = integers(inputs["word_positions"])
    return texts

  def tag(self, texts: Any, *, batch_size: int = 32, **settings: Any) -> list[answers.TaggedText]:
    """Words and entities of whole texts `[B]`, as the SavedModel gives them.

    `settings` are fields of `ExportSettings`, such as `max_windows`.
    """
    columns = self.columns(texts, ("text",))  # The SavedModel splits them into words.
    rows = answers.served_rows(self, columns, batch_size=batch_size, **settings)
    return list(map(answers.tagged_text, rows))

  def checked_labels(self, labels: Any, inputs: Any) -> Any:
    """Converts names of tags to ids; -1 is allowed if the loss ignores it."""
    loss = self._loss_object()
    # Other losses may read other numbers.
    if not isinstance(loss, keras.losses.SparseCategoricalCrossentropy):
      return super().checked_labels(labels, inputs)
    names = self.task.label_names
    return class_ids(labels, len(names), names=names, ignored=loss.get_config().get("ignore_class"))


@keras.saving.register_keras_serializable("albert_tf")
class AlbertQuestionAnswering(TaskModel):
  """Question answering as in SQuAD 1.1, or in 2.0 with unanswerable questions.

  Args:
    config: the encoder's configuration.
    task: its `squad_version` decides the head, `SpanHead` or `Squad2Head`. Without a task it is
      "2.0".

  Call args:
    inputs: those of `AlbertEncoder`; for 2.0 `p_mask` `[B, S]` and, for training, `start_positions`
      int32 `[B]`. With a preprocessor `question` and `context` `[B]`, cut to one window; `answer`
      and exports read the whole context.

  Returns:
    1.1: `start_logits` and `end_logits`, float32 `[B, S]`. 2.0: see `Squad2Head`.
  """

  task_kinds = ("question_answering",)
  task_defaults: ClassVar = {"name": "squad", "squad_version": "2.0"}
  preprocessor_kind = "question"
  extra_options = ("classifier_dropout", "start_n_top", "end_n_top")
  per_piece = True
  labels_in_words = "an answer, as a string,"

  @property
  def _is_span(self) -> bool:
    return self.task.squad_version == "1.1"

  def _make_head(self, **options: Any) -> Any:
    self.checkpoint_heads = ("squad2",)
    if self._is_span:
      self.checkpoint_heads = ("span",)
      return SpanHead(self.config, **options)
    return Squad2Head(self.config, **options)

  def _answer(self, encoded: tf.Tensor, inputs: Inputs, **options: Any) -> Any:
    if self._is_span:
      return self.head(encoded)
    starts = inputs.get("start_positions")
    if starts is not None:
      starts = integers(starts)
    return self.head(encoded, inputs["p_mask"], start_positions=starts, **options)

  def answer(
    self, questions: Any, contexts: Any, *, batch_size: int = 32, **settings: Any
  ) -> list[answers.FoundAnswer]:
    """Answers of contexts to questions `[B]`, as the SavedModel gives them.

    `settings` are fields of `ExportSettings`, such as `n_best`.
    """
    columns = self.columns({"question": questions, "context": contexts})
    rows = answers.served_rows(self, columns, batch_size=batch_size, **settings)
    return list(map(answers.found_answer, rows))

  def compile(self, *args: Any, **kwargs: Any) -> None:
    """`keras.Model.compile`; the default is the loss of `run_squad.py`."""
    if len(args) < 2 and kwargs.get("loss") is None:
      kwargs["loss"] = squad_losses(self.task.squad_version)
      kwargs.setdefault("loss_weights", dict.fromkeys(kwargs["loss"], 0.5))
    super().compile(*args, **kwargs)

  def _prepared(self, x: Any, y: Any = None, **options: Any) -> tuple[Any, Any]:
    """As in the base class; `y` may be answers, see `gold_answers`."""
    gold = None
    if y is not None:
      gold = answers.gold_answers(y)
    if gold is None:
      return super()._prepared(x, y, **options)
    columns = self.columns(x)
    rows, _ = super()._prepared(columns, **options)
    starts, ends = answers.answer_positions(
      rows, columns["context"], gold, self.preprocessor.tokenizer, may_lack=not self._is_span
    )
    # SQuAD 1.1 has two outputs, and ignores the added input.
    labels = zip(squad_losses(self.task.squad_version), (starts, ends, starts == 0), strict=False)
    return rows | {"start_positions": starts}, dict(labels)

  def checked_labels(self, labels: Any, inputs: Any) -> Any:
    """Positions of answers, which lie within the rows, and whether there is none."""
    if not isinstance(labels, Mapping):
      return super().checked_labels(labels, inputs)
    length = np.shape(inputs["input_ids"])[1]
    counts = dict.fromkeys(labels, length) | {"cls_logits": 2}
    return {name: class_ids(column, counts[name], subject=name) for name, column in labels.items()}


# Kind of task → the class of its model.
CLASS_OF_KIND: dict[str, type[TaskModel]] = {
  "classification": AlbertClassifier,
  "multi_label": AlbertClassifier,
  "regression": AlbertClassifier,
  "question_answering": AlbertQuestionAnswering,
  "multiple_choice": AlbertMultipleChoice,
  "token_classification": AlbertTagger,
  "sentence_vectors": AlbertSentenceEncoder,
}
