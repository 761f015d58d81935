"""The base of layers whose sizes all come from an `AlbertConfig`."""

from typing import Any

from albert_tf.compat import keras
from albert_tf.configs import AlbertConfig


class ConfigLayer(keras.layers.Layer):
  """Holds the configuration and carries it through Keras's serialisation.

  Args:
    config: the model's configuration.
  """

  def __init__(self, config: AlbertConfig, **kwargs: Any):
    super().__init__(**kwargs)
    self.config = config

  def get_config(self) -> dict[str, Any]:
    return {**super().get_config(), "config": self.config.to_dict()}

  @classmethod
  def from_config(cls, config: dict[str, Any]) -> "ConfigLayer":
    return cls(**{**config, "config": AlbertConfig.from_dict(config["config"])})
