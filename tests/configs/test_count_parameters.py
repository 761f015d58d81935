"""The command that prints the paper's tables, as a user runs it."""

import subprocess
import sys


def run(repository_dir, *arguments):
  command = [sys.executable, "tpu_scripts/count_parameters.py", *arguments]
  return subprocess.run(command, cwd=repository_dir, capture_output=True, text=True, check=False)


def test_paper_tables(repository_dir):
  done = run(repository_dir)
  assert done.returncode == 0, done.stderr
  for row in (
    "| xxlarge | 12 | 4,096 | 128 | all-shared | 201,379,840 | 222,595,584 | 223,158,450 | 235M |",
    "| not-shared | 64 | 87,648,000 | 87M |",
    "| 128 | shared-FFN | 37,686,528 | 38M |",
    "| 48 | 17,683,968 | 18M |",  # Depth costs no parameters.
    "| 6,144 | 495,518,208 | 499M |",
    "| 24 | 222,595,584 | 235M |",
  ):
    assert row in done.stdout


def test_one_configuration_and_a_mistake(repository_dir):
  done = run(repository_dir, "--size=base", "--sharing=attention")
  assert "| feed-forward + LayerNorm | 12 | 4,723,968 |" in done.stdout
  assert "| encoder + pooler |  | 63,647,232 |" in done.stdout
  wide = run(repository_dir, "--size=base", "--hidden_size=2048", "--num_hidden_layers=24")
  assert "| encoder + pooler |  | 58,724,864 |" in wide.stdout  # Xlarge: its heads change no count.
  failed = run(repository_dir, "--sharing=ffn")
  assert (failed.returncode, failed.stdout) == (2, "")
  assert "Received: --sharing and no size. Add --size" in failed.stderr
