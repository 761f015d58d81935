"""Configurations: `AlbertConfig`, the named sizes, parameter counts. No TensorFlow."""

from albert_tf.configs.albert_config import ACTIVATIONS, SHARING_KINDS, AlbertConfig
from albert_tf.configs.model_choice import ModelChoice
from albert_tf.configs.param_count import ParameterCount, count_head_parameters, count_parameters
from albert_tf.configs.sizes import named_sizes

__all__ = [
  "ACTIVATIONS",
  "SHARING_KINDS",
  "AlbertConfig",
  "ModelChoice",
  "ParameterCount",
  "count_head_parameters",
  "count_parameters",
  "named_sizes",
]
