"""Checks whether this machine can train, and prints one line for each check, with advice if it fails.

An import of TensorFlow can end the process, and takes the TPU's chips. So child processes import it; this process does
so only for a bucket.
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

_WITH_TPU = "tensorflow-tpu"
_INSTALL = "make install STACK=tpu, then use .venv-tpu/bin/python"
# From Keras' example for TPUs with tensorflow-tpu.
_TF_XLA_FLAGS = (
  "--tf_mlir_enable_mlir_bridge=true --tf_mlir_enable_convert_control_to_data_outputs_pass=true "
  "--tf_mlir_enable_merge_control_flow_pass=true"
)
_IMPORT = """
import tensorflow as tf
from tensorflow.python.framework import kernels
word = "with" if kernels.get_registered_kernels_for_op("TPUExecute").kernel else "without"
print(f"{tf.__version__}, {word} kernels for TPUs")
"""
_START_TPU = """
import tensorflow as tf
tf.tpu.experimental.initialize_tpu_system(tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local"))
print(len(tf.config.list_logical_devices("TPU")), "cores")
"""
# What TensorFlow's client imports to find a TPU by its name: module → package.
_TPU_CLIENT = {"googleapiclient.discovery": "google-api-python-client", "oauth2client.client": "oauth2client"}


class Check(NamedTuple):
  """One line of the report: name of the check, its result, and advice (empty if all is well)."""

  name: str
  found: str
  advice: str = ""


def _version(package: str) -> str:
  """The installed version; empty if it is not installed."""
  with contextlib.suppress(metadata.PackageNotFoundError):
    return metadata.version(package)
  return ""


def _in_child(name: str, code: str, *, advice: str, **environment: str) -> Check:
  """Runs Python code in a child process; the result is its last line, or the reason of its failure."""
  child = subprocess.run(
    [sys.executable, "-c", code],
    capture_output=True,
    text=True,
    errors="replace",
    env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **environment},
  )
  last = ((child.stderr if child.returncode else child.stdout).strip().splitlines() or [""])[-1]
  if child.returncode:
    return Check(name, f"ended with status {child.returncode}: {last[:240]}", advice)
  return Check(name, last)


def _packages(tpu: str) -> Iterator[Check]:
  wheels = [name for name in ("tensorflow", "tensorflow-cpu", _WITH_TPU) if _version(name)]
  advice = "" if wheels else "make install (STACK=tpu on a TPU VM)"
  if len(wheels) > 1 and _WITH_TPU in wheels:
    advice = f"both are installed into one folder: rm -rf {sys.prefix}, then {_INSTALL}"
  yield Check("TensorFlow wheel", ", ".join(f"{name} {_version(name)}" for name in wheels) or "none", advice)
  advice = "make a new environment (make clean-env install)"
  starts = _in_child("TensorFlow starts", _IMPORT, advice=advice, TPU_LOAD_LIBRARY="0")
  if tpu and "without kernels" in starts.found:
    starts = starts._replace(advice=f"--tpu needs them: {_INSTALL}")
  yield starts
  for module, package in _TPU_CLIENT.items() if tpu not in ("", "local") and "://" not in tpu else ():
    advice = f"--tpu=NAME needs it: {sys.executable} -m pip install {package}"
    yield _in_child(module, f"import {module}; print('imported')", advice=advice)


def _own_tpu() -> Iterator[Check]:
  try:
    tpu_host.check_chips()
    yield Check("TPU chips", ", ".join(tpu_host.chips()))
  except UserError as error:
    yield Check("TPU chips", "not available", str(error))
  if _version(_WITH_TPU) and _version("libtpu"):
    # Set before Python starts; without them tensorflow-tpu does not take this machine's chips.
    library = metadata.distribution("libtpu").locate_file("libtpu/libtpu.so")
    wanted = {
      "PJRT_DEVICE": "TPU",
      "NEXT_PLUGGABLE_DEVICE_USE_C_API": "true",
      "TF_PLUGGABLE_DEVICE_LIBRARY_PATH": str(library),
      "TF_XLA_FLAGS": _TF_XLA_FLAGS,
    }
    lines = [f"export {name}={value!r}" for name, value in wanted.items() if os.environ.get(name) != value]
    yield Check("environment", "to be set" if lines else "as tensorflow-tpu needs it", "\n".join(lines))
  if tpu_host.chips():
    yield _in_child("TPU starts", _START_TPU, advice="see docs/tpu.md")


def check_directory(path: str) -> Check:
  """Checks whether a run directory can be written."""
  name = os.path.join(path, f".doctor-{os.getpid()}")
  os.environ.setdefault("TPU_LOAD_LIBRARY", "0")
  try:
    files.makedirs(path)
    files.write_text(name, "albert_tf doctor")
    assert files.read_bytes(name) == b"albert_tf doctor"
    files.remove(name)
  except (OSError, UserError) as error:
    advice = "choose a directory to which you may write, or a bucket to which this account may write, as gs://BUCKET/…"
    return Check("output_dir", f"{path}: {error}", advice)
  return Check("output_dir", f"{path}: written, read back, removed")


def report(*, tpu: str, output_dir: str) -> int:
  """Prints a line for each check, and advice below a failed one; returns the exit status, 0 if none failed."""
  failed = 0
  directory = [check_directory(output_dir)] if output_dir else []
  for checks in (_packages(tpu), _own_tpu() if tpu == "local" else (), directory):
    for check in checks:
      failed += bool(check.advice)
      print(f"{'NO' if check.advice else 'ok'}  {check.name}: {check.found}", flush=True)
      for line in check.advice.splitlines():
        print(f"      {line}", flush=True)
  print(f"{failed} to fix." if failed else "All fit.")
  return int(failed > 0)
