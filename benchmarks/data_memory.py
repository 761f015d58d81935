r"""Peak memory of making records: a small corpus beside a ten times larger one, and beside the paper's.

`real` sides run the command, `plan` sides run its parts at the scale of the paper, 16 GB of text with 40 passes,
without its disk: a block of the largest size with all its passes; the merge of as many runs as the widest round
has, on files that hold keys and holes; and the notes of all runs. Peaks are those of the largest process.
Prints one JSON line. The claims: each side within 20 % of the 200 MB run.

Example:
  python benchmarks/data_memory.py --input 'corpus/*.txt' --spm_model_file 30k.model --real_gb=4
"""

from collections.abc import Callable, Iterator
import contextlib
import multiprocessing
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

from absl import flags
import common
import numpy as np
import psutil

from albert_tf.tokenization import AlbertTokenizer
from tfrecords_tools.corpus import CorpusOptions
from tfrecords_tools.pretraining import blocks, job, sorted_runs
from tfrecords_tools.pretraining.local import work_notes, worker
from tfrecords_tools.pretraining.settings import RecordSettings
from tfrecords_tools.pretraining.sources import Source

_CORPUS = common.define_corpus_flags()
_MEGABYTES = flags.DEFINE_list(
  "megabytes", ["20", "200"], "Text of the real sides; the last is compared with."
)
_REAL_GB = flags.DEFINE_float("real_gb", 0.0, "Text of one more real side, of two workers; 0 leaves it out.")
_DUPE_FACTOR = flags.DEFINE_integer("dupe_factor", 1, "Passes over the text of the real sides.")

_PAPER_BYTES, _PAPER_PASSES = 16 << 30, 40
_BYTES_PER_BYTE_OF_TEXT = 1.7  # Records of one pass at length 512, about.
_RECORD_BYTES = 1500
_SHARE_OF_MERGE = 0.05  # The peak is that of any part.


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


def _planned(target: Callable[..., None], *arguments: Any) -> dict[str, float]:
  """A part of the work, in a fresh process."""
  begin = time.monotonic()
  process = multiprocessing.get_context("spawn").Process(target=target, args=arguments)
  process.start()
  peak = _peak_mebibytes(psutil.Process(process.pid), process.is_alive)
  if process.exitcode:
    raise RuntimeError(f"{target.__name__} ended with status {process.exitcode}.")
  return {"peak_mebibytes": peak, "seconds": time.monotonic() - begin}


def _paper_job(paths: list[str], model: str, directory: str) -> job.Job:
  """A job of the paper's size, of which the first file alone is there."""
  settings = RecordSettings(dupe_factor=_PAPER_PASSES, num_shards=1000, num_eval_shards=10)
  tokenizer = AlbertTokenizer(spm_model_file=model)
  block_bytes = blocks.block_bytes_for(_PAPER_BYTES)
  options = CorpusOptions(input_format="lines")
  return job.Job(
    paths,
    [_PAPER_BYTES],
    [Source()],
    options,
    tokenizer,
    settings,
    output_dir=directory,
    work_dir=directory,
    block_bytes=block_bytes,
    plan="",
  )


def make_a_block(text: str, model: str, directory: str) -> None:
  """All passes over the first block of the paper's job."""
  paper = _paper_job([text], model, directory)
  counter = worker.Unshared()
  block = next(iter(worker.read_blocks(paper, 0, counter, 0)))
  worker.Worker(paper, counter).make(block, ())


def merge_the_widest_round(directory: str) -> None:
  """A part of the keys of as many runs as one merge may have, each with keys and a hole for its records."""
  sorted_runs_of_merge = list(_runs_of_holes(directory))
  high = int(sorted_runs.KEY_SPACE * _SHARE_OF_MERGE)
  size = sum(len(part.data) for part in sorted_runs.merge(sorted_runs_of_merge, high=high))
  expected = _SHARE_OF_MERGE * sum(run.num_bytes for run in sorted_runs_of_merge)
  if not 0.9 * expected < size < 1.1 * expected:
    raise RuntimeError(f"{size} bytes were merged and not {expected}.")


def _runs_of_holes(directory: str) -> Iterator[sorted_runs.Run]:
  rng = np.random.default_rng(0)
  count = 2 * sorted_runs.RUN_BYTES // _RECORD_BYTES
  for number in range(sorted_runs.FAN_IN):
    run = sorted_runs.Run(os.path.join(directory, f"{number}.run"), "train", count, count * _RECORD_BYTES)
    keys = np.sort(rng.integers(0, sorted_runs.KEY_SPACE, count, np.uint64))
    np.stack([keys, np.arange(1, count + 1, dtype=np.uint64) * _RECORD_BYTES], axis=1).tofile(run.index_path)
    with open(run.path, "wb") as stream:
      stream.truncate(run.num_bytes)
    yield run


def plan_all_runs(text: str, model: str, directory: str) -> None:
  """The notes of every run of the paper's job, and the groups of each round."""
  paper = _paper_job([text], model, directory)
  total = _PAPER_BYTES * _PAPER_PASSES * _BYTES_PER_BYTE_OF_TEXT
  count = sorted_runs.RUN_BYTES // _RECORD_BYTES
  outcome = paper.empty_outcome()
  outcome.runs = [
    sorted_runs.Run(
      os.path.join(directory, f"block-00000-{number:06d}-train-0000.run"),
      "train",
      count,
      sorted_runs.RUN_BYTES,
    )
    for number in range(int(total / sorted_runs.RUN_BYTES))
  ]
  notes = work_notes.WorkNotes(paper)
  notes.write_all(outcome)
  pathlib.Path(directory, "merged-train-0-00000.run").touch()  # So no run is looked for.
  found = notes.read_all()
  left = found.runs if found else []
  while groups := sorted_runs.groups_of_round(left):
    left = [group[0] for group in groups]
  if len(left) != sorted_runs.FAN_IN and not 1 < len(left) < sorted_runs.FAN_IN:
    raise RuntimeError(f"{len(left)} runs are left for the last merge.")


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
        sides[f"real_{size}_mb"] = _real(text, model, os.path.join(output, "out"), num_workers=workers)
    for target, arguments in (
      (make_a_block, (text, model)),
      (merge_the_widest_round, ()),
      (plan_all_runs, (text, model)),
    ):
      with tempfile.TemporaryDirectory(dir=directory) as output:
        sides[f"plan_{target.__name__}"] = _planned(target, *arguments, output)
  reference = sides[f"real_{_MEGABYTES.value[-1]}_mb"]["peak_mebibytes"]
  return {
    **sides,
    "paper": f"{_PAPER_BYTES >> 30} GiB of text, {_PAPER_PASSES} passes",
    "largest_ratio": max(side["peak_mebibytes"] for side in sides.values()) / reference,
    "claim": 1.2,
  }


if __name__ == "__main__":
  common.run(benchmark)
