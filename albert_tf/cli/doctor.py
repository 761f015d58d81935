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
from albert_tf.runs.settings import DistributionConfig

_WITH_TPU = "tensorflow-tpu"
_INSTALL = "make install STACK=tpu, then use .venv-tpu/bin/python"
_IMPORT = """
from albert_tf import tpu_host
tpu_host.prepare_import("")
import tensorflow as tf
from tensorflow.python.framework import kernels
word = "with" if kernels.get_registered_kernels_for_op("TPUExecute").kernel else "without"
print(f"{tf.__version__}, {word} kernels for TPUs")
"""
_START_TPU = """
from albert_tf import tpu_host
tpu_host.prepare_import("local")
import tensorflow as tf
tf.tpu.experimental.initialize_tpu_system(tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local"))
print(len(tf.config.list_logical_devices("TPU")), "cores")
"""
# As a run finds it; Google's API and the hosts answer. Arguments: --tpu, --tpu_zone, --gcp_project.
_FIND_TPU = """
import sys
from albert_tf.cli.startup import load_tensorflow
load_tensorflow(sys.argv[1])
from albert_tf.runs import distribution
from albert_tf.runs import failures
from albert_tf.pretraining import settings
tpu, zone, project = sys.argv[1:]
config = settings.DistributionConfig(tpu=tpu, tpu_zone=zone, gcp_project=project)
try:
  _, hosts = distribution.find_tpu(config)
except Exception as error:
  sys.exit(failures.telling_line(str(error)) or type(error).__name__)
print("answers at", ", ".join(hosts))
"""
# What to do, by words of the answer; the first that fits.
_REMEDIES = {
  "HttpError 403": "this account may not see the TPU: grant it the role roles/tpu.viewer in the project",
  "HttpError 404": "there is no such TPU in this zone: `gcloud compute tpus tpu-vm list --zone=ZONE --project=PROJECT`",
  "Default Credentials": "run `gcloud auth application-default login`",
  "CREATING": "wait until `gcloud compute tpus tpu-vm describe` says READY",
  "not yet ready": "delete it and create it again (docs/tpu.md, step 7)",
  "host ": "start the TensorFlow server of that host, and open its port to this machine",
}
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


def _in_child(name: str, code: str, *arguments: str, advice: str) -> Check:
  """Runs Python code in a child process; the result is its last line, or the reason of its failure."""
  child = subprocess.run(
    [sys.executable, "-c", code, *arguments],
    capture_output=True,
    text=True,
    errors="replace",
    env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
  )
  output = child.stderr if child.returncode else child.stdout
  last = (output.strip().splitlines() or [""])[-1]
  if child.returncode:
    return Check(name, f"ended with status {child.returncode}: {last[:400]}", advice)
  return Check(name, last)


def _packages(tpu: str) -> Iterator[Check]:
  wheels = [name for name in ("tensorflow", "tensorflow-cpu", _WITH_TPU) if _version(name)]
  advice = "" if wheels else "make install (STACK=tpu on a TPU VM)"
  if len(wheels) > 1 and _WITH_TPU in wheels:
    advice = f"both are installed into one folder: rm -rf {sys.prefix}, then {_INSTALL}"
  yield Check("TensorFlow wheel", ", ".join(f"{name} {_version(name)}" for name in wheels) or "none", advice)
  advice = "make a new environment (make clean-env install)"
  starts = _in_child("TensorFlow starts", _IMPORT, advice=advice)
  if tpu and "without kernels" in starts.found:
    starts = starts._replace(advice=f"--tpu needs them: {_INSTALL}")
  yield starts


def _own_tpu() -> Iterator[Check]:
  try:
    tpu_host.check_chips()
  except UserError as error:
    yield Check("TPU chips", "not available", str(error))
    return
  yield Check("TPU chips", ", ".join(tpu_host.chips()))
  yield _in_child("TPU starts", _START_TPU, advice="see docs/tpu.md")


def remedy(answer: str) -> str:
  """What to do about the answer that a run gets instead of a TPU."""
  for words, advice in _REMEDIES.items():
    if words in answer:
      return advice
  return "check --tpu, and give its --tpu_zone and --gcp_project"


def _tpu_elsewhere(distribution: DistributionConfig) -> Iterator[Check]:
  if "://" not in distribution.tpu:
    for module, package in _TPU_CLIENT.items():
      advice = f"--tpu=NAME needs it: {sys.executable} -m pip install {package}"
      client = _in_child(module, f"import {module}; print('imported')", advice=advice)
      yield client
      if client.advice:  # Without it nobody can be asked.
        return
  where = (distribution.tpu, distribution.tpu_zone, distribution.gcp_project)
  answer = _in_child(f"TPU {distribution.tpu}", _FIND_TPU, *where, advice="see docs/tpu.md")
  if answer.advice:
    answer = answer._replace(advice=remedy(answer.found))
  yield answer


def check_directory(path: str) -> Check:
  """Checks whether a run directory can be written."""
  advice = (
    "choose a directory to which you may write, or a bucket to which this account may write, as gs://BUCKET/…"
  )
  name = os.path.join(path, f".doctor-{os.getpid()}")
  try:
    files.makedirs(path)
    files.write_text(name, "albert_tf doctor")
    stored = files.read_bytes(name)
    files.remove(name)
  except (OSError, UserError) as error:
    return Check("output_dir", f"{path}: {error}", advice)
  if stored != b"albert_tf doctor":
    return Check("output_dir", f"{path}: what is read back differs from what was written", advice)
  return Check("output_dir", f"{path}: written, read back, removed")


def _checks(distribution: DistributionConfig, output_dir: str) -> Iterator[Check]:
  yield from _packages(distribution.tpu)
  if distribution.tpu == "local":
    yield from _own_tpu()
  elif distribution.tpu:
    yield from _tpu_elsewhere(distribution)
  if output_dir:
    yield check_directory(output_dir)


def report(distribution: DistributionConfig, *, output_dir: str) -> int:
  """Prints a line for each check, and advice below a failed one; returns the exit status, 0 if none failed."""
  failed = 0
  for check in _checks(distribution, output_dir):
    failed += bool(check.advice)
    print(f"{'NO' if check.advice else 'ok'}  {check.name}: {check.found}", flush=True)
    for line in check.advice.splitlines():
      print(f"      {line}", flush=True)
  print(f"{failed} to fix." if failed else "All fit.")
  return int(failed > 0)
