"""The two commands as a user runs them."""

import pathlib
import re
import subprocess
import sys

import pytest
from support import tiny_run


def run(repository_dir: pathlib.Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
  return subprocess.run(
    [sys.executable, f"tpu_scripts/{script}", *arguments],
    cwd=repository_dir,
    capture_output=True,
    text=True,
    timeout=120,
    check=False,
  )


def test_export_then_fill_mask(repository_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
  tokenizer = tiny_run.train_tokenizer(tmp_path)
  tiny_run.write_run(tmp_path / "run", tiny_run.tiny_model(tokenizer.vocab_size), tokenizer)
  versions = tmp_path / "versions"
  exported = run(
    repository_dir,
    "export_saved_model.py",
    "--model=fill_mask",
    f"--init_checkpoint={tmp_path}/run",
    f"--output_dir={versions}",
    "--version=2",
  )
  assert exported.returncode == 0, exported.stderr
  first, _, command, _, here = exported.stdout.splitlines()
  assert here.startswith("  albert-serve-locally --saved_model ")
  assert first == f"Exported fill_mask to {versions}/2"
  assert f'-v "{versions}:/models/fill_mask:ro"' in command
  text = "the [MASK] is blue and green [MASK] grows"
  answered = run(repository_dir, "fill_mask.py", f"--saved_model={versions}", f"--text={text}")
  assert answered.returncode == 0, answered.stderr
  lines = answered.stdout.splitlines()
  assert lines[0] == text
  assert len(lines) == 3
  for number, line in enumerate(lines[1:], 1):
    assert re.fullmatch(rf"  \[MASK\] {number}: (\S+ 0\.\d{{3}}  ){{4}}\S+ 0\.\d{{3}}", line)


def test_a_kind_that_does_not_exist_is_refused(repository_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
  done = run(
    repository_dir,
    "export_saved_model.py",
    "--model=poetry",
    "--init_checkpoint=x",
    f"--output_dir={tmp_path}",
  )
  assert done.returncode != 0
  assert "value should be one of <encoder|fill_mask|classifier|question_answering|" in done.stderr
  assert "Traceback" not in done.stderr


def test_a_pretrained_run_is_no_classifier(repository_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
  tokenizer = tiny_run.train_tokenizer(tmp_path)
  tiny_run.write_run(tmp_path / "run", tiny_run.tiny_model(tokenizer.vocab_size), tokenizer)
  done = run(
    repository_dir,
    "export_saved_model.py",
    "--model=classifier",
    f"--init_checkpoint={tmp_path}/run",
    f"--output_dir={tmp_path}/e",
  )
  assert done.returncode == 2
  assert "A fine-tuned run directory holds task.json" in done.stderr
  assert "Traceback" not in done.stderr
  assert not (tmp_path / "e").exists()


@pytest.mark.slow
def test_a_vocabulary_elsewhere_is_named(repository_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
  tokenizer = tiny_run.train_tokenizer(tmp_path)
  tiny_run.write_run(tmp_path / "run", tiny_run.tiny_model(tokenizer.vocab_size), tokenizer)
  elsewhere = tmp_path / "elsewhere.model"
  (tmp_path / "run" / "spm.model").rename(elsewhere)
  (tmp_path / "run" / "tokenizer.json").unlink()
  arguments = ("--model=encoder", f"--init_checkpoint={tmp_path}/run", f"--output_dir={tmp_path}/e")
  done = run(repository_dir, "export_saved_model.py", *arguments)
  assert done.returncode == 2
  assert "--spm_model_file" in done.stderr
  done = run(repository_dir, "export_saved_model.py", *arguments, f"--spm_model_file={elsewhere}")
  assert done.returncode == 0, done.stderr
  assert (tmp_path / "e/1/assets/spm.model").read_bytes() == elsewhere.read_bytes()
