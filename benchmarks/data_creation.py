r"""Instances per second of CPU, against the original's algorithm on the same text, and two workers against one.

Prints one JSON line. The original's code needs TensorFlow 1.15 and cannot run here, so its algorithm is written out
plainly and run in turn with ours: on a Python about twice as fast as the one TensorFlow 1.15 runs on, and without the
original's log lines, so it is the harder side. CPU time is compared because wall time does not repeat on shared
machines; the speed-up of workers (claimed: 1.8 with two) needs wall time, so a quiet machine.

Example:
  python benchmarks/data_creation.py --input 'corpus/*.txt' --spm_model_file 30k.model
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from typing import Any, NamedTuple

from absl import flags
import common
import plain_data_creation
import psutil

from albert_tf.tokenization import AlbertTokenizer
from tfrecords_tools.pretraining.settings import PretrainingSettings

_CORPUS = common.define_corpus_flags()
_MEGABYTES = flags.DEFINE_float("megabytes", 3.0, "Text for the comparison with the original.")
_WORKER_MEGABYTES = flags.DEFINE_float(
  "worker_megabytes", 100.0, "Text for 2 workers against 1; 0 leaves it out."
)
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Repetitions; the best of each side counts.")

_SETTINGS = PretrainingSettings(
  max_seq_length=512, max_predictions_per_seq=20, dupe_factor=2, eval_fraction=0.0
)
_COMMAND = [sys.executable, "-m", "tfrecords_tools.create_pretraining_data"]


class _Instances(NamedTuple):
  """What one side made, and how long it took."""

  number: int
  cpu_seconds: float

  def per_second(self) -> float:
    return self.number / self.cpu_seconds


def _time_original(documents: list[list[str]], tokenizer: AlbertTokenizer, directory: str) -> _Instances:
  begin = time.process_time()
  instances = plain_data_creation.create(
    documents,
    os.path.join(directory, "original.tfrecord"),
    tokenizer,
    dupe_factor=_SETTINGS.dupe_factor,
    seed=1,
    max_seq_length=_SETTINGS.max_seq_length,
    max_predictions=_SETTINGS.max_predictions_per_seq,
  )
  return _Instances(instances, time.process_time() - begin)


def _time_ours(text: str, tokenizer: AlbertTokenizer) -> _Instances:
  manifest, seconds = common.make_records(text, tokenizer=tokenizer, settings=_SETTINGS)
  return _Instances(manifest.num_records("train"), seconds)


def _time_workers(text: str, model: str, directory: str, num_workers: int) -> tuple[float, float]:
  """Wall seconds, and CPU seconds of the command and its workers."""
  with tempfile.TemporaryDirectory(dir=directory) as output:
    begin = time.perf_counter()
    process = subprocess.Popen(
      [*_COMMAND, f"--input={text}", "--input_format=lines", f"--spm_model_file={model}"]
      + [
        f"--output_dir={output}/records",
        "--dupe_factor=2",
        "--eval_fraction=0",
        f"--num_workers={num_workers}",
      ],
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
    )
    cpu: dict[int, float] = {}  # Last seen, by process: workers are not the benchmark's to wait for.
    while process.poll() is None:
      with contextlib.suppress(psutil.Error):
        root = psutil.Process(process.pid)
        for each in (root, *root.children(recursive=True)):
          times = each.cpu_times()
          cpu[each.pid] = times.user + times.system
      time.sleep(0.1)
    if process.returncode:
      raise RuntimeError(f"create_pretraining_data.py ended with status {process.returncode}.")
    return time.perf_counter() - begin, sum(cpu.values())


def benchmark() -> dict[str, Any]:
  import tensorflow  # noqa: F401 - The original's side writes with it; its import is not timed.

  with tempfile.TemporaryDirectory() as directory:
    documents, model = _CORPUS(directory, megabytes=_MEGABYTES.value)
    text = os.path.join(directory, "text.txt")
    common.write_lines(documents, text)
    tokenizer = AlbertTokenizer(spm_model_file=model)
    sides = {
      "ours": lambda: _time_ours(text, tokenizer),
      "original": lambda: _time_original(documents, tokenizer, directory),
    }
    found = common.in_turn(sides, _ROUNDS.value)
    ours, original = (max(each, key=_Instances.per_second) for each in found.values())
    result = {
      "megabytes": os.path.getsize(text) / 1e6,
      "vocab_size": tokenizer.vocab_size,
      "ours_instances": ours.number,
      "ours_per_cpu_second": ours.per_second(),
      "original_restated_per_cpu_second": original.per_second(),
      "ratio_to_restated": ours.per_second() / original.per_second(),
    }
    if _WORKER_MEGABYTES.value:
      large = os.path.join(directory, "large.txt")
      common.write_lines(documents, large, megabytes=_WORKER_MEGABYTES.value)
      one, two = (_time_workers(large, model, directory, workers) for workers in (1, 2))
      result |= {
        "worker_megabytes": _WORKER_MEGABYTES.value,
        "one_worker_seconds": one[0],
        "two_workers_seconds": two[0],
        "speed_up": one[0] / two[0],
        "speed_up_claim": 1.8,
        # What two quiet cores could reach: the same work, and what sharing it adds.
        "speed_up_by_cpu_time": one[1] / (two[1] / 2),
      }
  return result


if __name__ == "__main__":
  common.run(benchmark)
