"""Configurations: `AlbertConfig`, the named sizes, parameter counts. No TensorFlow."""

from albert_tf.configs.albert_config import HEADS, SIZES, AlbertConfig, count_parameters
from albert_tf.configs.model_choice import ModelChoice

__all__ = ["HEADS", "SIZES", "AlbertConfig", "ModelChoice", "count_parameters"]
