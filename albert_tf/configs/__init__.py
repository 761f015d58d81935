"""Configurations: `AlbertConfig`, the named sizes, parameter counts. No TensorFlow."""

from albert_tf.configs.albert_config import HEADS as HEADS
from albert_tf.configs.albert_config import SIZES as SIZES
from albert_tf.configs.albert_config import AlbertConfig as AlbertConfig
from albert_tf.configs.albert_config import count_parameters as count_parameters
from albert_tf.configs.model_choice import ModelChoice as ModelChoice
