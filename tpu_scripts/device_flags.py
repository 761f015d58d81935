"""The flags that say where a command's replicas run and in which precision, and what they become."""

from typing import TYPE_CHECKING

from absl import flags

from albert_tf.errors import UserError

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
_USE_XLA = flags.DEFINE_bool("use_xla", False, "Compile with XLA on GPU or CPU; a TPU always does.")


def tpu() -> str:
  """What --tpu names; empty for none."""
  return str(_TPU.value)


def on_tpu() -> bool:
  """Whether a TPU is named."""
  return bool(tpu())


def mixed_precision() -> str:
  return _MIXED_PRECISION.value or ("bfloat16" if on_tpu() else "float32")


def use_xla() -> bool:
  """Whether the step is compiled for GPU or CPU.

  Raises:
    UserError: there is nothing that it could be compiled with.
  """
  if not _USE_XLA.value:
    return False
  if on_tpu():
    raise UserError(
      "--use_xla compiles for GPU and CPU, and a TPU compiles every step anyway; the TensorFlow with TPU kernels "
      f"has no XLA for its host. Received: --use_xla with --tpu={_TPU.value}. Leave --use_xla out."
    )
  from albert_tf import compat

  if not compat.HOST_XLA:
    raise UserError(
      "--use_xla needs a TensorFlow with XLA for this machine's CPU or GPU. Received: tensorflow-tpu, which has "
      "it for TPUs alone. Leave --use_xla out, or use the default stack."
    )
  return True


def distribution_config() -> "DistributionConfig":
  from albert_tf.training.distribution import DistributionConfig

  return DistributionConfig(
    tpu=_TPU.value,
    tpu_zone=_TPU_ZONE.value,
    gcp_project=_GCP_PROJECT.value,
    distribution=_DISTRIBUTION.value,
    num_virtual_devices=_NUM_VIRTUAL_DEVICES.value,
  )
