"""Whether this machine can train: one line a check, with what to do where it cannot.

Nothing here imports TensorFlow into this process: an import can end it, and would take the TPU's chips. What needs
TensorFlow runs in a child.
"""

from collections.abc import Iterable, Iterator
import contextlib
from importlib import metadata
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from typing import NamedTuple
import uuid

from packaging.requirements import Requirement

from albert_tf import files, tpu_host
from albert_tf.errors import UserError

PLAIN, WITH_TPU = ("tensorflow", "tensorflow-cpu"), "tensorflow-tpu"
_MIN_PYTHON, _MAX_PYTHON = (3, 10), (3, 13)
_MIN_MEMORY, _MIN_DISK = 4 << 30, 5 << 30
_CHILD_SECONDS = 300.0
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
_TRY_DIRECTORY = (
  "import sys; from albert_tf.doctor import try_directory; sys.exit(try_directory(sys.argv[1]) or 0)"
)


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


def _python() -> Iterator[Check]:
  fits = _MIN_PYTHON <= sys.version_info[:2] <= _MAX_PYTHON
  advice = "" if fits else f"take Python {_MIN_PYTHON[1]} to {_MAX_PYTHON[1]} of 3: make PYTHON=… install"
  yield Check("Python", f"{sys.version.split()[0]} in {sys.prefix}", advice)


def _wheels(tpu: str) -> Iterator[Check]:
  """Which TensorFlow, and whether what lies beside it fits."""
  plain = [name for name in PLAIN if _version(name)]
  with_tpu = [WITH_TPU] if _version(WITH_TPU) else []
  advice = ""
  if not plain and not with_tpu:
    advice = "make install (STACK=tpu on a TPU VM)"
  elif plain and with_tpu:
    advice = f"both unpack into one folder: rm -rf {sys.prefix}, then {_INSTALL}"
  elif (
    tpu and not with_tpu and not _version("tensorflow").startswith("2.15.")
  ):  # The images' own has kernels.
    advice = f"PyPI's tensorflow has no kernels for TPUs: {_INSTALL}"
  found = ", ".join(f"{name} {_version(name)}" for name in [*plain, *with_tpu])
  yield Check("TensorFlow wheel", found or "none", advice)
  for wheel in [*with_tpu, *plain][:1]:
    yield from _companions(_version(wheel))
    unmet = list(_unmet(metadata.requires(wheel) or ()))
    advice = f"pip install {' '.join(repr(line) for line in unmet)}" if unmet else ""
    yield Check(f"what {wheel} requires", "; ".join(unmet) or "is there", advice)
  if with_tpu:
    libtpu = _version("libtpu")
    yield Check("libtpu", libtpu or "none", "" if libtpu else "pip install -r requirements/tpu.txt")


def _unmet(requirements: Iterable[str]) -> Iterator[str]:
  """Requirements of a wheel, libtpu's exact version among them, that the installed packages do not meet."""
  for requirement in map(Requirement, requirements):
    applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    if applies and not requirement.specifier.contains(_version(requirement.name) or "0", prereleases=True):
      yield f"{requirement.name}{requirement.specifier}"


def _companions(tensorflow: str) -> Iterator[Check]:
  """Packages whose own requirements cannot say what they must match."""
  minor = ".".join(tensorflow.split(".")[:2])
  keras = "keras==2.15.*" if minor == "2.15" else "keras>=3.12"
  for requirement, install in (
    (f"tensorflow-text=={minor}.*", "pip install --no-deps"),
    (keras, "pip install"),
    ("sentencepiece<=0.2.1", "newer ones give other ids than the graph's: pip install"),
  ):
    name = Requirement(requirement).name
    met = _version(name) and not list(_unmet([requirement]))
    yield Check(name, _version(name) or "none", "" if met else f"{install} '{requirement}'")


def _in_child(code: str, *arguments: str) -> tuple[str, str]:
  """Standard output of a Python child without the TPU, and why it failed (empty if it did not)."""
  try:
    child = subprocess.run(
      [sys.executable, "-c", code, *arguments],
      capture_output=True,
      text=True,
      errors="replace",
      timeout=_CHILD_SECONDS,
      env={**os.environ, "TPU_LOAD_LIBRARY": "0", "TF_CPP_MIN_LOG_LEVEL": "2"},
    )
  except subprocess.TimeoutExpired:
    return "", f"took more than {_CHILD_SECONDS:.0f} s"
  reason = tpu_host.last_informative_line(child.stderr) if child.returncode else ""
  if child.returncode < 0:
    reason = f"ended with {signal.Signals(-child.returncode).name}: {reason}"
  return child.stdout, reason or (f"status {child.returncode}" if child.returncode else "")


def _imports(tpu: str) -> Iterator[Check]:
  output, reason = _in_child(_IMPORT)
  advice = "the environment is broken: make it anew (make clean-env install)"
  if not reason:
    _, version, kernels = output.splitlines()[-1].split()
    reason = f"{version}, {'with' if kernels == 'True' else 'without'} kernels for TPUs"
    advice = f"--tpu needs them: {_INSTALL}" if tpu and kernels != "True" else ""
  yield Check("TensorFlow starts", reason, advice)


def _environment(tpu: str) -> Iterator[Check]:
  """Variables that must be set before Python starts where tensorflow-tpu shall take this machine's chips."""
  if tpu != "local" or not (_version(WITH_TPU) and _version("libtpu")):
    return
  path = os.path.join(str(metadata.distribution("libtpu").locate_file("libtpu")), "libtpu.so")
  wanted = {
    "PJRT_DEVICE": "TPU",
    "NEXT_PLUGGABLE_DEVICE_USE_C_API": "true",
    "TF_PLUGGABLE_DEVICE_LIBRARY_PATH": path,
    "TF_XLA_FLAGS": _TF_XLA_FLAGS,
  }
  missing = {name: value for name, value in wanted.items() if os.environ.get(name) != value}
  lines = [f"export {name}={value!r}" for name, value in missing.items()]
  if os.environ.get("TPU_LOAD_LIBRARY") == "0":
    lines.append("unset TPU_LOAD_LIBRARY")
  yield Check(
    "environment",
    f"{len(wanted) - len(missing)} of {len(wanted)} variables as tensorflow-tpu needs them",
    "\n".join(lines),
  )


def _tpu(tpu: str) -> Iterator[Check]:
  chips, lock = tpu_host.chips(), tpu_host.LOCK_FILE
  if chips or tpu == "local":
    advice = "" if chips else "--tpu=local is for a TPU VM; leave --tpu empty elsewhere"
    yield Check("TPU chips", ", ".join(chips) or "none here (/dev/accel*, /dev/vfio/*)", advice)
  if chips:
    held = [f"{pid} ({command[:60]})" for pid, command in tpu_host.holders([*chips, lock]).items()]
    advice = "end that process if it is yours" if held else ""
    yield Check("chips in use by", ", ".join(held) or "nobody", advice)
    foreign = os.path.exists(lock) and not os.access(lock, os.W_OK)
    advice = f"it belongs to another user: sudo rm {lock}, once no process runs on the TPU" if foreign else ""
    yield Check("libtpu's lock file", lock if os.path.exists(lock) else "none", advice)
  if tpu == "local" and chips:
    try:
      cores = tpu_host.initialize_in_child()
      yield Check("TPU starts", f"{cores} cores" if cores else "not tried: this TensorFlow has no kernels")
    except UserError as error:
      yield Check("TPU starts", "no", str(error))
  elif tpu and tpu != "local" and not tpu.startswith("grpc://"):
    client = _version("google-api-python-client")
    advice = "" if client else "a name is looked up with it: pip install google-api-python-client google-auth"
    yield Check("google-api-python-client", client or "none", advice)


def try_directory(path: str) -> str:
  """Writes, reads back and removes a small object under `path`; what failed, or nothing."""
  name, content = os.path.join(path, f".doctor-{uuid.uuid4().hex[:8]}"), b"albert_tf doctor"
  try:
    files.makedirs(path)
    with files.atomic_writer(name) as stream:
      stream.write(content)
    returned = files.read_bytes(name)
    files.remove(name)
  except (OSError, UserError) as error:
    return str(error)
  return "" if returned == content else f"{len(returned)} bytes came back of {len(content)}"


def _output_directory(path: str) -> Iterator[Check]:
  if not path:
    return
  scheme = path.partition("://")[0] if "://" in path else ""
  if scheme not in ("", "gs", "file"):
    advice = f"{scheme}:// is not in TensorFlow's wheel: take gs:// or a local directory"
    yield Check("output_dir", path, advice)
    return
  _, reason = _in_child(_TRY_DIRECTORY, path)
  advice = "choose a directory you may write to"
  if scheme == "gs":
    advice = (
      "create the bucket, and give the account of this machine the role Storage Object Admin on it; on your own "
      "computer: gcloud auth application-default login"
    )
  yield Check("output_dir", f"{path}: {reason or 'written, read back, removed'}", advice if reason else "")


def available_memory() -> int | None:
  """Bytes that programs of this machine may still take; None where the system does not say."""
  with contextlib.suppress(OSError), open("/proc/meminfo", encoding="ascii") as stream:
    return next(int(line.split()[1]) << 10 for line in stream if line.startswith("MemAvailable"))
  return None


def has_gpu() -> bool:
  """Whether the system shows a GPU of NVIDIA or AMD."""
  return os.path.exists("/dev/kfd") or bool(files.glob("/dev/nvidia[0-9]*"))


def _room(output_dir: str) -> Iterator[Check]:
  memory = available_memory()
  if memory is not None:
    found = f"{memory / 2**30:.1f} GiB free; a start needs {_MIN_MEMORY >> 30}"
    yield Check(
      "memory", found, "" if memory >= _MIN_MEMORY else "end other programs, or take a larger machine"
    )
  places = [("temporary files", tempfile.gettempdir(), "TMPDIR")]
  if output_dir and not files.is_remote(output_dir) and os.path.isdir(output_dir):
    places.append(("checkpoints", output_dir, "--output_dir"))
  for what, place, setting in places:
    free = shutil.disk_usage(place).free
    advice = "" if free >= _MIN_DISK else f"make room, or set {setting}"
    yield Check(f"disk for {what}", f"{free / 2**30:.1f} GiB free in {place}", advice)


def checks(*, tpu: str, output_dir: str) -> Iterator[Check]:
  """Every check, quick ones first; empty names leave theirs out."""
  yield from _python()
  yield from _wheels(tpu)
  yield from _room(output_dir)
  yield from _environment(tpu)
  yield from _imports(tpu)
  yield from _tpu(tpu)
  yield from _output_directory(output_dir)


def report(*, tpu: str, output_dir: str) -> int:
  """Prints a line a check, and what to do below those that do not fit; returns the exit status, 0 if all fit."""
  failed = 0
  for check in checks(tpu=tpu, output_dir=output_dir):
    failed += bool(check.advice)
    print(f"{'NO' if check.advice else 'ok'}  {check.name}: {check.found}", flush=True)
    for line in check.advice.splitlines():
      print(f"      {line}", flush=True)
  print(f"{failed} to mend." if failed else "All fit.")
  return int(failed > 0)
