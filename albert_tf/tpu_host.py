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
  """The error for a TPU that cannot be reached."""
  return UserError(
    f"No TPU could be reached at --tpu={tpu} ({reason[:600]}): run on a TPU VM, check name, zone and project, or leave "
    "--tpu empty to use GPUs or the CPU. `make doctor` looks for the cause."
  )


def check_chips() -> None:
  """Raises `UserError` if there are no chips or TensorFlow cannot see them; libtpu itself reports chips in use."""
  if not chips():
    raise unreachable("local", "this machine has no TPU chip: no /dev/accel* and no /dev/vfio/*")
  if os.environ.get("TPU_LOAD_LIBRARY") == "0":
    raise unreachable("local", "TPU_LOAD_LIBRARY=0 hides this machine's TPU; unset it")


def prepare_import(tpu: str) -> None:
  """Prepares the import of TensorFlow; raises `UserError` if --tpu is this machine's TPU and not available."""
  if tpu == "local" and chips():
    check_chips()
  else:  # Nothing here for libtpu to take: a TPU elsewhere is held by its own hosts, and may be this very machine's.
    os.environ.setdefault("TPU_LOAD_LIBRARY", "0")
