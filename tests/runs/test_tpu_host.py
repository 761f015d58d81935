"""A TPU or another device that cannot be used gives one message with advice, for all kinds of failure."""

import os
import re
import signal
import subprocess
import sys

import pytest
from support.commands.script_runs import run_script
from support.stacks import needs_host_xla
from support.tiny_records import tiny_config
import tensorflow as tf

from albert_tf import AlbertEncoder, compat, tpu_host
from albert_tf.errors import UserError
from albert_tf.files import MissingFileError
from albert_tf.runs import distribution
from albert_tf.runs.distribution import make_strategy, warn_of_idle_chips
from albert_tf.runs.failures import readable_errors
from albert_tf.runs.settings import DistributionConfig

PRETRAIN = ["--input_file=none", "--output_dir=none", "--size=tiny"]


@pytest.mark.skipif(compat.TPU_KERNELS, reason="this TensorFlow has the kernels")
@pytest.mark.parametrize("tpu", ["local", "grpc://127.0.0.1:1", "a-name"])
def test_plain_tensorflow_is_named_with_the_lines_to_type(tpu):
  received = re.escape(f"--tpu={tpu} with TensorFlow {tf.__version__}")
  with pytest.raises(UserError, match=received) as caught:
    make_strategy(DistributionConfig(tpu=tpu))
  assert "\n    make install STACK=tpu\n" in str(caught.value)
  assert f"doctor.py --tpu={tpu}\n" in str(caught.value)


@pytest.mark.parametrize(
  ("tpu", "reason"), [("local", "/dev/accel"), ("grpc://127.0.0.1:1", "Connection refused")]
)
def test_a_tpu_that_is_not_there_is_one_sentence(monkeypatch, tpu, reason):
  monkeypatch.setattr(compat, "TPU_KERNELS", True)
  with pytest.raises(UserError, match=rf"--tpu={tpu} \(.*{reason}") as caught:
    make_strategy(DistributionConfig(tpu=tpu))
  assert len(str(caught.value)) < 400
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
  "said",
  [  # By TensorFlow's client of Google's API.
    '<HttpError 404 when requesting https://tpu.googleapis.com/v1/x returned "nodes/my-slice not found">',
    'TPU "my-slice" is not yet ready; state: "CREATING"',
  ],
)
def test_a_name_that_cannot_be_had_is_a_users_error(monkeypatch, said):
  asked = []

  def resolver(**where):
    asked.append(where)
    raise RuntimeError(said)

  monkeypatch.setattr(compat, "TPU_KERNELS", True)
  monkeypatch.setattr(tf.distribute.cluster_resolver, "TPUClusterResolver", resolver)
  with pytest.raises(UserError, match=re.escape(said)):
    make_strategy(DistributionConfig(tpu="my-slice", tpu_zone="z", gcp_project="p"))
  assert asked == [{"tpu": "my-slice", "zone": "z", "project": "p"}]


def import_stand_in(folder, tensorflow, command="load_tensorflow()", **environment):
  """What a process prints and ends with that starts with this text for TensorFlow."""
  (folder / "tensorflow.py").write_text(tensorflow)
  path = f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
  hidden = ("TF_CPP_MIN_LOG_LEVEL", "TF_ENABLE_ONEDNN_OPTS")
  inherited = {name: value for name, value in os.environ.items() if name not in hidden}
  return subprocess.run(
    [sys.executable, "-c", f"from albert_tf.cli.commands import load_tensorflow; {command}"],
    env={**inherited, "PYTHONPATH": path, **environment},
    capture_output=True,
    text=True,
  )


@pytest.mark.parametrize("command", ["load_tensorflow()", "load_tensorflow('local')"])
def test_a_tensorflow_that_aborts_on_import_says_why(tmp_path, command):
  """A libtpu of another version does this: the native library writes a line and ends the process."""
  aborting = "import os; os.write(2, b'F0000 wrong libtpu\\n'); os.abort()"
  done = import_stand_in(tmp_path, aborting, command)
  assert done.returncode == -signal.SIGABRT
  assert "F0000 wrong libtpu" in done.stderr


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="oneDNN's kernels are of x86-64")
@pytest.mark.parametrize("by_user", ["", "0"])
def test_commands_take_the_kernels_of_onednn_unless_the_user_does_not(tmp_path, by_user):
  printing = "import os, sys; sys.exit(os.environ['TF_ENABLE_ONEDNN_OPTS'])"
  environment = {"TF_ENABLE_ONEDNN_OPTS": by_user} if by_user else {}
  done = import_stand_in(tmp_path, printing, **environment)
  assert done.stderr.split() == [by_user or "1"]


def test_chips(monkeypatch, tmp_path):
  (tmp_path / "vfio").mkdir()
  for name in ("accel0", "accel1", "accelerator", "vfio/0", "vfio/vfio"):
    (tmp_path / name).touch()
  chips = tpu_host.chips(str(tmp_path))
  assert [os.path.relpath(path, tmp_path) for path in chips] == ["accel0", "accel1", "vfio/0"]
  monkeypatch.setattr(tpu_host, "chips", lambda: chips)
  tpu_host.check_chips()
  monkeypatch.setattr(tpu_host, "chips", list)
  with pytest.raises(UserError, match=r"--tpu=local .*/dev/accel"):
    tpu_host.check_chips()


@pytest.mark.slow
def test_xla_of_the_host_is_refused_with_a_tpu():
  [beside_tpu] = run_script("run_pretrain", [[*PRETRAIN, "--use_xla", "--tpu=local"]])
  assert beside_tpu.status == 2
  assert "Leave --use_xla out" in beside_tpu.stderr


@pytest.mark.skipif(compat.HOST_XLA, reason="this TensorFlow has XLA for the host")
def test_xla_of_the_host_is_refused_without_its_compiler():
  with pytest.raises(UserError, match="--use_xla"):
    make_strategy(DistributionConfig(use_xla=True))


@needs_host_xla
@pytest.mark.parametrize(
  ("precision", "instructions", "advice"),
  [
    ("float32", False, ""),
    ("bfloat16", False, "Leave --mixed_precision out"),
    ("bfloat16", True, "Leave --use_xla out"),
  ],
)
def test_a_slow_precision_of_the_cpu_is_named(caplog, monkeypatch, precision, instructions, advice):
  monkeypatch.setattr(distribution, "has_bfloat16", lambda: instructions)
  make_strategy(DistributionConfig(use_xla=True, mixed_precision=precision))
  assert advice in caplog.text
  assert caplog.text.count("Leave") == bool(advice)


@pytest.mark.parametrize(
  ("device", "visible", "received"),
  [
    ("accel0", None, r"/accel0\) alone\. Give --tpu=local"),
    ("nvidia0", None, r"/nvidia0\)\. .*\[gpu\]"),
    ("nvidia0", "-1", "^$"),
    ("nvidiactl", None, "^$"),
  ],
)
def test_chips_that_a_run_on_the_cpu_leaves_idle_are_named(
  tmp_path, monkeypatch, caplog, device, visible, received
):
  monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
  if visible:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
  (tmp_path / device).touch()
  warn_of_idle_chips(str(tmp_path))
  assert re.search(received, caplog.text)


def test_keras_never_chooses_xla_by_itself(monkeypatch):
  """On the host of a TPU it would, and the runtime would end with NotFoundError."""
  listed = tf.config.list_physical_devices
  beside = tf.config.PhysicalDevice("/physical_device:TPU_SYSTEM:0", "TPU_SYSTEM")
  monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: [*listed(kind), beside])
  encoder = AlbertEncoder(tiny_config())
  assert encoder.jit_compile is False
  encoder.compile("sgd", loss="mse")
  assert encoder.jit_compile is False
  if compat.HOST_XLA:
    encoder.compile("sgd", loss="mse", jit_compile=True)
    assert encoder.jit_compile is True


@pytest.mark.parametrize(
  "text", ["{", "[]", '{"cluster": 3}', '{"cluster": {"worker": 3}}', '{"task": 3}']
)
def test_a_malformed_tf_config_is_one_message(monkeypatch, text):
  monkeypatch.setenv("TF_CONFIG", text)
  with pytest.raises(UserError, match=r"TF_CONFIG .*Received: "):
    make_strategy(DistributionConfig())


OUT_OF_MEMORY = "OOM when allocating tensor with shape[9] and type float"
OF_A_WORKER = "from remote target /job:worker/replica:0/task:1/device:CPU:0"
CONTINUES = "docs/training_trouble.md"


@pytest.mark.parametrize(
  ("error", "words"),
  [
    (
      tf.errors.ResourceExhaustedError(None, None, f"x\n{OUT_OF_MEMORY}"),
      [OUT_OF_MEMORY, "--gradient_accumulation_steps"],
    ),
    (
      tf.errors.UnavailableError(None, None, f"Graph execution error:\n\n{OF_A_WORKER}"),
      [f"worker 1: {OF_A_WORKER}", CONTINUES],
    ),
    (tf.errors.DataLossError(None, None, "corrupted record at 1367"), ["at 1367", CONTINUES]),
    (OSError(28, "No space left on device"), ["Received: [Errno 28]"]),
    (MissingFileError(2, "No such file", "train-0"), ["Received: train-0:"]),
  ],
)
def test_what_a_runtime_says_comes_with_advice(error, words):
  with pytest.raises(UserError, match=".*".join(map(re.escape, words))), readable_errors():
    raise error
