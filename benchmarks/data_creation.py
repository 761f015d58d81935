r"""Instances per second of CPU, against the original's algorithm on the same text, and two workers against one.

Prints one JSON line. The original's code needs TensorFlow 1.15 and cannot run with ours, so its algorithm is written
out plainly and run in turn with ours: on a Python about twice as fast as TensorFlow 1.15's, and without the
original's log lines, so it is the harder side. CPU time is compared: wall time does not repeat on shared machines.

`start_up_seconds` is the command without a text to read: imports and flags. The original's, which imports TensorFlow,
is left out.

Two workers against one (claimed: 1.8 times at 100 MB, and never slower) are whole commands by the clock, in turn, best
against best, so a quiet machine is needed.

Example:
  python benchmarks/data_creation.py --input 'corpus/*.txt' --spm_model_file 30k.model
"""

import functools
import os
import tempfile
import time
from typing import Any, NamedTuple

from absl import flags
import common
import plain_data_creation

from albert_tf.tokenization import AlbertTokenizer
from tfrecords_tools.corpus import CorpusOptions
from tfrecords_tools.pretraining.create import create_records
from tfrecords_tools.pretraining.job import make_job
from tfrecords_tools.pretraining.local import make_locally
from tfrecords_tools.pretraining.settings import RecordSettings

_CORPUS = common.define_corpus_flags()
_MEGABYTES = flags.DEFINE_float("megabytes", 3.0, "Text for the comparison with the original.")
_DUPE_FACTOR = flags.DEFINE_integer(
  "dupe_factor", 2, "Passes over the text; the original's default is 40."
)
_WORKER_MEGABYTES = flags.DEFINE_list(
  "worker_megabytes", ["3", "30", "100"], "Text for 2 workers against 1; empty leaves it out."
)
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Repetitions; the best of each side counts.")


class _Instances(NamedTuple):
  """One side's output and time."""

  number: int
  cpu_seconds: float

  def per_second(self) -> float:
    return self.number / self.cpu_seconds


def _settings() -> RecordSettings:
  return RecordSettings(
    max_seq_length=512,
    max_predictions_per_seq=20,
    dupe_factor=_DUPE_FACTOR.value,
    eval_fraction=0.0,
  )


def _time_original(
  documents: list[list[str]], tokenizer: AlbertTokenizer, directory: str
) -> _Instances:
  settings = _settings()
  begin = time.process_time()
  instances = plain_data_creation.create(
    documents,
    os.path.join(directory, "original.tfrecord"),
    tokenizer,
    dupe_factor=settings.dupe_factor,
    seed=1,
    max_seq_length=settings.max_seq_length,
    max_predictions=settings.max_predictions_per_seq,
  )
  return _Instances(instances, time.process_time() - begin)


def _time_ours(text: str, tokenizer: AlbertTokenizer) -> _Instances:
  with tempfile.TemporaryDirectory(dir=os.path.dirname(text)) as output:
    begin = time.process_time()
    job = make_job(
      [text],
      output,
      tokenizer=tokenizer,
      settings=_settings(),
      options=CorpusOptions(input_format="lines"),
    )
    manifest = create_records(job, make_locally)
    return _Instances(manifest.num_records("train"), time.process_time() - begin)


def _time_workers(text: str, model: str, directory: str, num_workers: int) -> float:
  """Seconds of the command by the clock."""
  with tempfile.TemporaryDirectory(dir=directory) as output:
    return common.timed(
      lambda: common.data_tool(
        "create_pretraining_data",
        f"--input={text}",
        "--input_format=lines",
        f"--spm_model_file={model}",
        f"--output_dir={output}/records",
        f"--dupe_factor={_DUPE_FACTOR.value}",
        "--eval_fraction=0",
        f"--num_workers={num_workers}",
      )
    ).wall


def _time_start_up() -> float:
  """Best seconds of the whole command up to the point where it has read its flags and would open its input."""
  required = ("--only_check_args", "--input=text", "--spm_model_file=model", "--output_dir=records")
  tool = functools.partial(common.data_tool, "create_pretraining_data", *required)
  return min(common.timed(tool).wall for _ in range(5 * _ROUNDS.value))


def benchmark() -> dict[str, Any]:
  import tensorflow  # noqa: F401 - The original's side writes with it; its import is not timed.

  with tempfile.TemporaryDirectory() as directory:
    documents, model = _CORPUS(directory, megabytes=_MEGABYTES.value)
    text = os.path.join(directory, "text.txt")
    common.write_lines(documents, text)
    tokenizer = AlbertTokenizer.from_pretrained(model)
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
    result["start_up_seconds"] = start_up = _time_start_up()
    with_start_up = ours.number / (ours.cpu_seconds + start_up)
    result["ours_per_second_with_start_up"] = with_start_up
    result["ratio_to_restated_with_start_up"] = with_start_up / original.per_second()
    large = os.path.join(directory, "large.txt")
    for megabytes in _WORKER_MEGABYTES.value:
      common.write_lines(documents, large, megabytes=float(megabytes))
      result[f"workers_{megabytes}_mb"] = _compare_workers(large, model, directory)
  return result


def _compare_workers(text: str, model: str, directory: str) -> dict[str, Any]:
  sides = {f"{n}": functools.partial(_time_workers, text, model, directory, n) for n in (1, 2)}
  one, two = (min(found) for found in common.in_turn(sides, _ROUNDS.value).values())
  return {"one_worker_seconds": one, "two_workers_seconds": two, "speed_up": one / two}


if __name__ == "__main__":
  common.run(benchmark)
