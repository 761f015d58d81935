"""The base class of models with a configuration, as Keras makes, saves and loads them."""

from typing import Any

from albert_tf.compat import ModelBase
from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.modeling.layers import Composite


class ConfigModel(Composite, ModelBase):
  """Base class of models with a configuration, which Keras saves. The constructor makes the weights.

  Args:
    config: the model's configuration.
    preprocessor: a layer that converts strings to ids; see `keras_api.text_model.TextModel`.
  """

  built: bool  # Keras sets it.
  # Else Keras traces the model on floats where it is saved, alone or in another model.
  _default_save_signature = None
  # The model's heads, of `name_map.ALL_HEADS`.
  checkpoint_heads: tuple[str, ...] = ()

  def __init__(self, config: AlbertConfig, *, preprocessor: Any = None, **kwargs: Any):
    super().__init__(**kwargs, autocast=False)  # Ids would lose digits in bfloat16.
    self.config = config
    self.preprocessor = preprocessor

  def save(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
    """`keras.Model.save`, without Keras' older HDF5 format, which cannot be loaded again.

    The file holds configuration, weights, compiled losses, optimizer with its state, vocabulary,
    labels, and which layers are frozen. The Keras that wrote it reads it, 2 or 3; for the other take
    `save_pretrained`. A model of `mixed_float16` is loaded as one, on a CPU too, whatever the global
    policy is; weights are float32. Losses and metrics of yours must be registered for Keras.

    Raises:
      UserError: the path ends in .h5 or .hdf5.
    """
    if str(filepath).endswith((".h5", ".hdf5")):
      raise UserError(
        f"A model is saved as a .keras file. Received: {filepath}. Give it the ending .keras."
      )
    super().save(filepath, *args, **kwargs)

  def quantize(self, *args: Any, **kwargs: Any) -> None:
    """Refused: Keras would only warn for each of these layers, and change nothing."""
    raise UserError(
      f"Keras quantizes only its own layers. Received: quantize() of {type(self).__name__}. "
      "For int8 weights call save_pretrained, and give its folder to "
      "tpu_scripts/export_lite.py --init_checkpoint with --weights=int8."
    )

  def get_config(self) -> dict[str, Any]:
    config = super().get_config()
    config["name"] = self.name
    config["dtype"] = self.dtype_policy.name  # Keras 2 leaves it out.
    config["config"] = self.config.to_dict()
    return config

  @classmethod
  def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
    del custom_objects
    return cls(**config | {"config": AlbertConfig.from_dict(config["config"])})
