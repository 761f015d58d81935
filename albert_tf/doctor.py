"""Whether this machine can train: one line a check, with what to do where it cannot.

Nothing here imports TensorFlow into this process: an import can end it, and would take the TPU's chips. What needs
TensorFlow runs in a child.
"""

from collections.abc import Iterator
import contextlib
from importlib import metadata
import os
import subprocess
import sys
from typing import NamedTuple

from albert_tf import files, tpu_host
from albert_tf.errors import UserError

_PLAIN, _WITH_TPU = ("tensorflow", "tensorflow-cpu"), "tensorflow-tpu"
_INSTALL = "make install STACK=tpu, then use .venv-tpu/bin/python"
# Of Keras' own example for TPUs with tensorflow-tpu.
_TF_XLA_FLAGS = (
  "--tf_mlir_enable_mlir_bridge=true --tf_mlir_enable_convert_control_to_data_outputs_pass=true "
  "--tf_mlir_enable_merge_control_flow_pass=true"
)
_IMPORT = """
import tensorflow as tf
from tensorflow.python.framework import kernels
print("answer:", tf.__version__, bool(kernels.get_registered_kernels_for_op("TPUExecute").kernel))
"""
_START_TPU = """
import tensorflow as tf
tf.tpu.experimental.initialize_tpu_system(tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local"))
print(len(tf.config.list_logical_devices("TPU")), "cores")
"""
_TRY_DIRECTORY = """
import os, sys, uuid
from albert_tf import files
name = os.path.join(sys.argv[1], f".doctor-{uuid.uuid4().hex[:8]}")
try:
  files.makedirs(sys.argv[1])
  with files.atomic_writer(name) as stream:
    stream.write(b"albert_tf doctor")
  assert files.read_bytes(name) == b"albert_tf doctor"
  files.remove(name)
except (OSError, ValueError) as error:
  sys.exit(str(error))
"""


class Check(NamedTuple):
  """One line of the report: what was looked at, what is there, what to do (empty where nothing is)."""

  name: str
  found: str
  advice: str = ""


def _version(package: str) -> str:
  """The installed version; empty if it is not installed."""
  with contextlib.suppress(metadata.PackageNotFoundError):
    return metadata.version(package)
  return ""


def _in_child(code: str, *arguments: str, **environment: str) -> tuple[str, str]:
  """The last line that a Python child prints, and why it failed (empty if it did not)."""
  child = subprocess.run(
    [sys.executable, "-c", code, *arguments],
    capture_output=True,
    text=True,
    errors="replace",
    env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **environment},
  )
  told = (child.stderr.strip().splitlines() or [""])[-1]
  reason = f"ended with status {child.returncode}: {told[:240]}" if child.returncode else ""
  return (child.stdout.strip().splitlines() or [""])[-1], reason


def _packages(tpu: str) -> Iterator[Check]:
  plain = [name for name in _PLAIN if _version(name)]
  wheels = [*plain, *([_WITH_TPU] if _version(_WITH_TPU) else [])]
  advice = ""
  if not wheels:
    advice = "make install (STACK=tpu on a TPU VM)"
  elif plain and _WITH_TPU in wheels:
    advice = f"both unpack into one folder: rm -rf {sys.prefix}, then {_INSTALL}"
  found = ", ".join(f"{name} {_version(name)}" for name in wheels)
  yield Check("TensorFlow wheel", found or "none", advice)
  answer, reason = _in_child(_IMPORT, TPU_LOAD_LIBRARY="0")
  if reason:
    yield Check("TensorFlow starts", reason, "make the environment anew (make clean-env install)")
    return
  _, version, kernels = answer.split()
  found = f"{version}, {'with' if kernels == 'True' else 'without'} kernels for TPUs"
  yield Check(
    "TensorFlow starts", found, f"--tpu needs them: {_INSTALL}" if tpu and kernels != "True" else ""
  )


def _own_tpu() -> Iterator[Check]:
  try:
    tpu_host.check_chips()
    yield Check("TPU chips", ", ".join(tpu_host.chips()))
  except UserError as error:
    yield Check("TPU chips", "not to be had", str(error))
  if _version(_WITH_TPU) and _version("libtpu"):
    # Set before Python starts; without them tensorflow-tpu does not take this machine's chips.
    wanted = {
      "PJRT_DEVICE": "TPU",
      "NEXT_PLUGGABLE_DEVICE_USE_C_API": "true",
      "TF_PLUGGABLE_DEVICE_LIBRARY_PATH": str(
        metadata.distribution("libtpu").locate_file("libtpu/libtpu.so")
      ),
      "TF_XLA_FLAGS": _TF_XLA_FLAGS,
    }
    lines = [f"export {name}={value!r}" for name, value in wanted.items() if os.environ.get(name) != value]
    yield Check("environment", "to be set" if lines else "as tensorflow-tpu needs it", "\n".join(lines))
  if tpu_host.chips():
    cores, reason = _in_child(_START_TPU)
    yield Check("TPU starts", cores or reason, "see docs/tpu.md" if reason else "")


def check_directory(path: str) -> Iterator[Check]:
  """Whether a run directory can be written."""
  if path:
    _, reason = _in_child(_TRY_DIRECTORY, path, TPU_LOAD_LIBRARY="0")
    advice = "choose a directory you may write to"
    if files.is_remote(path):
      advice = (
        "take gs://, create the bucket, and give the account of this machine the role Storage Object Admin on it; on "
        "your own computer: gcloud auth application-default login"
      )
    yield Check("output_dir", f"{path}: {reason or 'written, read back, removed'}", advice if reason else "")


def report(*, tpu: str, output_dir: str) -> int:
  """Prints a line a check, and what to do below those that do not fit; returns the exit status, 0 if all fit."""
  failed = 0
  for checks in (_packages(tpu), _own_tpu() if tpu == "local" else (), check_directory(output_dir)):
    for check in checks:
      failed += bool(check.advice)
      print(f"{'NO' if check.advice else 'ok'}  {check.name}: {check.found}", flush=True)
      for line in check.advice.splitlines():
        print(f"      {line}", flush=True)
  print(f"{failed} to fix." if failed else "All fit.")
  return int(failed > 0)
