"""What `pip install` of the wheel and of the sdist gives: the commands, and the library, away from the checkout."""

import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import venv

import pytest

ROOT = pathlib.Path(__file__).parent.parent
AWAY = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def run(*command, status=0, **options):
  done = subprocess.run(
    [*map(str, command)], capture_output=True, text=True, timeout=280, env=AWAY, **options
  )
  assert done.returncode == status, done.stdout[-2000:] + done.stderr[-2000:]
  return done.stdout + done.stderr * bool(status)


@pytest.mark.slow
def test_wheel_and_sdist_in_an_empty_environment(tmp_path):
  pytest.importorskip("setuptools")
  source = tmp_path / "source"  # A build leaves folders beside the code.
  names = run("git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard").split(
    "\n"
  )
  for name in filter(None, names):
    if (ROOT / name).is_file() and not name.startswith("tests/"):
      (source / name).parent.mkdir(parents=True, exist_ok=True)
      shutil.copy(ROOT / name, source / name)
  run(sys.executable, "setup.py", "-q", "sdist", "-d", tmp_path / "sdist", cwd=source)
  (sdist,) = (tmp_path / "sdist").iterdir()
  shutil.unpack_archive(sdist, tmp_path / "unpacked")
  (unpacked,) = (tmp_path / "unpacked").iterdir()
  pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
  run(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path / "wheel", unpacked)
  (wheel,) = (tmp_path / "wheel").iterdir()
  environment = tmp_path / "environment"
  venv.create(environment)
  site = pathlib.Path(
    run(environment / "bin/python", "-c", "import site; print(site.getsitepackages()[0])").strip()
  )
  run(*pip, f"--python={environment / 'bin/python'}", "install", "--no-deps", "--no-index", wheel)
  # The packages it depends on are those of this interpreter; this checkout is not among them.
  others = [sysconfig.get_paths()[kind] for kind in ("purelib", "platlib")]
  (site / "others.pth").write_text("\n".join(dict.fromkeys(others)))
  code = "import albert_tf; print(albert_tf.__file__); from albert_tf import AlbertTokenizer"
  assert str(environment) in run(environment / "bin/python", "-c", code, cwd=tmp_path)
  commands = sorted(path.name for path in (environment / "bin").glob("albert-*"))
  assert {"albert-run-pretrain", "albert-run-glue", "albert-create-pretraining-data"} <= set(
    commands
  )
  of_the_checkout = {"albert-demo", "albert-run-study"}
  assert not of_the_checkout & set(commands)
  for command in commands:
    usage = run(environment / "bin" / command, "--help", cwd=tmp_path)
    assert f"usage: {command} [flags]" in usage, (command, usage[-500:])
    assert "python " not in usage.partition("usage:")[0], command
  # The recipe is found, the input is missing.
  recipe = "--flagfile=recipes/laptop.flags"
  assert "input_file is needed" in run(
    environment / "bin/albert-run-pretrain", recipe, cwd=tmp_path, status=2
  )
  # The demo's first stage: a corpus from the documentation on this machine.
  flags = ("--output_dir=corpus", "--max_megabytes=1")
  run(environment / "bin/albert-extract-installed-docs", *flags, cwd=tmp_path)
  assert list((tmp_path / "corpus").glob("*.txt"))
