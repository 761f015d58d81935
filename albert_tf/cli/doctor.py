"""Checks whether this machine can train; `doctor.py` and `make doctor` print it.

An import of TensorFlow can end the process, and takes the TPU's chips. So child processes import
it; this process does so only for a bucket.
"""

from collections.abc import Iterator
import contextlib
from importlib import metadata
import os
import shutil
import subprocess
import sys
from typing import NamedTuple

from albert_tf import files, tpu_host
from albert_tf.errors import UserError
from albert_tf.runs.settings import DistributionConfig

# The wheel with kernels for TPUs.
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
resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.tpu.experimental.initialize_tpu_system(resolver)
print(len(tf.config.list_logical_devices("TPU")), "cores")
"""
_FIND_GPUS = """
import tensorflow as tf
from albert_tf.compat import HAS_FUSED_ATTENTION
from albert_tf.modeling.fused_attention import old_cards
gpus = tf.config.list_physical_devices("GPU")
if not gpus:
  raise SystemExit("TensorFlow sees no GPU")
names = [tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name) for gpu in gpus]
word = "can" if HAS_FUSED_ATTENTION and not old_cards() else "cannot"
print(f"TensorFlow sees {', '.join(names)}; fused attention {word} run")
"""
# A TPU is found as by a run; Google's API and the hosts answer. The arguments are --tpu, --tpu_zone
# and --gcp_project.
_FIND_TPU = """
import sys
from albert_tf.cli.commands import load_tensorflow
load_tensorflow(sys.argv[1])
from albert_tf.runs import distribution, failures, settings
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
  "HttpError 403": (
    "this account may not see the TPU: grant it the role roles/tpu.viewer in the project"
  ),
  "HttpError 404": (
    "there is no such TPU in this zone: "
    "`gcloud compute tpus tpu-vm list --zone=ZONE --project=PROJECT`"
  ),
  "Default Credentials": "run `gcloud auth application-default login`",
  "CREATING": "wait until `gcloud compute tpus tpu-vm describe` says READY",
  "not yet ready": "delete it and create it again (docs/tpu.md)",
  # What TensorFlow says without Google's client, which it needs for a TPU by its name.
  "Google API client": (
    f"{sys.executable} -m pip install google-api-python-client oauth2client: --tpu=NAME needs both"
  ),
  "host ": "start the TensorFlow server of that host, and open its port to this machine",
}


class Check(NamedTuple):
  """One line of the report."""

  name: str
  result: str
  # What to do; empty if all is well.
  advice: str = ""


def report(distribution: DistributionConfig, *, output_dir: str) -> int:
  """Prints a line for each check, and advice below a failed one.

  Returns:
    The exit status, 0 if none failed.
  """
  num_failed = 0
  for check in _checks(distribution, output_dir):
    mark = "ok"
    if check.advice:
      mark = "NO"
      num_failed += 1
    print(f"{mark}  {check.name}: {check.result}", flush=True)
    for line in check.advice.splitlines():
      print(f"      {line}", flush=True)
  if num_failed:
    print(f"{num_failed} to fix.")
    return 1
  print("All fit.")
  return 0


def _checks(distribution: DistributionConfig, output_dir: str) -> Iterator[Check]:
  # TensorFlow: one wheel, or two that do not share a folder.
  wheels = {}
  for package in ("tensorflow", "tensorflow-cpu", _WITH_TPU):
    with contextlib.suppress(metadata.PackageNotFoundError):
      wheels[package] = metadata.version(package)
  advice = ""
  if not wheels:
    advice = "make install (STACK=tpu on a TPU VM)"
  elif len(wheels) > 1 and _WITH_TPU in wheels:
    advice = f"both are installed into one folder: rm -rf {sys.prefix}, then {_INSTALL}"
  versions = ", ".join(f"{package} {version}" for package, version in wheels.items())
  yield Check("TensorFlow wheel", versions or "none", advice)

  # It starts, with kernels for TPUs where --tpu needs them.
  starts = _run_in_child(
    "TensorFlow starts", _IMPORT, advice="make a new environment (make clean-env install)"
  )
  if distribution.tpu and "without kernels" in starts.result:
    starts = starts._replace(advice=f"--tpu needs them: {_INSTALL}")
  yield starts

  # What the flags name.
  if distribution.tpu == "local":
    yield from _check_local_tpu()
  elif distribution.tpu:
    yield _check_tpu_elsewhere(distribution)
  else:
    yield from check_gpus()
  if output_dir:
    yield check_directory(output_dir)


def check_gpus() -> Iterator[Check]:
  """The cards that the driver knows, and whether TensorFlow can use them; nothing where there is no driver."""
  if not shutil.which("nvidia-smi"):
    return
  query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
  answer = subprocess.run(query, capture_output=True, text=True)
  if answer.returncode:
    advice = "see whether the driver is loaded: run `nvidia-smi`"
    yield Check("NVIDIA driver", _last_line(answer.stdout + answer.stderr), advice)
    return
  yield Check("NVIDIA driver", "; ".join(answer.stdout.splitlines()))
  yield _run_in_child("GPU", _FIND_GPUS, advice="pip install -e '.[gpu]' (docs/gpu.md)")


def _check_local_tpu() -> Iterator[Check]:
  try:
    tpu_host.check_chips()
  except UserError as error:
    yield Check("TPU chips", "not available", str(error))
    return
  yield Check("TPU chips", ", ".join(tpu_host.chips()))
  yield _run_in_child("TPU starts", _START_TPU, advice="see docs/tpu_trouble.md")


def _check_tpu_elsewhere(distribution: DistributionConfig) -> Check:
  answer = _run_in_child(
    f"TPU {distribution.tpu}",
    _FIND_TPU,
    distribution.tpu,
    distribution.tpu_zone,
    distribution.gcp_project,
    advice="see docs/tpu.md",
  )
  if answer.advice:
    answer = answer._replace(advice=remedy(answer.result))
  return answer


def remedy(answer: str) -> str:
  """What to do about the answer that a run gets instead of a TPU."""
  for words, advice in _REMEDIES.items():
    if words in answer:
      return advice
  return "check --tpu, and give its --tpu_zone and --gcp_project"


def check_directory(path: str) -> Check:
  """Checks whether a run directory can be written."""
  advice = (
    "choose a directory to which you may write, or a bucket to which this account may write, "
    "as gs://BUCKET/…"
  )
  # Two doctors may look at one directory.
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


def _run_in_child(name: str, code: str, *arguments: str, advice: str) -> Check:
  """Runs Python code in a child process.

  The result is its last line, or the reason of its failure with `advice`.
  """
  child = subprocess.run(
    [sys.executable, "-c", code, *arguments],
    capture_output=True,
    text=True,
    errors="replace",
    env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"},
  )
  if child.returncode == 0:
    return Check(name, _last_line(child.stdout))
  reason = _last_line(child.stderr)[:400]
  return Check(name, f"ended with status {child.returncode}: {reason}", advice)


def _last_line(output: str) -> str:
  return output.strip().rpartition("\n")[2]
