"""Base class of all models: loads checkpoints, takes texts as input, exports SavedModels."""

from collections.abc import Iterator, Mapping
import copy
import dataclasses
import difflib
import functools
import inspect
import os
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf import files
from albert_tf.checkpoints.bundle import check_finite, write_bundle
from albert_tf.checkpoints.checkpoint import Checkpoint, read_checkpoint
from albert_tf.checkpoints.load import ANY_HEAD, load_weights
from albert_tf.compat import device_kind, keras
from albert_tf.configs import AlbertConfig
from albert_tf.configs.albert_config import MOST_POSITIONS
from albert_tf.configs.task import SHORTEST_ROW
from albert_tf.errors import UserError, whole_number
from albert_tf.keras_api.labels import finite
from albert_tf.keras_api.preprocessor import AlbertPreprocessor
from albert_tf.modeling.layers import ConfigModel
from albert_tf.modeling.variables import merged_values, named_variables
from albert_tf.tokenization.graph_inputs import holds_text

# Keras' other formats → what makes such a file.
_OTHER_FORMATS = {
  "litert": "Call save_pretrained, and give its folder to tpu_scripts/export_lite.py --init_checkpoint",
  "onnx": 'Call save_pretrained, and follow "ONNX" in docs/serving.md',
}
_ROWS_AT_ONCE = (
  1024  # Texts tokenized together: twice as fast as all texts together, in half the memory.
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadPlan:
  """What `from_pretrained` builds, and which weights it takes.

  Attributes:
    variables: original name → array.
    may_be_missing: pattern of variables that keep their initial values where a checkpoint lacks them; empty: none.
    lengths: those of the `AlbertPreprocessor`, by its arguments' names.
    options: arguments of the class.
  """

  variables: Mapping[str, np.ndarray]
  may_be_missing: str
  lengths: Mapping[str, Any]
  options: Mapping[str, Any]


class TextModel(ConfigModel):
  """Base class of models that take ids or, with a preprocessor, texts.

  `fit`, `evaluate` and `predict` tokenize lists and arrays before the first batch, and data sets in their pipeline.

  Args:
    config: the encoder's configuration.
    preprocessor: an `AlbertPreprocessor`; None: the model takes only ids.
  """

  export_kind: str  # The kind of SavedModel; see `export_saved_model.py --model`.
  text_kind = "text"  # `kind` of its `AlbertPreprocessor`.
  per_piece = (
    False  # Whether outputs have an axis S; then all batches of a data set need the same S.
  )
  labels_in_words = "a label"
  new_variables = (
    ""  # Pattern of variables that a checkpoint may lack; they keep their initial values.
  )
  _default_save_signature = None  # Else Keras' `export` of an outer model traces it on floats.

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
      path: a run directory, an original checkpoint, a TF-Hub module, a Hugging Face folder; or a `Checkpoint`.
      max_length: texts are cut to this many tokens. Default: the length of fine-tuning, else the
        model's positions.
      config: replaces the checkpoint's configuration, for example with other dropout rates.
      num_hidden_layers: another number of layers, if the layers share all weights.
      **options: arguments of the class, such as `dtype`; with `preprocessor=None` the model takes only ids.

    Raises:
      UserError: the path holds no known checkpoint, or its weights do not fit.
    """
    cls._check_options(options)
    checkpoint = path if isinstance(path, Checkpoint) else read_checkpoint(path)
    config = (config or checkpoint.config).at_depth(num_hidden_layers)
    if max_length is not None:
      max_length = whole_number(
        max_length, "max_length", minimum=SHORTEST_ROW, maximum=MOST_POSITIONS
      )
      config.check_length(max_length, f"a model of {checkpoint.path}")
    plan = cls.plan_load(checkpoint, max_length, options)
    arguments = dict(plan.options)
    if checkpoint.tokenizer is not None and "preprocessor" not in arguments:
      # A task of Hugging Face may name a greater length than the model has positions.
      max_length = min(plan.lengths["max_length"], config.max_position_embeddings)
      arguments["preprocessor"] = AlbertPreprocessor(
        checkpoint.load_tokenizer(),
        kind=cls.text_kind,
        **{**plan.lengths, "max_length": max_length},
      )
    model = cls(config, **arguments)
    may_be_missing = "/lora_[ab]$"  # Low-rank additions are always new.
    if plan.may_be_missing:
      may_be_missing += f"|{plan.may_be_missing}"
    load_weights(
      model,
      plan.variables,
      allow_missing=may_be_missing,
      allow_unused=ANY_HEAD,
      source=checkpoint.path,
    )
    return model

  @classmethod
  def option_names(cls) -> set[str]:
    """Names of further arguments of `from_pretrained`: those of the constructors, and Keras'."""
    names = {"dtype", "name", "trainable"}
    for base in cls.__mro__:
      if issubclass(base, ConfigModel):
        names |= set(inspect.signature(base.__init__).parameters)
    return names - {"self", "args", "kwargs", "config"}

  @classmethod
  def _check_options(cls, options: Mapping[str, Any]) -> None:
    """Raises `UserError` for an unknown argument of `from_pretrained`."""
    names = sorted({"max_length", "config", "num_hidden_layers"} | cls.option_names())
    for name in options:
      if name not in names:
        nearest = difflib.get_close_matches(name, names, n=2, cutoff=0.4)
        raise UserError(
          f"{cls.__name__}.from_pretrained has arguments of its own. Received: {name}; the nearest: "
          f"{', '.join(nearest) or 'none'}. Choose among {', '.join(names)}."
        )

  @classmethod
  def plan_load(
    cls, checkpoint: Checkpoint, max_length: int | None, options: Mapping[str, Any]
  ) -> LoadPlan:
    """Decides what `from_pretrained` makes of a checkpoint, of its `max_length` and of its other options."""
    if max_length is None:
      max_length = checkpoint.config.max_position_embeddings
    return LoadPlan(
      variables=checkpoint.variables,
      may_be_missing=cls.new_variables,
      lengths={"max_length": max_length},
      options=options,
    )

  def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    if self._reads_as_text(inputs):
      self._require_preprocessor()
      inputs = self.preprocessor(inputs)
    return super().__call__(inputs, *args, **kwargs)

  def fit(
    self, x: Any = None, y: Any = None, *args: Any, validation_data: Any = None, **kwargs: Any
  ) -> Any:
    """`keras.Model.fit`, for ids or texts."""
    x, y = self._prepared(x, y)
    if isinstance(x, Mapping) and y is None and getattr(self, "loss", None) is not None:
      raise UserError(
        f"`fit` needs y, {self.labels_in_words} for each row. Received: none. Give it."
      )
    if isinstance(validation_data, (tuple, list)):
      held_x, held_y, *weights = validation_data
      held_weights = [finite(column, "sample_weight") for column in weights if column is not None]
      validation_data = (*self._prepared(held_x, held_y), *held_weights)
    elif validation_data is not None:
      validation_data, _ = self._prepared(validation_data)
    if isinstance(x, tf.data.Dataset):
      kwargs.setdefault("shuffle", False)  # Keras 3 warns that it cannot shuffle a data set.
    return super().fit(
      x, y, *args, validation_data=validation_data, **self._checked_weights(kwargs)
    )

  def evaluate(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
    """`keras.Model.evaluate`, for ids or texts."""
    return super().evaluate(*self._prepared(x, y), *args, **self._checked_weights(kwargs))

  def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
    """`keras.Model.predict`, for ids or texts."""
    return super().predict(self._prepared(x)[0], *args, **kwargs)

  def train_on_batch(self, x: Any, y: Any = None, sample_weight: Any = None, **kwargs: Any) -> Any:
    """`keras.Model.train_on_batch`, for ids or texts."""
    self.check_single_batches()
    weights = self._checked_weights({"sample_weight": sample_weight, **kwargs})
    return super().train_on_batch(*self._prepared(x, y), **weights)

  def test_on_batch(self, x: Any, y: Any = None, sample_weight: Any = None, **kwargs: Any) -> Any:
    """`keras.Model.test_on_batch`, for ids or texts."""
    self.check_single_batches()
    weights = self._checked_weights({"sample_weight": sample_weight, **kwargs})
    return super().test_on_batch(*self._prepared(x, y), **weights)

  def predict_on_batch(self, x: Any) -> Any:
    """`keras.Model.predict_on_batch`, for ids or texts."""
    self.check_single_batches()
    return super().predict_on_batch(self._prepared(x)[0])

  def _prepared(self, x: Any, y: Any = None) -> tuple[Any, Any]:
    """Tokenizes texts and checks labels."""
    if hasattr(x, "element_spec"):
      first = keras.utils.unpack_x_y_sample_weight(x.element_spec)[0]
      return (self._mapped(x) if holds_text(first) else x), y
    if isinstance(x, keras.utils.Sequence):
      return _prepared_sequence(self, x), y
    if isinstance(x, Iterator):
      return (self.prepared_batch(batch) for batch in x), y
    if self._reads_as_text(x):
      x = self._tokenized(x)
    if y is not None:
      y = self.checked_labels(y, x)
    return x, y

  def _reads_as_text(self, inputs: Any) -> bool:
    """Whether the preprocessor takes the inputs, or refuses them: all but mappings of ids."""
    if self.preprocessor is None or isinstance(inputs, Mapping):
      return holds_text(inputs)
    return True

  def prepared_batch(self, batch: Any) -> tuple[Any, ...]:
    """What a generator or `keras.utils.Sequence` gives: inputs, or a tuple with labels and weights, too."""
    if not isinstance(batch, tuple):
      batch = (batch,)
    x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
    if self._reads_as_text(x):
      x = self._tokenized(x, to_max_length=True)  # Keras takes the shapes from the first batches.
    x, y = self._prepared(x, y)
    return tuple(part for part in (x, y, weight) if part is not None)

  def checked_labels(self, labels: Any, inputs: Any) -> Any:
    """Labels for the loss; raises `UserError` for labels out of the model's range.

    Args:
      labels: any form that Keras takes.
      inputs: ids by name.
    """
    return finite(labels, "Labels")

  def _checked_weights(self, options: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of Keras, with `sample_weight` and `class_weight` checked."""
    checked = dict(options)
    if checked.get("sample_weight") is not None:
      checked["sample_weight"] = finite(checked["sample_weight"], "sample_weight")
    if checked.get("class_weight") is not None:
      checked["class_weight"] = self.checked_class_weight(checked["class_weight"])
    return checked

  def checked_class_weight(self, weights: Any) -> Any:
    """`class_weight` by number of the class; raises `UserError` for other weights."""
    raise UserError(
      f"class_weight is for an AlbertClassifier. Received: {type(self).__name__}. Give sample_weight."
    )

  def _mapped(self, dataset: Any) -> Any:
    self._require_preprocessor()
    pad = self.per_piece or self._pads_to_max_length()

    @tf.autograph.experimental.do_not_convert  # AutoGraph would hide the types of our errors.
    def prepare(*element: Any) -> Any:
      x, y, weight = keras.utils.unpack_x_y_sample_weight(
        element[0] if len(element) == 1 else element
      )
      ids = self.preprocessor.pack(self.preprocessor.named(x), pad_to_max_length=pad)
      return keras.utils.pack_x_y_sample_weight(ids, y, weight)

    return dataset.map(prepare, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)

  def columns(self, texts: Any, kind: str = "") -> dict[str, Any]:
    """Strings by name, see `AlbertPreprocessor.named`; raises `UserError` if their numbers differ."""
    self._require_preprocessor()
    named: dict[str, Any] = self.preprocessor.named(texts, kind)
    counts = {name: len(column) for name, column in named.items()}
    if len(set(counts.values())) > 1:
      raise UserError(f"All inputs must have the same number of rows. Received: {counts}.")
    return named

  def _tokenized(self, texts: Any, *, to_max_length: bool = False) -> dict[str, np.ndarray]:
    named = self.columns(texts)
    number = len(next(iter(named.values())))
    if not number:
      raise UserError(
        "There must be at least one text. Received: none. Leave the call out for an empty list."
      )
    pad = to_max_length or self._pads_to_max_length()
    parts = [
      self.preprocessor.pack(
        {n: c[start : start + _ROWS_AT_ONCE] for n, c in named.items()}, pad_to_max_length=pad
      )
      for start in range(0, max(1, number), _ROWS_AT_ONCE)
    ]
    return {name: _stacked(name, [part[name].numpy() for part in parts]) for name in parts[0]}

  def _pads_to_max_length(self) -> bool:
    """Whether rows are padded to the maximum; on a TPU always, because every length needs a compilation."""
    return self.preprocessor.pad_to_max_length or device_kind(self.distribute_strategy) == "tpu"

  def _require_preprocessor(self) -> None:
    if self.preprocessor is None:
      raise UserError(
        f"{type(self).__name__} takes texts once it has a preprocessor. Received: strings, and a model without one. "
        "Make the model with from_pretrained(…) of a checkpoint with its tokenizer (or --spm_model_file), pass "
        "preprocessor=, or give ids."
      )

  def export(
    self,
    filepath: files.Path,
    format: str = "tf_saved_model",
    verbose: bool | None = None,
    input_signature: Any = None,
    **settings: Any,
  ) -> None:
    """Writes a SavedModel, as `export_saved_model.py` does; the first four arguments are those of Keras.

    Args:
      filepath: directory of the SavedModel; servers need a number as its last part.
      format: "tf_saved_model"; other formats have commands of their own.
      verbose: print where the SavedModel is.
      input_signature: None; the signatures follow from the kind of model.
      **settings: fields of `ExportSettings`, such as `top_k`.

    Raises:
      UserError: the model has no preprocessor, the directory exists, or an argument is refused.
    """
    from albert_tf.serving.export import export_model
    from albert_tf.serving.settings import ExportSettings

    if format != "tf_saved_model":
      remedy = _OTHER_FORMATS.get(format, 'Leave `format` out, or give "tf_saved_model"')
      raise UserError(f"`export` writes a SavedModel. Received: format={format!r}. {remedy}.")
    if input_signature is not None:
      raise UserError(
        "The kind of model decides the signatures of an export. Received: an input_signature. "
        "Leave it out; for one of your own use tf.saved_model.save."
      )
    names = [field.name for field in dataclasses.fields(ExportSettings)]
    unknown = sorted(set(settings) - set(names))
    if unknown:
      raise UserError(
        f"`export` takes {', '.join(names)}. Received: {', '.join(unknown)}. Correct the name."
      )
    self._require_preprocessor()
    chosen = ExportSettings(**{"max_seq_length": self.preprocessor.max_length, **settings})
    export_model(self.merged(), files.text_of(filepath), chosen)
    if verbose:
      print(f"Exported {self.export_kind} to {filepath}")

  def save_pretrained(self, directory: files.Path) -> None:
    """Writes a run directory that `from_pretrained` and all commands can read.

    It contains configuration, tokenizer, task and weights; LoRA variables are merged into the kernels.

    Raises:
      UserError: the directory is not empty, or a weight is not finite.
    """
    directory = files.text_of(directory)
    files.check_new(directory)
    optimizer = getattr(self, "optimizer", None)
    step = 0
    if optimizer is not None:
      step = int(
        tf.convert_to_tensor(optimizer.iterations)
      )  # With Keras' own accumulation no variable.
    with files.atomic_directory(directory) as folder:
      files.write_text(os.path.join(folder, "albert_config.json"), self.config.to_json_string())
      if self.preprocessor is not None:
        self.preprocessor.tokenizer.save_pretrained(folder)
      if getattr(self, "task", None) is not None:
        self.task.save(folder)
      files.makedirs(os.path.join(folder, "checkpoints"))
      prefix = os.path.join(folder, "checkpoints", f"model.ckpt-{step}")
      write_bundle(prefix, merged_values(named_variables(self)))

  def merged(self) -> Any:
    """An equal model without LoRA variables, for an export; the model itself if it has none.

    Raises:
      UserError: a weight is not finite.
    """
    variables = named_variables(self)
    config = self.get_config()
    values = merged_values(variables)
    check_finite(values, type(self).__name__)
    if len(values) == len(variables):
      return self
    config.get("encoder_options", config)["lora_rank"] = (
      0  # `AlbertEncoder` has it at the top level.
    )
    model = type(self).from_config(config)
    for name, variable in named_variables(model).items():
      variable.assign(values[name])
    return model

  def get_config(self) -> dict[str, Any]:
    preprocessor = self.preprocessor and keras.saving.serialize_keras_object(self.preprocessor)
    trained = [bool(layer.trainable) for layer in self._flatten_layers()]  # Whole before parts.
    return {**super().get_config(), "trained": trained, "preprocessor": preprocessor}

  @classmethod
  def from_config(cls, config: Mapping[str, Any], custom_objects: Any = None) -> Any:
    config = dict(config)
    if config["preprocessor"] is not None:
      config["preprocessor"] = keras.saving.deserialize_keras_object(
        config["preprocessor"], custom_objects=custom_objects
      )
    flags = config.pop("trained")
    model = super().from_config(config)
    for layer, is_trained in zip(model._flatten_layers(), flags, strict=True):
      layer.trainable = is_trained
    return model


def _prepared_sequence(model: TextModel, source: Any) -> Any:
  """A copy of a `keras.utils.Sequence` whose batches are the model's `prepared_batch` of its own."""

  class Prepared(type(source)):  # type: ignore[misc]
    def __getitem__(self, index: int) -> Any:
      return model.prepared_batch(super().__getitem__(index))

  prepared = copy.copy(source)
  prepared.__class__ = Prepared
  return prepared


def _stacked(name: str, parts: list[np.ndarray]) -> np.ndarray:
  """The rows of all parts, padded to the longest: `p_mask` with 1, other arrays with 0, the id of [PAD]."""
  longest = max(part.shape[-1] for part in parts)
  fill = functools.partial(np.pad, constant_values=int(name == "p_mask"))
  return np.concatenate(
    [fill(p, [(0, 0)] * (p.ndim - 1) + [(0, longest - p.shape[-1])]) for p in parts]
  )
