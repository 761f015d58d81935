"""Models of downstream tasks: classification, multiple choice, tagging, question answering.

`CLASS_OF_KIND` is the table of all kinds of task; fine-tuning takes classes from it. `open_model`
opens the model of a kind of export.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from albert_tf.checkpoints.checkpoint import read_checkpoint
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError, whole_number
from albert_tf.keras_api import answers
from albert_tf.keras_api.examples import Examples
from albert_tf.keras_api.labels import (
  as_array,
  asserted_classes,
  class_ids,
  class_weights,
  finite,
  in_order_of_names,
  multi_hot,
  tag_ids,
)
from albert_tf.keras_api.loading import load_pretrained
from albert_tf.keras_api.logits import check_form, loss_object, reads_classes, reads_values
from albert_tf.keras_api.pretrained import AlbertEncoder, AlbertMaskedLM
from albert_tf.keras_api.sentence_vectors import AlbertSentenceEncoder
from albert_tf.keras_api.squad_heads import NEVER, SpanHead, Squad2Head, squad_losses
from albert_tf.keras_api.task_model import TaskModel
from albert_tf.modeling.encoder import Inputs, integers, text_inputs

_MOST_LABELS = 1 << 20


class _WithLabels(TaskModel):
  """A model whose head has a logit for each label."""

  head_option_names = ("classifier_dropout",)

  def note_loss(self, loss: Any) -> None:
    """A binary cross-entropy makes a classifier "multi_label"."""
    binary = (keras.losses.BinaryCrossentropy, keras.losses.BinaryFocalCrossentropy)
    if isinstance(loss_object(loss), binary) and "multi_label" in self.task_kinds:
      # A model of a value has no name for its one label.
      names = self.task.label_names or ("1",)
      self.task = dataclasses.replace(self.task, kind="multi_label", label_names=names)

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

  `fit` needs `compile` with a loss, which decides the form of the labels. Give an optimizer, too:
  Keras' default is RMSprop, with fifty times the rate of fine-tuning. For steadier runs add a
  warm-up and clipping: `AdamW(WarmupPolynomialDecay(2e-5, …), global_clipnorm=1.0)`.

      SparseCategoricalCrossentropy(from_logits=True)   numbers or names, [B]
      CategoricalCrossentropy(from_logits=True)         one-hot or shares, [B, C]
      BinaryCrossentropy(from_logits=True)              0/1 [B, C], or lists of names
      "mse", with num_labels=1                          values, [B]

  Of Keras' metrics `F1Score`, `AUC`, `Precision` and `Recall` need the second or the third form.
  For others, such as Matthews' correlation, compare `predict_labels` with the labels in
  scikit-learn.

  Args:
    config: the encoder's configuration.
    label_names: names of the labels, in the order of the logits.
    num_labels: number of labels without names. One of the two is needed.
    classifier_dropout: see `ClassificationHead`.
    problem: "classification" (one label), "multi_label" (any number of labels) or "regression".
      Default: regression with one label, else classification. `compile` with a binary cross-entropy
      makes it "multi_label".

  Attributes:
    gradient_accumulation_steps: micro-batches of an update, 1; set it before `fit`. More take less
      memory, for the same update.

  Call args:
    inputs: those of `AlbertEncoder`; with a preprocessor texts `[B]`, or a tuple of two for pairs.
      Join further fields, such as a title, into one of the two.
    training: whether dropout is active; false by default, true in `fit`.

  Returns:
    Logits, float32 `[B, C]`, also of a model of 16-bit types.

  Example:
    >>> model = AlbertClassifier.from_pretrained("run/", num_labels=2)
    >>> model.predict(["A text.", "Another."])
  """

  task_kinds = ("classification", "multi_label", "regression")
  reads_pooler = True

  def activation(self, output: str) -> str:
    del output
    # A value is no logit.
    return {"classification": "softmax", "multi_label": "sigmoid"}.get(self.task.kind, "")

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
    """The labels of texts, or of a tuple of two for pairs, as the SavedModel gives them.

    It runs on one device, and does not sort by length: for many texts `predict` is quicker.
    """
    if self.task.kind == "regression":
      raise UserError(
        "predict_labels needs labels. Received: a model of a value (num_labels=1). Use predict."
      )
    rows = answers.served_rows(self, self.columns(texts), batch_size=batch_size)
    return list(map(answers.predicted_labels, rows))

  def checked_labels(self, labels: Any, inputs: Any) -> Any:
    """Converts class names to ids; a row of one value for each class is left to the loss."""
    names = self.task.label_names
    if self.task.kind == "regression":
      return finite(as_array(labels))
    labels = in_order_of_names(labels, names)
    if self.task.kind == "multi_label":
      return multi_hot(labels, names)
    array = as_array(labels)
    check_form(self._loss_object(), array, axes=1)
    if array.size == len(array):  # `[n]` or `[n, 1]`.
      return class_ids(array, len(names), names=names).reshape(-1)
    return finite(array)

  def asserted_labels(self, labels: Any, inputs: Any) -> Any:
    labels = super().asserted_labels(labels, inputs)
    return self._asserted_classes(labels, len(self.task.label_names))


@keras.saving.register_keras_serializable("albert_tf")
class AlbertMultipleChoice(TaskModel):
  """Multiple choice, as in RACE: one score for each choice.

  Labels are the numbers of the right choices, from 0. All rows have equally many choices.

  Call args:
    inputs: those of `AlbertEncoder`, each `[B, C, S]`; with a preprocessor `context`, `question`
      `[B]` and `choices` `[B, C]`.

  Returns:
    Logits over the choices, float32 `[B, C]`.

  Example:
    >>> model = AlbertMultipleChoice.from_pretrained("run/")
    >>> loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    >>> model.compile(AdamW(2e-5), loss=loss)
    >>> rows = {"context": contexts, "question": questions, "choices": [["a", "b"], ["c", "d"]]}
    >>> model.fit(rows, [0, 1])
  """

  task_kinds = ("multiple_choice",)
  preprocessor_kind = "choices"
  id_ranks = (3,)
  head_option_names = ("classifier_dropout",)
  reads_pooler = True
  _joins_rows = True

  def activation(self, output: str) -> str:
    del output
    return "softmax"

  def _answer(self, encoded: tf.Tensor, inputs: Inputs, **options: Any) -> tf.Tensor:
    scores = self.head(encoded, **options)  # [B C, 1]
    return tf.reshape(scores, tf.shape(inputs["input_ids"])[:2])

  def checked_labels(self, labels: Any, inputs: Any) -> Any:
    """The numbers of the right choices, or a value for each choice."""
    loss = self._loss_object()
    array = as_array(labels)
    check_form(loss, array, axes=1)
    if reads_values(loss):
      return finite(array)
    return class_ids(array, inputs["input_ids"].shape[1])

  def asserted_labels(self, labels: Any, inputs: Any) -> Any:
    labels = super().asserted_labels(labels, inputs)
    return self._asserted_classes(labels, tf.shape(inputs["input_ids"])[1])


@keras.saving.register_keras_serializable("albert_tf")
class AlbertTagger(_WithLabels):
  """Tagging: logits for every token or every word.

  Args:
    config: the encoder's configuration.
    label_names, num_labels, classifier_dropout: as of `AlbertClassifier`.

  Call args:
    inputs: those of `AlbertEncoder`, and for tags of words `word_positions` int32 `[B, N]`; with a
      preprocessor the `words` of texts, `[B, N]`, padded with "".

  Returns:
    Logits, float32 `[B, S, C]`, or `[B, N, C]` of words.
  """

  task_kinds = ("token_classification",)
  preprocessor_kind = "words"
  per_piece = True
  has_padding = True

  def activation(self, output: str) -> str:
    del output
    return "softmax"

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
    """Converts names of tags to ids; -1 where there is no word, and where a label is ignored."""
    loss = self._loss_object()
    if reads_values(loss):
      array = as_array(labels)
      check_form(loss, array, axes=2)
      return finite(array)
    # Other losses may read other numbers.
    if not isinstance(loss, keras.losses.SparseCategoricalCrossentropy):
      return super().checked_labels(labels, inputs)
    ignored = loss.get_config().get("ignore_class")
    return tag_ids(labels, np.asarray(_is_word(inputs)), self.task.label_names, ignored=ignored)

  def asserted_labels(self, labels: Any, inputs: Any) -> Any:
    labels = super().asserted_labels(labels, inputs)
    if not isinstance(labels, tf.Tensor):
      return labels
    is_read = _is_word(inputs) & (labels >= 0)
    return self._asserted_classes(labels, len(self.task.label_names), is_read)

  def counted(self, x: Any, y: Any) -> Any:
    """Labels that are -1 where there is no word, or one without a label; see `ModelBase.counted`."""
    loss = self._loss_object()
    # Other losses may read other numbers.
    if y is None or not reads_classes(loss):
      return y
    counts = tf.convert_to_tensor(_is_word(x))
    if len(y.shape) == 3:  # A value for each class.
      counts = counts[..., tf.newaxis]
    counts &= y >= 0
    ignored = loss.get_config().get("ignore_class")
    if ignored is not None:
      counts &= y != ignored
    return tf.where(counts, y, -tf.ones_like(y))

  def compute_loss(
    self,
    x: Any = None,
    y: Any = None,
    y_pred: Any = None,
    sample_weight: Any = None,
    **options: Any,
  ) -> tf.Tensor:
    """As Keras', but labels without a word count nothing: it is the mean over the words.

    Weights of words say themselves what their loss is divided by; those of fine-tuning do.
    """
    if reads_classes(self._loss_object()):
      y = self.counted(x, y)
      counts = y >= 0
      y = tf.where(counts, y, tf.zeros_like(y))
      if len(y.shape) == 3:
        counts = tf.reduce_all(counts, axis=-1)
      if sample_weight is not None and len(sample_weight.shape) == 1:
        sample_weight = sample_weight[:, tf.newaxis]  # A weight for each text.
      if sample_weight is not None and sample_weight.shape[1] != 1:
        sample_weight = tf.cast(sample_weight, tf.float32) * tf.cast(counts, tf.float32)
      else:
        y_pred = tf.identity(y_pred)
        y_pred._keras_mask = counts  # Keras then takes the mean over these words.
    return super().compute_loss(x, y, y_pred, sample_weight, **options)


def _is_word(inputs: Inputs) -> Any:
  """Where a label counts, bool `[B, N]` or, of tokens, `[B, S]`."""
  if "word_positions" in inputs:
    return inputs["word_positions"] > 0
  texts = text_inputs(inputs)
  return texts.get("input_mask", tf.ones_like(texts["input_ids"])) > 0


@keras.saving.register_keras_serializable("albert_tf")
class AlbertQuestionAnswering(TaskModel):
  """Question answering as in SQuAD 1.1, or in 2.0 with unanswerable questions.

  Args:
    config: the encoder's configuration.
    task: its `squad_version` decides the head, `SpanHead` or `Squad2Head`. Without a task it is
      "2.0"; `from_pretrained(…, squad_version="1.1")` is the other.

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
  head_option_names = ("classifier_dropout", "start_n_top", "end_n_top")
  per_piece = True
  padding_of_outputs = -NEVER  # No answer is in padding.
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

  def activation(self, output: str) -> str:
    return "sigmoid" if output == "cls_logits" else "softmax"

  def compile(self, *args: Any, **kwargs: Any) -> None:
    """`keras.Model.compile`; the default is the loss of `run_squad.py`."""
    if len(args) < 2 and kwargs.get("loss") is None:
      kwargs["loss"] = squad_losses(self.task.squad_version)
      kwargs.setdefault("loss_weights", dict.fromkeys(kwargs["loss"], 0.5))
    super().compile(*args, **kwargs)

  def examples(self, x: Any, y: Any = None, sample_weight: Any = None, **options: Any) -> Examples:
    """As in the base class; `y` may be answers, see `gold_answers`."""
    gold = None if y is None else answers.gold_answers(y)
    if gold is None:
      return super().examples(x, y, sample_weight, **options)
    columns = self.columns(x)
    examples = super().examples(columns, None, sample_weight, **options)
    starts, ends = answers.answer_positions(
      examples, columns["context"], gold, self.preprocessor.tokenizer, may_lack=not self._is_span
    )
    # SQuAD 1.1 has two outputs, and ignores the added input.
    positions = (starts, ends, starts == 0)
    labels = dict(zip(squad_losses(self.task.squad_version), positions, strict=False))
    inputs = {**examples.inputs, "start_positions": starts}
    return dataclasses.replace(examples, inputs=inputs, labels=labels)

  def checked_labels(self, labels: Any, inputs: Any) -> Any:
    """Positions of answers, which lie within the rows, and whether there is none, by output."""
    if hasattr(labels, "columns"):  # A data frame of pandas.
      labels = {name: labels[name] for name in labels.columns}
    losses = self._loss_object()
    if not isinstance(losses, Mapping):
      losses = squad_losses(self.task.squad_version)
    if not isinstance(labels, Mapping) or set(labels) != set(losses):
      is_mapping = isinstance(labels, Mapping)
      received = ", ".join(map(str, labels)) if is_mapping else f"{labels!r:.60}"
      raise UserError(
        f"Labels of this model are a mapping with {', '.join(losses)}, or the answers' texts. "
        f"Received: {received}. Give one of them."
      )
    length = int(Examples(inputs).lengths.max())
    counts = dict.fromkeys(labels, length) | {"cls_logits": 2}
    return {name: class_ids(column, counts[name], subject=name) for name, column in labels.items()}

  def asserted_labels(self, labels: Any, inputs: Any) -> Any:
    if not isinstance(labels, Mapping):
      return labels  # Keras says which outputs lack a label.
    length = tf.shape(inputs["input_ids"])[-1]
    counts = dict.fromkeys(labels, length) | {"cls_logits": 2}
    return {
      name: asserted_classes(column, counts[name], subject=name) for name, column in labels.items()
    }


_CLASSES: tuple[type[TaskModel], ...] = (
  AlbertClassifier,
  AlbertQuestionAnswering,
  AlbertMultipleChoice,
  AlbertTagger,
  AlbertSentenceEncoder,
)
# Kind of task → the class of its model.
CLASS_OF_KIND = {kind: of_kind for of_kind in _CLASSES for kind in of_kind.task_kinds}
# Kind of export without a task → the class of its model.
_CLASS_WITHOUT_TASK = {"encoder": AlbertEncoder, "fill_mask": AlbertMaskedLM}


def open_model(kind: str, path: str, *, vocabulary_file: str = "", **options: Any) -> Any:
  """Loads the model of a checkpoint for a kind of export, with all its weights.

  Args:
    kind: one of `configs.task.EXPORT_KINDS`.
    path, vocabulary_file: see `read_checkpoint`.
    **options: see `TextModel.from_pretrained`.

  Raises:
    UserError: the checkpoint is of another kind, or of none.
  """
  checkpoint = read_checkpoint(path, vocabulary_file=vocabulary_file)
  if kind in _CLASS_WITHOUT_TASK:
    return load_pretrained(_CLASS_WITHOUT_TASK[kind], checkpoint, **options)
  task = TaskSpec.load(checkpoint.directory)
  if task.export_kind != kind:
    raise UserError(
      f"--model {kind} needs a model that was fine-tuned for it. Received: {checkpoint.directory}, "
      f"fine-tuned for {task.kind}. Export it with --model {task.export_kind}."
    )
  return load_pretrained(CLASS_OF_KIND[task.kind], checkpoint, **options)
