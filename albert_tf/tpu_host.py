"""Checks of a machine's TPU chips before TensorFlow, which locks them, is imported.

A leaf, without TensorFlow.
"""

import glob
import os

from albert_tf.errors import UserError


def chips(dev: str = "/dev") -> list[str]:
  """Device files of this machine's TPU chips: v2 to v4 are `accel*`, later ones `vfio/*`."""
  return sorted([*glob.glob(f"{dev}/accel[0-9]*"), *glob.glob(f"{dev}/vfio/[0-9]*")])


def unreachable(tpu: str, reason: str) -> UserError:
  """The error of a TPU that does not answer."""
  return UserError(
    f"No TPU could be reached at --tpu={tpu} ({reason[:600]}): run on a TPU VM, check name, zone and project, or leave "
    "--tpu empty to use GPUs or the CPU. `make doctor` looks for the cause."
  )


def check_chips() -> None:
  """Refuses a machine without chips, or with chips hidden from TensorFlow; of chips in use libtpu names the process."""
  if not chips():
    raise unreachable("local", "this machine has no TPU chip: no /dev/accel* and no /dev/vfio/*")
  if os.environ.get("TPU_LOAD_LIBRARY") == "0":
    raise unreachable("local", "TPU_LOAD_LIBRARY=0 hides this machine's TPU; unset it")


def prepare_import(tpu: str) -> None:
  """Call it before TensorFlow is imported, with --tpu; `UserError` where that is this machine's and cannot be had."""
  if tpu == "local" and chips():
    check_chips()
  else:  # Nothing here for libtpu to take: a TPU elsewhere is held by its own hosts, and may be this very machine's.
    os.environ.setdefault("TPU_LOAD_LIBRARY", "0")
