"""`doctor.py`: a line for each check, advice below it, and status 1 if a check fails."""

import functools
import os
import re

import pytest
from support.commands.script_runs import run_command

from albert_tf import compat
from albert_tf.cli import doctor

_doctor = functools.partial(run_command, "tpu_scripts/doctor.py")


@pytest.mark.slow
def test_this_environment_fits_its_own_stack(tmp_path):
  done = _doctor(f"--output_dir={tmp_path / 'run'}")
  assert done.returncode == 0, done.stdout + done.stderr
  assert done.stdout.splitlines()[-1] == "All fit."
  lines = dict(line[4:].split(": ", 1) for line in done.stdout.splitlines()[:-1])
  assert ("tensorflow-tpu" in lines["TensorFlow wheel"]) == (compat.STACK == "tpu")
  assert lines["TensorFlow starts"].endswith(
    "with kernels for TPUs" if compat.TPU_KERNELS else "without kernels for TPUs"
  )
  assert lines["output_dir"].endswith("written, read back, removed")
  assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.slow
def test_a_tpu_on_a_machine_without_one(tmp_path):
  """Also with a file at the path of the run directory; each failed check has advice."""
  (tmp_path / "file").touch()
  done = _doctor("--tpu=local", f"--output_dir={tmp_path / 'file'}")
  assert done.returncode == 1, done.stderr
  assert re.search(r"^NO  TPU chips: .*\n.*this machine has no TPU chip", done.stdout, re.MULTILINE)
  assert re.search(
    r"^NO  output_dir: .*file.*\n      choose a directory", done.stdout, re.MULTILINE
  )
  if not compat.TPU_KERNELS:
    assert "\n      --tpu needs them: make install STACK=tpu" in done.stdout


def test_a_directory_that_gives_back_other_bytes(monkeypatch, tmp_path):
  monkeypatch.setattr(doctor.files, "read_bytes", lambda path: b"albert")
  assert doctor.check_directory(str(tmp_path)).advice
  assert list(tmp_path.iterdir()) == []


def test_a_tensorflow_that_ends_the_process(tmp_path):
  (tmp_path / "tensorflow.py").write_text("import os; os.abort()")
  done = _doctor(PYTHONPATH=f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
  assert done.returncode == 1
  assert "NO  TensorFlow starts: ended with status -6" in done.stdout


@pytest.mark.parametrize(
  ("status", "result"),
  [
    # It starts TensorFlow.
    pytest.param(0, "NVIDIA H200, 580.159", marks=pytest.mark.slow),
    (9, "no driver"),
  ],
)
def test_a_card_that_tensorflow_does_not_see(monkeypatch, tmp_path, status, result):
  program = tmp_path / "nvidia-smi"
  program.write_text(f"#!/bin/sh\necho '{result}'; exit {status}\n")
  program.chmod(0o755)
  monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
  monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
  checks = list(doctor.check_gpus())
  assert (checks[0].name, checks[0].result) == ("NVIDIA driver", result)
  if status:
    assert "nvidia-smi" in checks[0].advice
  else:
    assert "sees no GPU" in checks[1].result
    assert "[gpu]" in checks[1].advice


@pytest.mark.parametrize(
  ("answer", "advice"),
  [  # Of TensorFlow's resolver, and of Google's clients that it asks.
    (
      '<HttpError 403 when requesting https://tpu.googleapis.com returned "denied">',
      "roles/tpu.viewer",
    ),
    (
      '<HttpError 404 when requesting https://tpu.googleapis.com returned "not found">',
      "tpu-vm list",
    ),
    ('TPU "x" is not yet ready; state: "CREATING"', "describe"),
    ('TPU "x" is not yet ready; state: "PREEMPTED"', "create it again"),
    ("The Application Default Credentials are not available.", "auth application-default login"),
    (
      "Missing runtime dependency on the Google API client. Run `pip install",
      "-m pip install google-api-python-client oauth2client",
    ),
  ],
)
def test_each_answer_of_google_has_its_remedy(answer, advice):
  assert advice in doctor.remedy(answer)
