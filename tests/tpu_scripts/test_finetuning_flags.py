"""What the shared flags of fine-tuning become where nothing was said."""

import json
import subprocess
import sys

PROGRAM = """
import json, sys, types
sys.path.insert(0, sys.argv[1])
from absl import flags
import finetuning_flags
flags.FLAGS(["command", *sys.argv[2:]])
def length(given, positions, **kwargs):
  start = types.SimpleNamespace(config=types.SimpleNamespace(max_position_embeddings=positions))
  return finetuning_flags.max_seq_length(given, start, **kwargs)
print(json.dumps([length(None, 64), length(None, 2048), length(None, 512, default=128), length(80, 64)]))
"""


def lengths(repository_dir, *arguments):
  command = [sys.executable, "-c", PROGRAM, str(repository_dir / "tpu_scripts"), *arguments]
  return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_length_follows_the_flag_then_the_run_then_the_positions(repository_dir, tmp_path):
  # A length that is asked for is not cut here: the model refuses it, and says so.
  assert lengths(repository_dir, "--do_train", f"--output_dir={tmp_path}") == [64, 512, 128, 80]
  spec = {"kind": "regression", "name": "custom", "max_seq_length": 48}
  (tmp_path / "task.json").write_text(json.dumps(spec))
  assert lengths(repository_dir, f"--init_checkpoint={tmp_path}", "--output_dir=new") == [48, 48, 48, 80]
