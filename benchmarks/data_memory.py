r"""Peak memory of making records: a small corpus beside a ten times larger one, and on request one of gigabytes.

Peaks are those of the largest process of the command.
Prints one JSON line. The claims: each side within 20 % of the 200 MB run.

Example:
  python benchmarks/data_memory.py --input 'corpus/*.txt' --spm_model_file 30k.model --real_gb=4
"""

from collections.abc import Callable
import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

from absl import flags
import common
import psutil

_CORPUS = common.define_corpus_flags()
_MEGABYTES = flags.DEFINE_list("megabytes", ["20", "200"], "Text of the sides; the last is compared with.")
_REAL_GB = flags.DEFINE_float("real_gb", 0.0, "Text of one more side, of two workers; 0 leaves it out.")
_DUPE_FACTOR = flags.DEFINE_integer("dupe_factor", 1, "Passes over the text of the sides.")


def _peak_mebibytes(process: psutil.Process, is_alive: Callable[[], bool]) -> float:
  """The largest resident memory that a process or one of its children reaches; a fork's is its parent's at first."""
  peak = 0.0
  while is_alive():
    with contextlib.suppress(psutil.Error, OSError):
      for each in (process, *process.children(recursive=True)):
        status = pathlib.Path(f"/proc/{each.pid}/status").read_text(encoding="ascii")
        fields = dict(line.split(":", 1) for line in status.splitlines())
        peak = max(peak, int(fields.get("VmHWM", "0 kB").split()[0]) / 1024)
    time.sleep(0.02)
  return peak


def _real(text: str, model: str, output_dir: str, *, num_workers: int) -> dict[str, float]:
  """The whole command."""
  begin = time.monotonic()
  process = subprocess.Popen(
    [
      sys.executable,
      "-m",
      "tfrecords_tools.create_pretraining_data",
      f"--input={text}",
      "--input_format=lines",
    ]
    + [f"--spm_model_file={model}", f"--output_dir={output_dir}", f"--dupe_factor={_DUPE_FACTOR.value}"]
    + [f"--num_workers={num_workers}"],
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
  )
  peak = _peak_mebibytes(psutil.Process(process.pid), lambda: process.poll() is None)
  if process.returncode:
    raise RuntimeError(f"create_pretraining_data.py ended with status {process.returncode}.")
  return {"peak_mebibytes": peak, "seconds": time.monotonic() - begin}


def benchmark() -> dict[str, Any]:
  sides: dict[str, dict[str, float]] = {}
  with tempfile.TemporaryDirectory() as directory:
    documents, model = _CORPUS(directory, megabytes=20)
    text = os.path.join(directory, "text.txt")
    gigabytes = [f"{1000 * _REAL_GB.value:g}"] if _REAL_GB.value else []
    for size in [*_MEGABYTES.value, *gigabytes]:
      common.write_lines(documents, text, megabytes=float(size))
      workers = 2 if [size] == gigabytes else 1
      with tempfile.TemporaryDirectory(dir=directory) as output:
        sides[f"{size}_mb"] = _real(text, model, os.path.join(output, "out"), num_workers=workers)
  reference = sides[f"{_MEGABYTES.value[-1]}_mb"]["peak_mebibytes"]
  return {
    **sides,
    "largest_ratio": max(side["peak_mebibytes"] for side in sides.values()) / reference,
    "claim": 1.2,
  }


if __name__ == "__main__":
  common.run(benchmark)
