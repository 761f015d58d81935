"""What a machine shows of its TPU before TensorFlow, which locks the chips, is imported: chips, and who holds them.

A leaf, without TensorFlow.
"""

import glob
import os

from albert_tf.errors import UserError

LOCK_FILE = "/tmp/libtpu_lockfile"  # libtpu's own; whoever holds the chips has it locked.


def chips(dev: str = "/dev") -> list[str]:
  """Device files of this machine's TPU chips: v2 to v4 are `accel*`, later ones `vfio/*`."""
  return sorted([*glob.glob(f"{dev}/accel[0-9]*"), *glob.glob(f"{dev}/vfio/[0-9]*")])


def holders(paths: list[str], proc: str = "/proc") -> dict[int, str]:
  """Command lines, by process id, of others that have one of `paths` open, as far as this user may see."""
  wanted = {os.path.realpath(path) for path in paths}
  found: dict[int, str] = {}
  for link in glob.glob(f"{proc}/[0-9]*/fd/*"):
    pid = int(link.split("/")[-3])
    try:
      if pid == os.getpid() or os.readlink(link) not in wanted:
        continue
      with open(f"{proc}/{pid}/cmdline", "rb") as stream:
        found[pid] = stream.read().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:  # It ended meanwhile.
      continue
  return found


def unreachable(tpu: str, reason: str) -> UserError:
  """The error of a TPU that does not answer."""
  return UserError(
    f"No TPU could be reached at --tpu={tpu} ({reason[:600]}): run on a TPU VM, check name, zone and project, or leave "
    "--tpu empty to use GPUs or the CPU. `make doctor` looks for the cause."
  )


def check_chips() -> None:
  """Refuses a machine without chips, with chips hidden from TensorFlow, or held by another process."""
  found = chips()
  if not found:
    raise unreachable("local", "this machine has no TPU chip: no /dev/accel* and no /dev/vfio/*")
  if os.environ.get("TPU_LOAD_LIBRARY") == "0":
    raise unreachable("local", "TPU_LOAD_LIBRARY=0 hides this machine's TPU; unset it")
  for pid, command in holders([*found, LOCK_FILE]).items():
    raise unreachable("local", f"process {pid} holds the chips: {command[:80]}; end it if it is yours")


def prepare_import(tpu: str) -> None:
  """Call it before TensorFlow is imported, with --tpu; `UserError` where that is this machine's and cannot be had."""
  if tpu == "local" and chips():
    check_chips()
  else:  # Nothing here for libtpu to take: a TPU elsewhere is held by its own hosts, and may be this very machine's.
    os.environ.setdefault("TPU_LOAD_LIBRARY", "0")
