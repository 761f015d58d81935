"""What the shared flags of fine-tuning become where nothing was said."""

import json
import subprocess
import sys

from albert_tf.configs.task import TaskSpec

PROGRAM = """
import json, sys, types
sys.path.insert(0, sys.argv[1])
from absl import flags
import finetuning
flags.FLAGS(["command", *sys.argv[2:]])
def length(given, positions, **kwargs):
  start = types.SimpleNamespace(config=types.SimpleNamespace(max_position_embeddings=positions))
  return finetuning.max_seq_length(given, start, **kwargs)
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


COLUMNS = """
import json, sys
sys.path.insert(0, sys.argv[1])
from absl import flags
import finetuning
from albert_tf import commands
from albert_tf.finetuning.data import TableColumns
commands.define_flags(TableColumns, label="label")
flags.FLAGS(["command", *sys.argv[2:]])
print(json.dumps(finetuning.columns(TableColumns).to_dict()))
"""


def test_columns_follow_the_flag_then_the_run(repository_dir, tmp_path):
  """A table that is predicted later has the columns of the one that was trained on."""

  def columns(*arguments):
    command = [sys.executable, "-c", COLUMNS, str(repository_dir / "tpu_scripts"), *arguments]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

  spec = TaskSpec(kind="regression", name="custom", columns={"texts": ("review", "reply"), "label": "stars"})
  spec.save(str(tmp_path))
  assert columns("--do_train", f"--output_dir={tmp_path}") == {"texts": ["text"], "label": "label", "id": ""}
  later = f"--init_checkpoint={tmp_path}", "--output_dir=new"
  assert columns(*later) == {"texts": ["review", "reply"], "label": "stars", "id": ""}
  assert columns(*later, "--label_column=mark") == {"texts": ["review", "reply"], "label": "mark", "id": ""}
  # Another kind's columns do not get in: the engine then says that the model is of another task.
  own = {"question": "q", "choices": ("a", "b"), "label": "right"}
  TaskSpec(kind="multiple_choice", name="custom", columns=own).save(str(tmp_path))
  assert columns(*later) == {"texts": ["text"], "label": "right", "id": ""}
