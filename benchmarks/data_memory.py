r"""Peak memory of a data worker for a small and a ten times larger corpus.

Prints one JSON line. The claims: the same within 15 %, and below 1 GiB.

Example:
  python benchmarks/data_memory.py --input 'corpus/*.txt' --spm_model_file 30k.model
"""

from collections.abc import Sequence
import json
import os
import subprocess
import sys
import tempfile

from absl import app, flags
import data_corpus

from albert_tf import files
from albert_tf.errors import exit_on_user_error

_INPUT = flags.DEFINE_list("input", None, "Text to repeat; default: this machine's documentation.")
_INPUT_FORMAT = flags.DEFINE_string("input_format", "lines", "Format of --input.")
_SPM_MODEL_FILE = flags.DEFINE_string(
  "spm_model_file", None, "Vocabulary; default: one of 8,000 pieces is trained."
)
_MEGABYTES = flags.DEFINE_list("megabytes", ["20", "200"], "Sizes of the two corpora.")
_DUPE_FACTOR = flags.DEFINE_integer("dupe_factor", 1, "Passes over the text.")


def _peak_mebibytes(text: str, model: str, output_dir: str) -> float:
  """Peak resident memory of the command, which makes everything in its own process."""
  arguments = [
    f"--input={text}",
    "--input_format=lines",
    f"--spm_model_file={model}",
    f"--output_dir={output_dir}",
    f"--dupe_factor={_DUPE_FACTOR.value}",
    "--num_workers=1",
  ]
  process = subprocess.Popen(
    [sys.executable, "-m", "tfrecords_tools.create_pretraining_data", *arguments],
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
  )
  _, status, usage = os.wait4(process.pid, 0)
  process.returncode = os.waitstatus_to_exitcode(status)
  if process.returncode:
    raise RuntimeError(f"create_pretraining_data.py ended with status {process.returncode}.")
  return usage.ru_maxrss / 1024  # Kibibytes on Linux.


@exit_on_user_error
def main(argv: Sequence[str]) -> None:
  del argv
  with tempfile.TemporaryDirectory() as directory:
    if _INPUT.value:
      paths = files.expand_globs(_INPUT.value)
    else:
      paths = data_corpus.installed_documentation(os.path.join(directory, "docs"), megabytes=20)
    documents = data_corpus.read_documents(paths, input_format=_INPUT_FORMAT.value, megabytes=20)
    model = _SPM_MODEL_FILE.value or data_corpus.train_vocabulary(documents, directory)
    peaks = []
    for size in map(float, _MEGABYTES.value):
      text = os.path.join(directory, "text.txt")
      data_corpus.write_lines(documents, text, megabytes=size)
      with tempfile.TemporaryDirectory(dir=directory) as output:
        peaks.append(_peak_mebibytes(text, model, os.path.join(output, "records")))
  small, large = peaks
  print(
    json.dumps(
      {
        "benchmark": "data_memory",
        "megabytes": [float(size) for size in _MEGABYTES.value],
        "peak_mebibytes": peaks,
        "ratio": large / small,
        "claim": 1.15,
        "limit_mebibytes": 1024,
      }
    )
  )


if __name__ == "__main__":
  app.run(main)
