"""Which kinds of process load libtpu, whatever the shell exports: `albert_tf/tpu_host.py` decides it for all.

TensorFlow is a stand-in, which ends like tensorflow-tpu where the shell's variables contradict each other.
"""

import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest
from support.commands.child_processes import words
from support.commands.command_runs import write_inputs
from support.commands.script_runs import run_command
from support.stacks import slow_by_default

from albert_tf import compat, tpu_host
from albert_tf.errors import EXIT_USER_ERROR

_ROOT = pathlib.Path(__file__).parents[2]
_TENSORFLOW = """
import os, sys
loads_libtpu = os.environ.get("TPU_LOAD_LIBRARY") != "0"
if "TF_PLUGGABLE_DEVICE_LIBRARY_PATH" in os.environ and not loads_libtpu:
  os.abort()
sys.exit(f"loads libtpu: {loads_libtpu}")
"""
_CHIPS = "from albert_tf import tpu_host; tpu_host.chips = lambda: ['/dev/accel0']"  # A file's path means nothing here.
# What a program of one's own needs for tensorflow-tpu, and what makes an import of it quick without a TPU.
_EXPORTED = {
  "PJRT_DEVICE": "TPU",
  "NEXT_PLUGGABLE_DEVICE_USE_C_API": "true",
  "TF_PLUGGABLE_DEVICE_LIBRARY_PATH": tpu_host.library_of_wheel() or "/lib/libtpu.so",
  "TF_XLA_FLAGS": "--tf_mlir_enable_mlir_bridge=true",
}
_HIDDEN = {"TPU_LOAD_LIBRARY": "0"}
_PRETRAIN = "tpu_scripts/run_pretrain.py --input_file=none --output_dir=none"
_ON_CHIPS = "pretraining on this machine's chips"
_COMMANDS = {
  _ON_CHIPS: f"{_PRETRAIN} --tpu=local",
  "pretraining": _PRETRAIN,
  "pretraining on a TPU elsewhere": f"{_PRETRAIN} --tpu=a-name",
  "fine-tuning": "tpu_scripts/run_glue.py --task_name=mrpc --data_dir=x --output_dir=x --do_eval",
  "export": "tpu_scripts/export_saved_model.py --model=encoder --init_checkpoint=x --output_dir=x",
  "conversion": "tpu_scripts/convert_checkpoint.py --input=x --output=x",
  "data in a bucket": "tfrecords_tools/train_vocab.py --input=gs://b/*.txt --model_prefix=x",
  "tests": "-c \"import sys; sys.path.insert(0, 'tests'); import conftest, tensorflow\"",
}


@pytest.fixture
def start(tmp_path, monkeypatch):
  """Starts Python with the stand-ins, and with these variables only about TPUs."""
  for name in (*_EXPORTED, *_HIDDEN):
    monkeypatch.delenv(name, raising=False)
  (tmp_path / "tensorflow.py").write_text(_TENSORFLOW)

  def start(line, *, chips, variables):
    stand_in = tmp_path / "sitecustomize.py"
    # Written once: a process that starts may read it while the next one is prepared.
    if chips and not stand_in.exists():
      stand_in.write_text(_CHIPS)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
      [sys.executable, *shlex.split(line)],
      cwd=_ROOT,
      env={**os.environ, "PYTHONPATH": path, **variables},
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )

  return start


@pytest.mark.parametrize(
  ("chips", "variables"),
  [
    pytest.param(False, _EXPORTED, marks=slow_by_default),
    pytest.param(True, _EXPORTED | _HIDDEN, marks=pytest.mark.slow),
    pytest.param(True, {}, marks=slow_by_default),
  ],
)
def test_libtpu_is_loaded_for_this_machines_chips_alone(start, chips, variables):
  processes = [start(line, chips=chips, variables=variables) for line in _COMMANDS.values()]
  printed = [process.communicate()[0].strip().splitlines()[-1] for process in processes]
  assert printed == [f"loads libtpu: {chips and kind == _ON_CHIPS}" for kind in _COMMANDS]


@pytest.mark.parametrize(("tpu", "chips"), [("", True), ("local", False), ("local", True)])
def test_the_doctor_starts_tensorflow_as_each_command_does(start, tpu, chips):
  doctor = f"tpu_scripts/doctor.py --tpu={tpu}"
  printed = start(doctor, chips=chips, variables=_EXPORTED).communicate()[0]
  answers = dict(re.findall(r"(\w+) starts: .*loads libtpu: (\w+)", printed))
  assert answers.pop("TensorFlow") == "False", printed
  assert answers == ({"TPU": "True"} if tpu and chips else {}), printed


def test_one_module_decides():
  """Another that sets one of the variables would contradict it."""
  product = [*_ROOT.glob("*/*.py"), *_ROOT.glob("albert_tf/*/**/*.py"), _ROOT / "Makefile"]
  name = re.compile("TPU_LOAD_LIBRARY|TF_PLUGGABLE_DEVICE_LIBRARY_PATH")
  naming = [path for path in product if name.search(path.read_text(encoding="utf-8"))]
  # The compiler's worker drops one: jax needs libtpu, on a machine without a TPU too.
  assert {path.name for path in naming} == {"tpu_host.py", "tpu_compiler.py"}


@pytest.mark.skipif(not compat.TPU_KERNELS, reason="of a TensorFlow with kernels for TPUs")
@pytest.mark.skipif(bool(tpu_host.chips()), reason="this machine has chips")
def test_without_chips_the_real_tensorflow_ends_with_one_sentence(tmp_path):
  run = {"tpu": "local", "output_dir": tmp_path / "run", "train_batch_size": 8}
  flags = write_inputs(tmp_path) | run
  done = run_command("tpu_scripts/run_pretrain.py", *words(flags), **_EXPORTED)
  assert done.returncode == EXIT_USER_ERROR, done.stderr
  assert done.stderr.startswith("error: No TPU could be reached at --tpu=local"), done.stderr
  assert done.stderr.count("\n") == 1
