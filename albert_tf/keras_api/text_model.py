"""Base class of all models: loads checkpoints, takes texts as input, exports SavedModels.

`pretrained.py` and `task_model.py` have the classes that are made of it.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
import copy
import dataclasses
import functools
import inspect
import os
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from albert_tf import files
from albert_tf.checkpoints.bundle import check_finite, write_bundle
from albert_tf.checkpoints.checkpoint import Checkpoint, read_checkpoint
from albert_tf.checkpoints.load import ANY_HEAD, load_weights
from albert_tf.compat import ModelBase, device_kind
from albert_tf.configs import AlbertConfig
from albert_tf.configs.task import SHORTEST_ROW
from albert_tf.errors import UserError, whole_number
from albert_tf.keras_api.id_inputs import are_known, asserted_ids, checked_ids
from albert_tf.keras_api.labels import finite
from albert_tf.keras_api.logits import check_losses, metrics_of_logits
from albert_tf.keras_api.preprocessor import AlbertPreprocessor
from albert_tf.modeling.layers import ConfigModel
from albert_tf.modeling.variables import named_variables
from albert_tf.serving.export import export_model
from albert_tf.serving.settings import ExportSettings
from albert_tf.tokenization.graph_inputs import holds_text

# Keras' other formats → what makes such a file.
_OTHER_FORMATS = {
  "litert": "Call save_pretrained, and give its folder to tpu_scripts/export_lite.py "
  "--init_checkpoint",
  "onnx": 'Call save_pretrained, and follow "Convert to ONNX" in docs/serving.md',
}
# Texts tokenized together: twice as fast as all texts together, in half the memory.
_ROWS_AT_ONCE = 1024
# Arguments by name.
Options = Mapping[str, Any]


class LoadPlan(NamedTuple):
  """What `from_pretrained` builds, and which weights it takes.

  Attributes:
    variables: original name → array.
    may_be_missing: patterns of variables that keep their initial values where a checkpoint lacks
      them.
    lengths: those of the `AlbertPreprocessor`, by its arguments' names.
    options: arguments of the class.
  """

  variables: Mapping[str, np.ndarray]
  may_be_missing: tuple[str, ...]
  lengths: Options
  options: Options


def _with_texts(method: Callable[..., Any]) -> Any:
  """A method of `keras.Model`, for ids or texts; labels and weights are checked."""
  signature = inspect.signature(method)

  @functools.wraps(method)
  def prepared(model: "TextModel", *args: Any, **kwargs: Any) -> Any:
    if method.__name__.endswith("_on_batch"):
      model.check_single_batches()
    call = signature.bind(model, *args, **kwargs)
    arguments = call.arguments
    if "y" in signature.parameters:
      model.check_labelled(method.__name__, arguments.get("x"), arguments.get("y"))
    arguments["x"], y = model._prepared(arguments.get("x"), arguments.get("y"))
    if y is not None:
      arguments["y"] = y
    arguments.update(model._checked_weights(arguments))
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
  # Patterns of variables that a checkpoint may lack; they keep their initial values.
  may_be_missing: tuple[str, ...] = ()

  # ------------------------------------------------------------------ from_pretrained

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

    Args:
      path: a run directory, an original checkpoint, a TF-Hub module, a Hugging Face folder; or a
        `Checkpoint`.
      max_length: texts are cut to this many tokens. Default: the length of fine-tuning, else the
        model's positions.
      config: replaces the checkpoint's configuration, for example with other dropout rates.
      num_hidden_layers: another number of layers, if the layers share all weights.
      **options: arguments of the class, such as `dtype`; with `preprocessor=None` the model takes
        only ids.

    Raises:
      UserError: the path holds no known checkpoint, or its weights do not fit.
    """
    _check_names(f"{cls.__name__}.from_pretrained", options, cls.option_names())
    checkpoint = path
    if not isinstance(checkpoint, Checkpoint):
      checkpoint = read_checkpoint(checkpoint)
    config = (config or checkpoint.config).at_depth(num_hidden_layers)
    if max_length is not None:
      longest = config.max_position_embeddings
      max_length = whole_number(max_length, "max_length", minimum=SHORTEST_ROW, maximum=longest)

    plan = cls.plan_load(checkpoint, max_length, options)
    arguments = dict(plan.options)
    if checkpoint.tokenizer is not None and "preprocessor" not in arguments:
      arguments["preprocessor"] = AlbertPreprocessor(
        checkpoint.load_tokenizer(), kind=cls.preprocessor_kind, **plan.lengths
      )
    model = cls(config, **arguments)
    load_weights(
      model,
      plan.variables,
      allow_missing="|".join(plan.may_be_missing),
      allow_unused=ANY_HEAD,
      source=checkpoint.path,
    )
    return model

  @classmethod
  def option_names(cls) -> set[str]:
    """Names of the arguments of `from_pretrained`: its own, those of the constructors, Keras'."""
    names = {"max_length", "num_hidden_layers", "dtype", "name", "trainable"}
    for base in cls.__mro__:
      if issubclass(base, ConfigModel):
        names.update(inspect.signature(base.__init__).parameters)
    return names - {"self", "args", "kwargs"}

  @classmethod
  def plan_load(cls, checkpoint: Checkpoint, max_length: int | None, options: Options) -> LoadPlan:
    """Decides what `from_pretrained` makes of a checkpoint and of the caller's options."""
    lengths = {"max_length": max_length or checkpoint.config.max_position_embeddings}
    return LoadPlan(checkpoint.variables, cls.may_be_missing, lengths, options)

  # ------------------------------------------------------------------ Keras' methods

  def compile(self, *args: Any, **kwargs: Any) -> None:
    """`keras.Model.compile`; Keras' metrics of probabilities get those of the logits.

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
      inputs = self._needed_preprocessor()(inputs)
    # A preprocessor may have another vocabulary than the model, or longer rows.
    if are_known(inputs):
      inputs = checked_ids(inputs, self.config, self.id_ranks)
    return super().__call__(inputs, *args, **kwargs)

  def fit(
    self, x: Any = None, y: Any = None, *args: Any, validation_data: Any = None, **kwargs: Any
  ) -> Any:
    """`keras.Model.fit`, for ids or texts."""
    self.check_labelled("fit", x, y)
    if isinstance(validation_data, (tuple, list)):
      held_x, held_y, _ = keras.utils.unpack_x_y_sample_weight(validation_data)
      self.check_labelled("validation_data", held_x, held_y)
      validation_data = self._checked_batch(validation_data)
    elif validation_data is not None:
      self.check_labelled("validation_data", validation_data)
      validation_data, _ = self._prepared(validation_data)
    x, y = self._prepared(x, y)
    # Keras 3 warns that it cannot shuffle a data set or a generator.
    if isinstance(x, (tf.data.Dataset, Iterator)):
      kwargs.setdefault("shuffle", False)
    kwargs.update(self._checked_weights(kwargs))
    return super().fit(x, y, *args, validation_data=validation_data, **kwargs)

  evaluate = _with_texts(ModelBase.evaluate)
  predict = _with_texts(ModelBase.predict)
  train_on_batch = _with_texts(ModelBase.train_on_batch)
  test_on_batch = _with_texts(ModelBase.test_on_batch)
  predict_on_batch = _with_texts(ModelBase.predict_on_batch)

  # ------------------------------------------------------------------ texts, labels and weights

  def check_labelled(self, taker: str, x: Any, y: Any = None) -> None:
    """Raises `UserError` where the loss would have no labels, or strings of a data set.

    Args:
      taker: the method or the argument, for messages.
      x, y: any form that Keras takes. Each batch of a generator is checked when it comes.
    """
    if getattr(self, "loss", None) is None or isinstance(x, (keras.utils.Sequence, Iterator)):
      return
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

  def _prepared(self, x: Any, y: Any = None, *, to_max_length: bool = False) -> tuple[Any, Any]:
    """Tokenizes texts and checks labels, in any form that Keras takes."""
    # A data set: its texts are tokenized in its pipeline. Its labels are not known yet.
    if hasattr(x, "element_spec"):
      inputs, *_ = keras.utils.unpack_x_y_sample_weight(x.element_spec)
      # A distributed one of ids takes no further function.
      if holds_text(inputs) or (isinstance(x, tf.data.Dataset) and isinstance(inputs, Mapping)):
        x = self._mapped(x, holds_text(inputs))
      return x, y
    if isinstance(x, keras.utils.Sequence):
      return _prepared_sequence(self, x), y
    if isinstance(x, Iterator):
      # A generator: Keras takes no other iterator.
      return (self.prepared_batch(batch) for batch in x), y
    if self._reads_as_text(x):
      x = self._tokenized(x, to_max_length=to_max_length)
    x = checked_ids(x, self.config, self.id_ranks)
    if y is not None:
      y = self.checked_labels(y, x)
    return x, y

  def _reads_as_text(self, inputs: Any) -> bool:
    """Whether the preprocessor takes the inputs, or refuses them: all but mappings of ids."""
    if self.preprocessor is None or isinstance(inputs, Mapping):
      return holds_text(inputs)
    return True

  def prepared_batch(self, batch: Any) -> tuple[Any, ...]:
    """What a generator or a `keras.utils.Sequence` gives: inputs, or a tuple with labels, too."""
    if not isinstance(batch, tuple):
      batch = (batch,)
    # Keras takes the shapes from the first batches.
    return self._checked_batch(batch, to_max_length=True)

  def _checked_batch(self, batch: Any, *, to_max_length: bool = False) -> tuple[Any, ...]:
    """Inputs and, if there are any, labels and weights, ready for Keras."""
    x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
    x, y = self._prepared(x, y, to_max_length=to_max_length)
    if weights is not None:
      return x, y, finite(weights, "sample_weight")
    if y is not None:
      return x, y
    return (x,)

  def checked_labels(self, labels: Any, inputs: Any) -> Any:
    """Labels for the loss; raises `UserError` for labels out of the model's range.

    Args:
      labels: any form that Keras takes.
      inputs: ids by name.
    """
    return finite(labels)

  def _checked_weights(self, arguments: Options) -> dict[str, Any]:
    """`sample_weight` and `class_weight` of Keras' arguments, checked, where they are given."""
    checked = {}
    if arguments.get("sample_weight") is not None:
      checked["sample_weight"] = finite(arguments["sample_weight"], "sample_weight")
    if arguments.get("class_weight") is not None:
      checked["class_weight"] = self.checked_class_weight(arguments["class_weight"])
    return checked

  def checked_class_weight(self, weights: Any) -> Any:
    """`class_weight` by number of the class; raises `UserError` for other weights."""
    raise UserError(
      f"class_weight is for an AlbertClassifier. Received: {type(self).__name__}. Give "
      "sample_weight."
    )

  def _mapped(self, dataset: Any, of_text: bool) -> Any:
    """A data set of texts or of ids as one of ids, of which each batch is checked."""
    if of_text:
      preprocessor = self._needed_preprocessor()
      pad = self.per_piece or self._pads_to_max_length()

    @tf.autograph.experimental.do_not_convert  # AutoGraph would hide the types of our errors.
    def prepare(*element: Any) -> Any:
      x, y, weight = keras.utils.unpack_x_y_sample_weight(element)
      if of_text:
        x = preprocessor.pack(preprocessor.named(x), pad_to_max_length=pad)
      ids = asserted_ids(x, self.config, self.id_ranks)
      return keras.utils.pack_x_y_sample_weight(ids, y, weight)

    if not of_text:
      return dataset.map(prepare)
    return dataset.map(prepare, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)

  def columns(self, texts: Any, names: tuple[str, ...] = ()) -> dict[str, Any]:
    """Strings by name, see `AlbertPreprocessor.named`.

    Raises:
      UserError: the model has no preprocessor, or the numbers of rows differ.
    """
    columns: dict[str, Any] = self._needed_preprocessor().named(texts, names)
    counts = {name: len(column) for name, column in columns.items()}
    if len(set(counts.values())) > 1:
      raise UserError(
        f"All inputs must have the same number of rows. Received: {counts}. Give each as many."
      )
    return columns

  def _tokenized(self, texts: Any, *, to_max_length: bool = False) -> dict[str, np.ndarray]:
    columns = self.columns(texts)
    num_rows = len(next(iter(columns.values())))
    if not num_rows:
      raise UserError(
        "There must be at least one text. Received: none. Leave the call out for an empty list."
      )
    pad = to_max_length or self._pads_to_max_length()
    blocks = []
    for start in range(0, num_rows, _ROWS_AT_ONCE):
      block = {name: column[start : start + _ROWS_AT_ONCE] for name, column in columns.items()}
      blocks.append(self.preprocessor.pack(block, pad_to_max_length=pad))
    return {name: _stacked(name, [block[name] for block in blocks]) for name in blocks[0]}

  def _pads_to_max_length(self) -> bool:
    # On a TPU always: every length needs a compilation.
    return self.preprocessor.pad_to_max_length or device_kind(self.distribute_strategy) == "tpu"

  def _needed_preprocessor(self) -> Any:
    if self.preprocessor is None:
      raise UserError(
        f"{type(self).__name__} takes texts once it has a preprocessor. Received: strings, and a "
        "model without one. Make the model with from_pretrained(…) of a checkpoint with its "
        "tokenizer (or --spm_model_file), pass preprocessor=, or give ids."
      )
    return self.preprocessor

  # ------------------------------------------------------------------ files

  def export(
    self,
    filepath: files.Path,
    format: str = "tf_saved_model",
    verbose: bool | None = None,
    input_signature: Any = None,
    **settings: Any,
  ) -> None:
    """Writes a SavedModel, as `export_saved_model.py` does; the first four arguments are Keras'.

    Args:
      filepath: directory of the SavedModel; servers need a number as its last part.
      format: "tf_saved_model"; other formats have commands of their own.
      verbose: print where the SavedModel is.
      input_signature: None; the signatures follow from the kind of model.
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
    self.check_finite_weights()
    export_model(self, files.text_of(filepath), self.export_settings(**settings))
    if verbose:
      print(f"Exported {self.export_kind} to {filepath}")

  def export_settings(self, **settings: Any) -> ExportSettings:
    """`ExportSettings`, by default with the preprocessor's length; raises `UserError`."""
    _check_names(
      "An export", settings, [field.name for field in dataclasses.fields(ExportSettings)]
    )
    length = self._needed_preprocessor().max_length
    return ExportSettings(**{"max_seq_length": length} | settings)

  def save_pretrained(self, directory: files.Path) -> None:
    """Writes a run directory that `from_pretrained` and all commands can read.

    It contains configuration, tokenizer, task and weights.

    Raises:
      UserError: the directory is not empty, or a weight is not finite.
    """
    directory = files.text_of(directory)
    files.check_new(directory)
    step = 0
    if getattr(self, "optimizer", None) is not None:
      # No variable where Keras accumulates gradients itself.
      step = int(tf.convert_to_tensor(self.optimizer.iterations))
    with files.atomic_directory(directory) as folder:
      files.write_text(os.path.join(folder, "albert_config.json"), self.config.to_json_string())
      if self.preprocessor is not None:
        self.preprocessor.tokenizer.save_pretrained(folder)
      task = getattr(self, "task", None)
      if task is not None:
        task.save(folder)
      prefix = os.path.join(folder, "checkpoints", f"model.ckpt-{step}")
      files.makedirs(os.path.dirname(prefix))
      write_bundle(prefix, self._weight_values())

  def check_finite_weights(self) -> None:
    """Raises `UserError` if a weight is NaN or infinite."""
    check_finite(self._weight_values(), type(self).__name__)

  def _weight_values(self) -> dict[str, np.ndarray]:
    """All weights, by the original's names."""
    return {name: variable.numpy() for name, variable in named_variables(self).items()}

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


def _check_names(taker: str, arguments: Options, names: Collection[str]) -> None:
  """Raises `UserError` for an argument that is not one of the names."""
  for name in arguments:
    if name not in names:
      raise UserError(
        f"{taker} takes {', '.join(sorted(names))}. Received: {name}. Correct the name."
      )


def _prepared_sequence(model: TextModel, source: Any) -> Any:
  """A copy of a `keras.utils.Sequence` with batches that the model has prepared."""

  class Prepared(type(source)):  # type: ignore[misc]
    def __getitem__(self, index: int) -> Any:
      return model.prepared_batch(super().__getitem__(index))

  # Not a wrapper: Keras reads further attributes, and users' classes have methods of their own.
  prepared = copy.copy(source)
  prepared.__class__ = Prepared
  return prepared


def _stacked(name: str, batches: list[tf.Tensor]) -> np.ndarray:
  """The rows of all batches, padded to the longest.

  Padding is 0, the id of [PAD]; in `p_mask` it is 1, because no answer can be there.
  """
  ragged = [tf.RaggedTensor.from_tensor(batch, ragged_rank=batch.ndim - 1) for batch in batches]
  return tf.concat(ragged, axis=0).to_tensor(int(name == "p_mask")).numpy()
