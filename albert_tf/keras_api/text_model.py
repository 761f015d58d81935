"""Base class of all models, in which Keras' methods take texts: texts in, answers out.

`pretrained.py` and `task_model.py` have the classes that are made of it. `loading.py` loads and
saves them, `serving.export` exports them.
"""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import copy
import functools
import inspect
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from albert_tf import files
from albert_tf.checkpoints.bundle import check_finite
from albert_tf.checkpoints.checkpoint import Checkpoint
from albert_tf.compat import ModelBase, device_kind, updates_made
from albert_tf.configs import AlbertConfig
from albert_tf.errors import StoppedError, UserError
from albert_tf.keras_api.batches import DEFAULT_BATCH_SIZE, EvaluationBatches, TrainingBatches
from albert_tf.keras_api.calibration import calibration_of
from albert_tf.keras_api.callbacks import SaveState, ShortEpoch, StopOnSignal, callbacks_in_order
from albert_tf.keras_api.examples import Column, Examples, check_counts, with_class_weights
from albert_tf.keras_api.id_inputs import are_known, asserted_ids, checked_ids
from albert_tf.keras_api.labels import asserted_finite, decoded, finite
from albert_tf.keras_api.loading import load_pretrained, save_pretrained, weight_values
from albert_tf.keras_api.logits import check_losses, metrics_of_logits
from albert_tf.keras_api.predictor import Predictor, padded_outputs
from albert_tf.modeling.config_model import ConfigModel
from albert_tf.pipelines.batches import iterators_without_autotune
from albert_tf.serving.export import export_model
from albert_tf.serving.settings import ExportSettings
from albert_tf.tokenization.graph_inputs import holds_text

# Keras' other formats → what makes such a file.
_OTHER_FORMATS = {
  "litert": "Call save_pretrained, and give its folder to tpu_scripts/export_lite.py "
  "--init_checkpoint",
  "onnx": 'Call save_pretrained, and follow "Convert to ONNX" in docs/serving.md',
}
# Arguments by name.
Options = Mapping[str, Any]


def _on_batch(method: Callable[..., Any]) -> Any:
  """A `…_on_batch` method of `keras.Model`, for ids or texts; labels and weights are checked."""
  signature = inspect.signature(method)

  @functools.wraps(method)
  def prepared(model: "TextModel", *args: Any, **kwargs: Any) -> Any:
    model.check_single_batches()
    call = signature.bind(model, *args, **kwargs)
    arguments = call.arguments
    if "y" in signature.parameters:
      model.check_labelled(method.__name__, arguments.get("x"), arguments.get("y"))
    given = (arguments.get(name) for name in ("x", "y", "sample_weight"))
    batch = model.examples(*given).padded(model.fixed_length())
    arguments.update(zip(("x", "y", "sample_weight"), batch, strict=False))
    if arguments.get("class_weight") is not None:
      arguments["class_weight"] = model.checked_class_weight(arguments["class_weight"])
    return method(*call.args, **call.kwargs)

  return prepared


class TextModel(ConfigModel):
  """Base class of models that take ids or, with a preprocessor, texts.

  `fit`, `evaluate` and `predict` tokenize lists and arrays before the first batch, and data sets in
  their pipeline.

  Args:
    config: the encoder's configuration.
    preprocessor: an `AlbertPreprocessor`; None: the model takes only ids.
  """

  # The kind of SavedModel; see `export_saved_model.py --model`.
  export_kind: str
  # `kind` of its `AlbertPreprocessor`.
  preprocessor_kind = "text"
  # Numbers of axes that `input_ids` may have.
  id_ranks: tuple[int, ...] = (2,)
  # Whether outputs have an axis S; then all batches of a data set need the same S.
  per_piece = False
  # Whether labels may be of padding, which is left out.
  has_padding = False
  labels_in_words = "a label"
  # What fills up the outputs of shorter rows in `predict`.
  padding_of_outputs = 0.0
  _predictor: Predictor | None = None  # Made by the first `predict`.
  # The `TaskSpec` of a task's model.
  task: Any = None
  # Of `configs.task.TASK_KINDS`, the default first; () for models without a task.
  task_kinds: tuple[str, ...] = ()
  # Patterns of variables that a checkpoint may lack; they keep their initial values.
  may_be_missing: tuple[str, ...] = ()

  # ------------------------------------------------------------------ files

  @classmethod
  def from_pretrained(
    cls,
    path: files.Path | Checkpoint,
    *,
    max_length: int | None = None,
    config: AlbertConfig | None = None,
    num_hidden_layers: int | None = None,
    **options: Any,
  ) -> Any:
    """Loads a model from a checkpoint, with the checkpoint's tokenizer, if any, as preprocessor.

    Of a run that was fine-tuned for another class it takes the encoder alone. A head that the
    checkpoint lacks is new and random, so after `fit` load what `save_pretrained` wrote. It loads
    no state of an optimizer.

    Args:
      path: a run directory (its best, else its newest checkpoint), an original checkpoint, a TF-Hub
        module, a Hugging Face folder; or a `Checkpoint`. It needs configuration and weights. No name
        on a hub, which would be a download, and no .keras file, which is of
        `keras.saving.load_model`.
      max_length: texts are cut to this many tokens. Default: the length of fine-tuning, else the
        model's positions.
      config: replaces the checkpoint's configuration, for example with other dropout rates.
      num_hidden_layers: another number of layers, if the layers share all weights.
      **options: arguments of the class, such as `dtype="mixed_bfloat16"`; with `preprocessor=None`
        the model takes only ids.

    Raises:
      UserError: the path holds no known checkpoint, or its weights do not fit.
    """
    return load_pretrained(
      cls,
      path,
      max_length=max_length,
      config=config,
      num_hidden_layers=num_hidden_layers,
      **options,
    )

  def save_pretrained(self, directory: files.Path) -> None:
    """Writes a run directory that `from_pretrained` and all commands can read.

    It contains configuration, tokenizer, task, and the weights in float32, 4 bytes a parameter; no
    state of an optimizer. Keras 2 and Keras 3 both read it.

    Raises:
      UserError: the directory is not empty, or a weight is not finite.
    """
    save_pretrained(self, directory)

  def export(
    self,
    filepath: files.Path,
    format: str = "tf_saved_model",
    verbose: bool | None = None,
    input_signature: Any = None,
    *,
    calibration: Any = None,
    **settings: Any,
  ) -> None:
    """Writes a SavedModel, as `export_saved_model.py` does; the first four arguments are Keras'.

    It takes batches of any size, and gives float32. Keras 3 reads it as the layer
    `keras.layers.TFSMLayer(filepath, call_endpoint="serving_default")`.

    Args:
      filepath: directory of the SavedModel; servers need a number as its last part.
      format: "tf_saved_model"; other formats have commands of their own.
      verbose: print where the SavedModel is.
      input_signature: None; the signatures follow from the kind of model.
      calibration: texts, as for `predict`, with `precision="int8"` or "bfloat16": some hundred of those
        that the export will answer.
      **settings: fields of `ExportSettings`, such as `top_k`.

    Raises:
      UserError: the model has no preprocessor, the directory exists, or an argument is refused.
    """
    if format != "tf_saved_model":
      remedy = _OTHER_FORMATS.get(format, 'Leave `format` out, or give "tf_saved_model"')
      raise UserError(f"`export` writes a SavedModel. Received: format={format!r}. {remedy}.")
    if input_signature is not None:
      raise UserError(
        "The kind of model decides the signatures of an export. Received: an input_signature. "
        'Leave it out; for one of your own follow "A signature of your own" in docs/keras.md.'
      )
    measured = None if calibration is None else calibration_of(self, calibration)
    agreement = export_model(self, files.text_of(filepath), ExportSettings.of(**settings), measured)
    if verbose:
      print(f"Exported {self.export_kind} to {filepath}")
      if agreement is not None:
        print(f"With float32: {agreement}")

  def check_finite_weights(self) -> None:
    """Raises `UserError` if a weight is NaN or infinite."""
    check_finite(weight_values(self), type(self).__name__)

  # ------------------------------------------------------------------ Keras' methods

  def compile(self, *args: Any, **kwargs: Any) -> None:
    """`keras.Model.compile`; Keras' metrics of probabilities get those of the logits.

    An optimizer has one learning rate for all variables. `fit` and `evaluate` need it; `predict`
    does not. XLA compiles only with `jit_compile=True`, which takes texts as well.

    Raises:
      UserError: a loss reads probabilities.
    """
    # Keras 2 and Keras 3 have their arguments in another order.
    arguments = inspect.signature(keras.Model.compile).bind(self, *args, **kwargs).arguments
    del arguments["self"]
    arguments.update(arguments.pop("kwargs", {}))
    loss = arguments.get("loss")
    check_losses(loss)
    self.note_loss(loss)
    for name in ("metrics", "weighted_metrics"):
      if arguments.get(name):
        arguments[name] = metrics_of_logits(
          arguments[name], loss, self.activation, has_padding=self.has_padding
        )
    super().compile(**arguments)

  def note_loss(self, loss: Any) -> None:
    """What the model learns of the loss that it is compiled with."""

  def activation(self, output: str) -> str:
    """What makes probabilities of an output, "sigmoid" or "softmax"; "" if it has no logits."""
    del output
    return ""

  def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    if self._reads_as_text(inputs):
      inputs = self.needed_preprocessor()(inputs)
    # A preprocessor may have another vocabulary than the model, or longer rows.
    if are_known(inputs):
      inputs = checked_ids(inputs, self.config, self.id_ranks)
    return super().__call__(inputs, *args, **kwargs)

  def fit(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
    """`keras.Model.fit`, for ids or texts.

    Of lists and arrays, texts of similar length share a batch, and the order is a function of a seed
    and the epoch. With `SaveState` among the callbacks a killed `fit` continues. Other arguments are
    Keras', with its defaults: `epochs=1`, and `batch_size=32` over all devices. Without a strategy's
    scope it uses one device.

    Args:
      x: texts: a list, a tuple of two for pairs, an array, a column of pandas, or columns by name.
        Other sequences go through `list`. They are tokenized before the first batch, and kept in
        memory without padding: of 30,000 tokens, 4 bytes for each (calculated). "" is a text without
        tokens; None and NaN are refused. Or ids
        by name. Or batches: a `tf.data.Dataset`, which must be batched, a generator, a
        `keras.utils.PyDataset`.
      y: labels, see the class. Batches have their own.
      *args, **kwargs: `class_weight` and `sample_weight` multiply. `validation_split` takes the last
        rows of a list or an array as they stand, so shuffle sorted rows before; data sets have none.

    Raises:
      StoppedError: `StopOnSignal` has ended it.
      UserError: inputs, labels or weights do not fit the model.
    """
    arguments = _arguments_of(ModelBase.fit, self, x, y, args, kwargs)
    self.check_labelled("fit", x, y)
    callbacks = callbacks_in_order(arguments.get("callbacks"))
    states = [callback for callback in callbacks if isinstance(callback, SaveState)]
    state = states[0] if states else None
    if len(states) > 1:
      raise UserError(
        f"A training has one state. Received: {len(states)} SaveState callbacks. Keep one."
      )
    if has_batches(x):
      if state is not None:
        raise UserError(
          "SaveState continues a training of lists and arrays, whose order is known. Received: "
          f"a {type(x).__name__}. Give texts and labels as lists."
        )
      arguments["x"] = self.prepared_batches(x)
      if arguments.get("class_weight") is not None:
        arguments["class_weight"] = self.checked_class_weight(arguments["class_weight"])
      # Keras 3 warns that it cannot shuffle a data set.
      arguments.setdefault("shuffle", False)
    else:
      first_callbacks = self._plan_training(arguments, state)
      callbacks = first_callbacks + callbacks
    if arguments.get("validation_data") is not None:
      self._plan_validation(arguments)
    arguments["callbacks"] = callbacks

    with contextlib.ExitStack() as at_end, iterators_without_autotune():
      for callback in callbacks:
        if isinstance(callback, StopOnSignal):
          at_end.callback(callback.close)  # After an error, too.
      try:
        return super().fit(**arguments)
      except StoppedError:
        saved = ""
        if state is not None:
          state.save()
          saved = ", saved. The same program continues"
        step = updates_made(self.optimizer)
        raise StoppedError(f"stopped at update {step:,}{saved}.") from None

  def _plan_training(self, arguments: dict[str, Any], state: SaveState | None) -> list[Any]:
    """Replaces lists and arrays in the arguments of `fit` by planned batches; returns callbacks."""
    examples = self.examples(
      arguments.pop("x", None),
      arguments.pop("y", None),
      arguments.pop("sample_weight", None),
      class_weight=arguments.pop("class_weight", None),
    )
    batch_size = arguments.pop("batch_size", None)
    if arguments.get("validation_batch_size") is None:
      arguments["validation_batch_size"] = batch_size
    share = arguments.pop("validation_split", None)
    if share and arguments.get("validation_data") is None:
      # As Keras: the last rows.
      num_training = int(len(examples) * (1 - share))
      arguments["validation_data"] = examples.take(np.arange(num_training, len(examples)))
      examples = examples.take(np.arange(num_training))

    training = TrainingBatches.plan(
      self,
      examples,
      batch_size=batch_size,
      epochs=arguments.get("epochs", 1),
      initial_epoch=arguments.get("initial_epoch", 0),
      steps_per_epoch=arguments.get("steps_per_epoch"),
      shuffle=arguments.get("shuffle", True),
      state=state,
    )
    arguments |= {
      "x": training.dataset,
      "shuffle": False,
      "initial_epoch": training.initial_epoch,
      "steps_per_epoch": training.steps_per_epoch,
    }
    if not training.missing_updates:
      return []
    return [ShortEpoch(training.missing_updates)]

  def _plan_validation(self, arguments: dict[str, Any]) -> None:
    """Replaces `validation_data` in the arguments of `fit` by batches."""
    data = arguments["validation_data"]
    batch_size = arguments.pop("validation_batch_size", None)
    if has_batches(data):
      self.check_labelled("validation_data", data)
      arguments["validation_data"] = self.prepared_batches(data)
      return
    if not isinstance(data, (tuple, list)):
      data = (data,)
    self.check_labelled("validation_data", *data[:2])
    validation = EvaluationBatches.plan(self, self.examples(*data), batch_size)
    arguments["validation_data"] = validation.dataset
    if arguments.get("validation_steps") is None:
      arguments["validation_steps"] = validation.steps

  def evaluate(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
    """`keras.Model.evaluate`, for ids or texts; texts of similar length share a batch."""
    arguments = _arguments_of(ModelBase.evaluate, self, x, y, args, kwargs)
    self.check_labelled("evaluate", x, y)
    if has_batches(x):
      arguments["x"] = self.prepared_batches(x)
    else:
      examples = self.examples(x, y, arguments.pop("sample_weight", None))
      del arguments["y"]
      batch_size = arguments.pop("batch_size", None)
      evaluation = EvaluationBatches.plan(self, examples, batch_size)
      arguments["x"] = evaluation.dataset
      if arguments.get("steps") is None:
        arguments["steps"] = evaluation.steps
    return super().evaluate(**arguments)

  def predict(
    self,
    x: Any,
    batch_size: int | None = None,
    verbose: Any = "auto",
    steps: int | None = None,
    callbacks: Any = None,
    **kwargs: Any,
  ) -> Any:
    """`keras.Model.predict`, for ids or texts.

    Texts of similar length share a batch, and the answers are in the order of `x`. Those of classes
    are logits: `argmax(axis=-1)` is the label's number, `task.label_names[number]` its name. A data
    set that shuffles has another order each time it is read, so labels that were read apart do not
    belong to its answers; `evaluate` reads both together.

    Answers for each token `[n, S, …]` have the length of the longest row. What is behind a row's
    own tokens is of padding or a filling: 0, and for positions of answers a number that is never
    the largest.

    Each call makes a pipeline of batches, which is slow for one text: call `model(["a text"])`, or
    keep the signature of an export. With a tiny model on a busy CPU these took 89, 53 and 2 ms.

    A new length compiles nothing: in Keras 3 the second shape makes a graph for all lengths. With
    `jit_compile=True` each padded length is compiled once, and kept. A `tf.function` of yours needs
    an `input_signature`, or it is traced anew for each Python string.
    """
    if has_batches(x):
      batches = self.prepared_batches(x, reads_labels=False)
      return super().predict(batches, verbose=verbose, steps=steps, callbacks=callbacks, **kwargs)
    examples = self.examples(x)
    if batch_size is None:
      batch_size = DEFAULT_BATCH_SIZE
    if steps is not None:
      examples = examples.take(np.arange(len(examples))[: steps * batch_size])
    if self._predictor is None:
      self._predictor = Predictor(self, lambda inputs: self.predict_step((inputs,)))
    outputs = self._predictor(
      examples,
      batch_size=batch_size,
      callbacks=callbacks,
      verbose=1 if verbose == "auto" else verbose,
    )
    return padded_outputs(outputs, self.padding_of_outputs)

  train_on_batch = _on_batch(ModelBase.train_on_batch)
  test_on_batch = _on_batch(ModelBase.test_on_batch)
  predict_on_batch = _on_batch(ModelBase.predict_on_batch)

  # ------------------------------------------------------------------ texts, labels and weights

  def check_labelled(self, taker: str, x: Any, y: Any = None) -> None:
    """Raises `UserError` where the loss would have no labels, or strings of a data set.

    Args:
      taker: the method or the argument, for messages.
      x, y: any form that Keras takes. Each batch of a generator is checked when it comes.
    """
    if getattr(self, "loss", None) is None or isinstance(x, (keras.utils.Sequence, Iterator)):
      return
    if isinstance(x, Examples):
      y = x.labels
    if hasattr(x, "element_spec"):
      _, y, _ = keras.utils.unpack_x_y_sample_weight(x.element_spec)
      if y is not None and holds_text(y):
        raise UserError(
          f"Labels of a data set are numbers. Received: strings, in that of {taker}. Give lists; or "
          "dataset.as_numpy_iterator(), for several epochs of dataset.repeat(), with "
          "steps_per_epoch."
        )
    if y is None:
      raise UserError(
        f"`{taker}` needs y, {self.labels_in_words} for each row. Received: none. Give it."
      )

  def examples(
    self, x: Any, y: Any = None, sample_weight: Any = None, *, class_weight: Any = None
  ) -> Examples:
    """Texts or ids, labels and weights as examples, all checked; examples stay what they are.

    Raises:
      UserError: they do not fit the model.
    """
    if isinstance(x, Examples):
      return x
    if self._reads_as_text(x):
      inputs = self._tokenized(x)
    else:
      inputs = checked_ids(x, self.config, self.id_ranks)
    labels = None if y is None else self.checked_labels(y, inputs)
    weights = None if sample_weight is None else finite(sample_weight, "sample_weight")
    examples = Examples(inputs, labels, weights)
    check_counts(examples)
    if class_weight is not None:
      examples = with_class_weights(examples, self.checked_class_weight(class_weight))
    return examples

  def _tokenized(self, texts: Any) -> Mapping[str, Column]:
    columns = self.columns(texts)
    if not len(next(iter(columns.values()))):
      raise UserError(
        "There must be at least one text. Received: none. Leave the call out for an empty list."
      )

    def pack(rows: Mapping[str, Any]) -> Mapping[str, Any]:
      # A preprocessor may be of another model.
      return checked_ids(self.preprocessor.pack(rows), self.config, self.id_ranks)

    return Examples.of_texts(columns, pack).inputs

  def prepared_batches(self, batches: Any, *, reads_labels: bool = True) -> Any:
    """A data set, a generator or a `keras.utils.Sequence` with texts as one with ids.

    Args:
      batches: any of them.
      reads_labels: if false, labels of a data set may be anything, such as -1 of rows to predict.
    """
    # A data set: its texts are tokenized in its pipeline. Its labels are not known yet.
    if hasattr(batches, "element_spec"):
      inputs, *_ = keras.utils.unpack_x_y_sample_weight(batches.element_spec)
      # A distributed one of ids takes no further function.
      if holds_text(inputs) or (
        isinstance(batches, tf.data.Dataset) and isinstance(inputs, Mapping)
      ):
        return self._mapped(batches, holds_text(inputs), reads_labels)
      return batches
    if isinstance(batches, keras.utils.Sequence):
      return _prepared_sequence(self, batches)
    return (self.prepared_batch(batch) for batch in batches)

  def _reads_as_text(self, inputs: Any) -> bool:
    """Whether the preprocessor takes the inputs, or refuses them: all but mappings of ids."""
    if self.preprocessor is None or isinstance(inputs, Mapping):
      return holds_text(inputs)
    return True

  def prepared_batch(self, batch: Any) -> tuple[Any, ...]:
    """What a generator or a `keras.utils.Sequence` gives: inputs, or a tuple with labels, too."""
    if not isinstance(batch, tuple):
      batch = (batch,)
    length = None
    if self.preprocessor is not None:
      # Keras takes the shapes from the first batches.
      length = self.preprocessor.max_length
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    return self.examples(x, decoded(y), sample_weight).padded(length)

  def fixed_length(self) -> int | None:
    """The length that all rows have; None if a batch has that of its longest row."""
    if self.preprocessor is not None and self._pads_to_max_length():
      return self.preprocessor.max_length
    return None

  def checked_labels(self, labels: Any, inputs: Mapping[str, Column]) -> Any:
    """Labels for the loss; raises `UserError` for labels out of the model's range.

    Args:
      labels: any form that Keras takes.
      inputs: ids by name, of tokens ragged.
    """
    return finite(labels)

  def asserted_labels(self, labels: Any, inputs: Mapping[str, tf.Tensor]) -> Any:
    """As `checked_labels`, for a batch of a data set: operations of its graph check the values."""
    del inputs
    return tf.nest.map_structure(asserted_finite, labels)

  def checked_class_weight(self, weights: Any) -> Any:
    """`class_weight` by number of the class; raises `UserError` for other weights."""
    raise UserError(
      f"class_weight is for an AlbertClassifier. Received: {type(self).__name__}. Give "
      "sample_weight."
    )

  def _mapped(self, dataset: Any, of_text: bool, reads_labels: bool) -> Any:
    """A data set of texts or of ids as one of ids, of which each batch is checked."""
    if of_text:
      preprocessor = self.needed_preprocessor()
      pad = self.per_piece or self._pads_to_max_length()

    @tf.autograph.experimental.do_not_convert  # AutoGraph would hide the types of our errors.
    def prepare(*element: Any) -> Any:
      x, y, weight = keras.utils.unpack_x_y_sample_weight(element)
      if of_text:
        x = preprocessor.pack(preprocessor.named(x), pad_to_max_length=pad)
      ids = asserted_ids(x, self.config, self.id_ranks)
      if reads_labels:
        y = self.asserted_labels(y, ids)
        weight = tf.nest.map_structure(lambda w: asserted_finite(w, "sample_weight"), weight)
      return keras.utils.pack_x_y_sample_weight(ids, y, weight)

    if not of_text:
      return dataset.map(prepare)
    return dataset.map(prepare, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)

  def columns(self, texts: Any, names: tuple[str, ...] = ()) -> dict[str, Any]:
    """Strings by name, see `AlbertPreprocessor.named`.

    Raises:
      UserError: the model has no preprocessor, or the numbers of rows differ.
    """
    columns: dict[str, Any] = self.needed_preprocessor().named(texts, names)
    counts = {name: len(column) for name, column in columns.items()}
    if len(set(counts.values())) > 1:
      raise UserError(
        f"All inputs must have the same number of rows. Received: {counts}. Give each as many."
      )
    return columns

  def _pads_to_max_length(self) -> bool:
    # On a TPU always: every length needs a compilation.
    return self.preprocessor.pad_to_max_length or device_kind(self.distribute_strategy) == "tpu"

  def needed_preprocessor(self) -> Any:
    """The preprocessor; raises `UserError` if there is none."""
    if self.preprocessor is None:
      raise UserError(
        f"{type(self).__name__} takes texts once it has a preprocessor. Received: a model "
        "without one. Make the model with from_pretrained(…) of a checkpoint with its "
        "tokenizer (or --spm_model_file), pass preprocessor=, or give ids."
      )
    return self.preprocessor

  # ------------------------------------------------------------------ Keras' files

  def get_config(self) -> dict[str, Any]:
    config = super().get_config()
    config["preprocessor"] = None
    if self.preprocessor is not None:
      config["preprocessor"] = keras.saving.serialize_keras_object(self.preprocessor)
    # In order, so that `from_config` sets a layer before the layers in it.
    config["trained"] = [bool(layer.trainable) for layer in self._flatten_layers()]
    return config

  @classmethod
  def from_config(cls, config: Options, custom_objects: Any = None) -> Any:
    config = dict(config)
    if config["preprocessor"] is not None:
      config["preprocessor"] = keras.saving.deserialize_keras_object(
        config["preprocessor"], custom_objects=custom_objects
      )
    trained = config.pop("trained")
    model = super().from_config(config)
    for layer, is_trained in zip(model._flatten_layers(), trained, strict=True):
      layer.trainable = is_trained
    return model


def _arguments_of(
  method: Callable[..., Any], model: Any, x: Any, y: Any, args: Any, kwargs: Any
) -> dict[str, Any]:
  """The arguments of a call of a method of `keras.Model` by name, without the model."""
  bound = inspect.signature(method).bind(model, x, y, *args, **kwargs)
  arguments = dict(bound.arguments)
  # Keras has arguments of its own among them.
  arguments |= arguments.pop("kwargs", {})
  del arguments["self"]
  return arguments


def has_batches(x: Any) -> bool:
  """Whether x is a data set, a `keras.utils.Sequence` or a generator: Keras takes no other iterator."""
  return hasattr(x, "element_spec") or isinstance(x, (keras.utils.Sequence, Iterator))


def _prepared_sequence(model: TextModel, source: Any) -> Any:
  """A copy of a `keras.utils.Sequence` with batches that the model has prepared."""

  class Prepared(type(source)):  # type: ignore[misc]
    def __getitem__(self, index: int) -> Any:
      return model.prepared_batch(super().__getitem__(index))

  # Not a wrapper: Keras reads further attributes, and users' classes have methods of their own.
  prepared = copy.copy(source)
  prepared.__class__ = Prepared
  return prepared
