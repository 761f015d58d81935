"""The flags that say where a command's replicas run and in which precision, and what they become."""

from absl import flags
import flag_settings

from albert_tf.errors import UserError
from albert_tf.training.precision import PRECISIONS
from albert_tf.training.settings import DISTRIBUTIONS, DistributionConfig

_TPU = flags.DEFINE_string(
  "tpu", "", "TPU: 'local', a name, or grpc://host:port. Empty: GPUs if any, else CPU."
)
flags.DEFINE_alias("tpu_name", "tpu")
flags.DEFINE_string("tpu_zone", "", "Zone of a TPU given by name.")
flags.DEFINE_string("gcp_project", "", "Project of a TPU given by name.")
flags.DEFINE_enum("distribution", "", ["", *DISTRIBUTIONS], "Overrides the choice by devices.")
flags.DEFINE_integer("num_virtual_devices", 1, "Split the CPU into this many replicas.")
_MIXED_PRECISION = flags.DEFINE_enum(
  "mixed_precision", None, PRECISIONS, "Default: bfloat16 on TPUs, else float32."
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
  """Whether the step is compiled for GPU or CPU. Imports TensorFlow.

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


def distribution_config() -> DistributionConfig:
  return flag_settings.from_flags(DistributionConfig)
