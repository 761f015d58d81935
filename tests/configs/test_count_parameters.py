"""The command that prints sizes, as a user runs it."""

import subprocess
import sys


def run(repository_dir, *arguments):
  command = [sys.executable, "tpu_scripts/count_parameters.py", *arguments]
  return subprocess.run(command, cwd=repository_dir, capture_output=True, text=True, check=False)


def test_all_sizes(repository_dir):
  done = run(repository_dir)
  assert done.returncode == 0, done.stderr
  assert "| xxlarge | 12 | 4,096 | 128 | all | 201,379,840 | 222,595,584 | 223,158,450 |" in done.stdout


def test_one_configuration_and_a_mistake(repository_dir):
  done = run(repository_dir, "--size=base", "--sharing=attention")
  assert "| base | 12 | 768 | 128 | attention | 7,087,872 | 63,647,232 |" in done.stdout
  wide = run(repository_dir, "--size=base", "--hidden_size=2048", "--num_hidden_layers=24")
  assert "| 58,724,864 |" in wide.stdout  # Xlarge: its heads change no count.
  failed = run(repository_dir, "--sharing=ffn")
  assert (failed.returncode, failed.stdout) == (2, "")
  assert "exactly one of --size and" in failed.stderr
