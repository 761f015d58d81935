"""A SentencePiece model that is empty or cut anywhere: one message, never a crash.

The library accepts some of these and ends the process with a signal at the first call, so each batch of cuts is
read in a process of its own.
"""

import subprocess
import sys

from support import tiny_corpus
from support.goldens import SPM_MODEL

# Reads the model cut to each length; prints the lengths that were not refused with a message.
_READ_CUTS = """
import sys
from albert_tf.errors import UserError
from albert_tf.tokenization import AlbertTokenizer, TokenizerConfig
path, step = sys.argv[1], int(sys.argv[2])
with open(path, "rb") as stream:
  model = stream.read()
tail = set(range(max(0, len(model) - 300), len(model)))
accepted = []
for length in sorted({*range(0, min(len(model), 600)), *range(0, len(model), step), *tail}):
  try:
    AlbertTokenizer.from_model_bytes(model[:length], TokenizerConfig(), source="cut.model").encode("a b")
    accepted.append(length)
  except UserError as error:
    assert "Received: cut.model, which" in str(error), error
print(accepted)
assert "tensorflow" not in sys.modules
"""


def _accepted(path: str, step: int) -> str:
  done = subprocess.run(
    [sys.executable, "-c", _READ_CUTS, path, str(step)], capture_output=True, text=True, timeout=240
  )
  assert done.returncode == 0, (done.returncode, done.stderr)
  return done.stdout.strip()


def test_cut_at_every_length(tmp_path):
  """Identity normalisation makes a model small enough to try every length."""
  path = tiny_corpus.train_model(str(tmp_path / "tiny.model"), normalization_rule_name="identity")
  assert _accepted(path, step=1) == "[]"


def test_cut_between_pieces():
  """A real model: 8,000 pieces, then what trained it, then the normaliser's table."""
  assert _accepted(SPM_MODEL, step=397) == "[]"
