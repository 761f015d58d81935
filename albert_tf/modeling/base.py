"""The bases of layers and models whose sizes all come from an `AlbertConfig`."""

from typing import Any

from albert_tf.compat import ModelBase, keras
from albert_tf.configs import AlbertConfig
from albert_tf.modeling.dense import Dense


class ConfigLayer(keras.layers.Layer):
  """Holds the configuration and carries it through Keras's serialisation.

  Args:
    config: the model's configuration.
    accelerated, lora_rank: see `Encoder`.
  """

  def __init__(self, config: AlbertConfig, *, accelerated: bool = False, lora_rank: int = 0, **kwargs: Any):
    super().__init__(**kwargs)
    self.config = config
    self.accelerated = accelerated
    self.lora_rank = lora_rank

  def _dense(self, units: int, name: str, **kwargs: Any) -> Dense:
    """A part of this layer, with its precision and the configuration's initialisation."""
    return Dense(
      units,
      initializer_range=self.config.initializer_range,
      join_rows=not self.accelerated,
      lora_rank=self.lora_rank,
      name=name,
      dtype=self.dtype_policy,
      **kwargs,
    )

  def get_config(self) -> dict[str, Any]:
    return {
      **super().get_config(),
      "config": self.config.to_dict(),
      "accelerated": self.accelerated,
      "lora_rank": self.lora_rank,
    }

  @classmethod
  def from_config(cls, config: dict[str, Any]) -> "ConfigLayer":
    return cls(**{**config, "config": AlbertConfig.from_dict(config["config"])})


class ConfigModel(ModelBase):
  """As `ConfigLayer`, for models.

  Args:
    config: the model's configuration.
    preprocessor: a layer that makes ids of strings, for models that take them; see `models.text_model.TextModel`.
  """

  built: bool  # Keras sets it.

  def __init__(self, config: AlbertConfig, *, preprocessor: Any = None, **kwargs: Any):
    super().__init__(**kwargs, autocast=False)  # Ids would lose digits in bfloat16.
    self.config = config
    self.preprocessor = preprocessor

  def get_config(self) -> dict[str, Any]:
    return {**super().get_config(), "name": self.name, "config": self.config.to_dict()}

  @classmethod
  def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
    del custom_objects
    return cls(**{**config, "config": AlbertConfig.from_dict(config["config"])})
