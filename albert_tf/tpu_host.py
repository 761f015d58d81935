"""Checks of a machine's TPU chips before TensorFlow, which locks them, is imported.

Start-up, the doctor and the search for a TPU use it. A leaf, without TensorFlow.
"""

import glob
from importlib import metadata
import os

from albert_tf.errors import UserError

# What tensorflow-tpu needs besides its library, from Keras' example for it.
_VARIABLES_OF_CHIPS = {
  "PJRT_DEVICE": "TPU",
  "NEXT_PLUGGABLE_DEVICE_USE_C_API": "true",
  "TF_XLA_FLAGS": (
    "--tf_mlir_enable_mlir_bridge=true "
    "--tf_mlir_enable_convert_control_to_data_outputs_pass=true "
    "--tf_mlir_enable_merge_control_flow_pass=true"
  ),
}


def chips(dev: str = "/dev") -> list[str]:
  """Device files of this machine's TPU chips."""
  # v2 to v4 are /dev/accel0 and so on, later ones /dev/vfio/0. /dev/vfio/vfio is no chip.
  return sorted(glob.glob(f"{dev}/accel[0-9]*") + glob.glob(f"{dev}/vfio/[0-9]*"))


def unreachable(tpu: str, reason: str) -> UserError:
  """The error for a TPU that cannot be reached."""
  return UserError(
    f"No TPU could be reached at --tpu={tpu} ({reason[:600]}): run on a TPU VM, check name, zone "
    "and project, or leave --tpu empty to use GPUs or the CPU. `make doctor` looks for the cause."
  )


def check_chips() -> None:
  """Raises `UserError` if this machine has no chips; libtpu itself reports chips in use."""
  if not chips():
    raise unreachable("local", "this machine has no TPU chip: no /dev/accel* and no /dev/vfio/*")


def prepare_import(tpu: str) -> None:
  """Sets the variables about TPUs for an import of TensorFlow by this process or its children.

  Nothing else sets them. libtpu is loaded for --tpu=local alone: a TPU elsewhere is held by its own
  hosts, and may be this very machine's. What the shell exports cannot decide it, because the two
  variables of the first case together end a process with SIGABRT.
  """
  if tpu != "local" or not chips():
    # Without chips libtpu would ask Google's metadata server for minutes.
    os.environ["TPU_LOAD_LIBRARY"] = "0"
    os.environ.pop("TF_PLUGGABLE_DEVICE_LIBRARY_PATH", None)
    return

  os.environ.pop("TPU_LOAD_LIBRARY", None)
  library = library_of_wheel()
  if library:
    # The user's own values take precedence.
    os.environ.setdefault("TF_PLUGGABLE_DEVICE_LIBRARY_PATH", library)
    for name, value in _VARIABLES_OF_CHIPS.items():
      os.environ.setdefault(name, value)


def library_of_wheel() -> str:
  """The libtpu that pip installed with tensorflow-tpu; empty for other TensorFlows."""
  try:
    metadata.distribution("tensorflow-tpu")
    return str(metadata.distribution("libtpu").locate_file("libtpu/libtpu.so"))
  except metadata.PackageNotFoundError:
    return ""  # The image of a TPU VM has its own.
