"""Configurations: `AlbertConfig`, the named sizes, parameter counts. No TensorFlow."""

from albert_tf.configs.albert_config import (
  AlbertConfig,
  ParameterCount,
  count_head_parameters,
  count_parameters,
  named_sizes,
)
from albert_tf.configs.model_choice import ModelChoice

__all__ = [
  "AlbertConfig",
  "ModelChoice",
  "ParameterCount",
  "count_head_parameters",
  "count_parameters",
  "named_sizes",
]
