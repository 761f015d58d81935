"""What a machine shows of its TPU before TensorFlow is imported: its chips, who holds them, whether they start. A leaf.

TensorFlow locks the chips when it is imported, so nothing here imports it into this process.
"""

import glob
import json
import os
import re
import signal
import subprocess
import sys
from typing import Any

from albert_tf.errors import UserError

LOCK_FILE = "/tmp/libtpu_lockfile"  # libtpu's own; whoever holds the chips has it locked.
# Lines of the runtime's messages that say where, and not what.
_NO_REASON = re.compile(
  r"^(\[\[|\[Op:|File \"|Traceback|Graph execution error|Detected at node|<|=== Source|Registered )",
  re.IGNORECASE,
)
_INITIALIZE_SECONDS = 600.0
_ANSWER = "probe: "
_INITIALIZE = f"""
import json
import tensorflow as tf
from tensorflow.python.framework import kernels
answer = {{"kernels": bool(kernels.get_registered_kernels_for_op("TPUExecute").kernel)}}
if answer["kernels"]:
  try:
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
    tf.tpu.experimental.initialize_tpu_system(resolver)
    answer["cores"] = len(tf.config.list_logical_devices("TPU"))
  except Exception as error:
    answer["error"] = str(error) or type(error).__name__
print({_ANSWER!r} + json.dumps(answer), flush=True)
"""
# What a log puts before its words: time, severity, source line.
_LOG_PREFIX = re.compile(r"^(\d{4}-\S+ \S+ [FEWI]|[FEWI]\d{4} \S+ +\d+) \S+\] ")


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


def last_informative_line(message: str, most: int = 240) -> str:
  """The last line of a runtime's message that says what happened, in at most `most` characters."""
  lines = [line.strip() for line in message.splitlines()]
  telling = [line for line in lines if line and not _NO_REASON.match(line)] or [
    line for line in lines if line
  ]
  words = _LOG_PREFIX.sub("", re.sub(r"\s*\[Op:\w+\]$", "", telling[-1])) if telling else ""
  return words[:most].rstrip(" .:")


def unreachable(tpu: str, message: str) -> UserError:
  """The error of a TPU that does not answer; `message` is the runtime's own."""
  return UserError(
    f"No TPU could be reached at --tpu={tpu} ({last_informative_line(message)}): run on a TPU VM, check name, zone "
    "and project, or leave --tpu empty to use GPUs or the CPU. `make doctor` looks for the cause."
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


def initialize_in_child(seconds: float = _INITIALIZE_SECONDS) -> int | None:
  """Initialises this machine's TPU in a process that may die of it, and gives it back.

  Where wheel and libtpu do not fit, initialisation ends the process with a signal. This costs a start one more
  import of TensorFlow and one more initialisation of the chips, some 10 to 30 seconds.

  Returns:
    The number of cores; None where this TensorFlow has no kernels for a TPU.

  Raises:
    UserError: with the runtime's reason, or the signal that ended the child.
  """
  command = [sys.executable, "-c", _INITIALIZE]
  try:
    child = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=seconds)
  except subprocess.TimeoutExpired as error:
    raise unreachable("local", f"its initialisation took more than {seconds:.0f} s") from error
  if child.returncode < 0:
    name, last = signal.Signals(-child.returncode).name, last_informative_line(child.stderr, 100)
    raise unreachable(
      "local",
      f"its initialisation ended the process with {name}, as where libtpu does not fit this wheel: {last}",
    )
  answers = [line.removeprefix(_ANSWER) for line in child.stdout.splitlines() if line.startswith(_ANSWER)]
  answer: dict[str, Any] = json.loads(answers[-1]) if answers else {"kernels": True, "error": child.stderr}
  if not answer["kernels"]:
    return None
  if "error" in answer or not answer["cores"]:
    raise unreachable("local", answer.get("error", "TensorFlow sees no core of it"))
  return int(answer["cores"])


def prepare_import(tpu: str) -> None:
  """Call it before TensorFlow is imported, with --tpu; `UserError` where that is this machine's and cannot start."""
  if tpu == "local" and chips():
    check_chips()
    initialize_in_child()
  else:  # Nothing here for libtpu to take: a TPU elsewhere is held by its own hosts, and may be this very machine's.
    os.environ.setdefault("TPU_LOAD_LIBRARY", "0")
