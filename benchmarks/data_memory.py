r"""Peak memory of a data worker for a small and a ten times larger corpus.

Prints one JSON line. The claims: the same within 15 %, and below 1 GiB.

Example:
  python benchmarks/data_memory.py --input 'corpus/*.txt' --spm_model_file 30k.model
"""

import os
import subprocess
import sys
import tempfile
from typing import Any

from absl import flags
import common

_CORPUS = common.define_corpus_flags()
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


def benchmark() -> dict[str, Any]:
  with tempfile.TemporaryDirectory() as directory:
    documents, model = _CORPUS(directory, megabytes=20)
    peaks = []
    for size in map(float, _MEGABYTES.value):
      text = os.path.join(directory, "text.txt")
      common.write_lines(documents, text, megabytes=size)
      with tempfile.TemporaryDirectory(dir=directory) as output:
        peaks.append(_peak_mebibytes(text, model, os.path.join(output, "records")))
  small, large = peaks
  return {
    "megabytes": [float(size) for size in _MEGABYTES.value],
    "peak_mebibytes": peaks,
    "ratio": large / small,
    "claim": 1.15,
    "limit_mebibytes": 1024,
  }


if __name__ == "__main__":
  common.run(benchmark)
