"""What `import albert_tf` names."""

import pathlib
import subprocess
import sys

import albert_tf

ROOT = pathlib.Path(__file__).parent.parent


def test_every_public_name_is_loaded_when_it_is_used():
  assert set(albert_tf.__all__) <= set(dir(albert_tf))
  assert all(getattr(albert_tf, name).__name__ == name for name in albert_tf.__all__)


def test_pretraining_starts_without_what_it_does_not_use():
  code = """
import sys
from albert_tf.startup import load_tensorflow
load_tensorflow()
import albert_tf.training.pretraining
print([name for name in ("pandas", "sklearn", "matplotlib.pyplot", "tensorflow_text") if sys.modules.get(name)])
import matplotlib.pyplot, sklearn.metrics, tensorflow_text
"""
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
  assert done.returncode == 0, done.stderr
  assert done.stdout == "[]\n"
