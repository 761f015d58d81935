"""The flags that say where a command's replicas run and in which precision, and what they become."""

from typing import TYPE_CHECKING

from absl import flags

if TYPE_CHECKING:  # At run time it would import TensorFlow before the flags are read.
  from albert_tf.training.distribution import DistributionConfig

_TPU = flags.DEFINE_string(
  "tpu", "", "TPU: 'local', a name, or grpc://host:port. Empty: GPUs if any, else CPU."
)
flags.DEFINE_alias("tpu_name", "tpu")
_TPU_ZONE = flags.DEFINE_string("tpu_zone", "", "Zone of a TPU given by name.")
_GCP_PROJECT = flags.DEFINE_string("gcp_project", "", "Project of a TPU given by name.")
_DISTRIBUTION = flags.DEFINE_enum(
  "distribution",
  "",
  ["", "tpu", "mirrored", "multi_worker", "one_device"],
  "Overrides the choice by devices.",
)
_NUM_VIRTUAL_DEVICES = flags.DEFINE_integer(
  "num_virtual_devices", 1, "Split the CPU into this many replicas."
)
_MIXED_PRECISION = flags.DEFINE_enum(
  "mixed_precision", None, ["float32", "bfloat16"], "Default: bfloat16 on TPUs, else float32."
)


def on_tpu() -> bool:
  """Whether a TPU is named."""
  return bool(_TPU.value)


def mixed_precision() -> str:
  return _MIXED_PRECISION.value or ("bfloat16" if on_tpu() else "float32")


def distribution_config() -> "DistributionConfig":
  from albert_tf.training.distribution import DistributionConfig

  return DistributionConfig(
    tpu=_TPU.value,
    tpu_zone=_TPU_ZONE.value,
    gcp_project=_GCP_PROJECT.value,
    distribution=_DISTRIBUTION.value,
    num_virtual_devices=_NUM_VIRTUAL_DEVICES.value,
  )
