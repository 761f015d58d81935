"""Whether this process can use the TPU that was named, before it connects to it."""

import sys
from typing import TYPE_CHECKING

import tensorflow as tf

from albert_tf import compat, tpu_host
from albert_tf.errors import UserError

if TYPE_CHECKING:
  from albert_tf.training.distribution import DistributionConfig


def probe_tpu(config: "DistributionConfig") -> None:
  """Refuses a TPU that this process could not use.

  Args:
    config: with `tpu` set.

  Raises:
    UserError: TensorFlow has no kernels for it, or there are no chips.
  """
  if not compat.TPU_KERNELS:
    raise UserError(
      "--tpu needs a TensorFlow with kernels for TPUs, and PyPI's package `tensorflow` has none. Received: "
      f"--tpu={config.tpu} with TensorFlow {tf.__version__} of {sys.prefix}. Type\n"
      "    make install STACK=tpu\n"
      f"    .venv-tpu/bin/python tpu_scripts/run_pretrain.py --doctor --tpu={config.tpu}\n"
      "and use that interpreter (on an image tpu-vm-tf-2.15.1 its own, see docs/tpu.md), or leave --tpu empty to "
      "use GPUs or the CPU."
    )
  if config.tpu == "local" and not tpu_host.chips():
    tpu_host.check_chips()
