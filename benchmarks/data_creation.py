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
import measuring
import plain_data_creation
import texts

from albert_tf import files
from albert_tf.tokenization import AlbertTokenizer
from tfrecords_tools.corpus import CorpusOptions
from tfrecords_tools.pretraining.create import create_records
from tfrecords_tools.pretraining.job import make_job
from tfrecords_tools.pretraining.local import make_locally
from tfrecords_tools.pretraining.settings import RecordSettings

_INPUT = flags.DEFINE_list("input", None, "Text; default: this machine's documentation.")
_INPUT_FORMAT = flags.DEFINE_string("input_format", "lines", "Format of --input.")
_MODEL = flags.DEFINE_string(
  "spm_model_file", None, "Vocabulary; default: one of 8,000 tokens is trained."
)
_MEGABYTES = flags.DEFINE_float("megabytes", 3.0, "Text for the comparison with the original.")
_DUPE_FACTOR = flags.DEFINE_integer(
  "dupe_factor", 2, "Passes over the text; the original's default is 40."
)
_WORKER_MEGABYTES = flags.DEFINE_list(
  "worker_megabytes", ["3", "30", "100"], "Text for 2 workers against 1; empty leaves it out."
)
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Repetitions; the best of each side counts.")
_STARTS_PER_ROUND = 5  # A start is short, and its time varies.


class _Instances(NamedTuple):
  """One side's output and time."""

  number: int
  cpu_seconds: float

  def per_second(self) -> float:
    return self.number / self.cpu_seconds


def _settings() -> RecordSettings:
  """The original's defaults, but for the length and the number of passes."""
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
  # The vocabulary is loaded already, on both sides.
  begin = time.process_time()
  number = plain_data_creation.create(
    documents,
    os.path.join(directory, "original.tfrecord"),
    tokenizer,
    dupe_factor=settings.dupe_factor,
    seed=1,
    max_seq_length=settings.max_seq_length,
    max_predictions=settings.max_predictions_per_seq,
  )
  return _Instances(number, time.process_time() - begin)


def _time_ours(text: str, tokenizer: AlbertTokenizer) -> _Instances:
  # A new folder in each round: finished records would not be made again.
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


def _run_command(text: str, model: str, directory: str, num_workers: int) -> None:
  """The whole command, whose output is then removed."""
  with tempfile.TemporaryDirectory(dir=directory) as output:
    texts.data_tool(
      "create_pretraining_data",
      f"--input={text}",
      "--input_format=lines",
      f"--spm_model_file={model}",
      f"--output_dir={output}/records",
      f"--dupe_factor={_DUPE_FACTOR.value}",
      "--eval_fraction=0",
      f"--num_workers={num_workers}",
    )


def _time_start_up() -> float:
  """Best seconds of the whole command up to the point where it has read its flags and would open its input."""
  required = ("--only_check_args", "--input=text", "--spm_model_file=model", "--output_dir=records")
  start = functools.partial(texts.data_tool, "create_pretraining_data", *required)
  num_starts = _STARTS_PER_ROUND * _ROUNDS.value
  return measuring.best([measuring.timed(start) for _ in range(num_starts)]).wall


def _measure() -> dict[str, Any]:
  import tensorflow  # noqa: F401 - The original's side writes with it; its import is not timed.

  with tempfile.TemporaryDirectory() as directory:
    documents = _documents(directory)
    model = _MODEL.value or texts.train_vocabulary(documents, directory)
    text = os.path.join(directory, "text.txt")
    texts.write_lines(documents, text)
    result = _compare_with_original(documents, text, model, directory)
    # The same documents, repeated up to the size.
    large = os.path.join(directory, "large.txt")
    for megabytes in _WORKER_MEGABYTES.value:
      texts.write_lines(documents, large, megabytes=float(megabytes))
      result[f"workers_{megabytes}_mb"] = _compare_workers(large, model, directory)
  return result


def _documents(directory: str) -> texts.Documents:
  if not _INPUT.value:
    return texts.installed_documentation(directory, megabytes=_MEGABYTES.value)
  paths = files.expand_globs(_INPUT.value)
  return texts.read_documents(paths, _INPUT_FORMAT.value, _MEGABYTES.value)


def _compare_with_original(
  documents: texts.Documents, text: str, model: str, directory: str
) -> dict[str, Any]:
  """Instances a second of CPU, both sides in one process.

  Args:
    documents: what the original's algorithm reads.
    text: the same as a file, which our command reads.
    model: the vocabulary.
    directory: for the records.
  """
  tokenizer = AlbertTokenizer.from_pretrained(model)
  sides = {
    "ours": functools.partial(_time_ours, text, tokenizer),
    "original": functools.partial(_time_original, documents, tokenizer, directory),
  }
  results = measuring.in_turn(sides, _ROUNDS.value)
  # Other work on the machine can only slow a round, so the best one counts.
  ours = max(results["ours"], key=_Instances.per_second)
  original = max(results["original"], key=_Instances.per_second)
  # Ours with its start-up against the original without its own: the harder comparison.
  start_up = _time_start_up()
  with_start_up = ours.number / (ours.cpu_seconds + start_up)
  return {
    "megabytes": os.path.getsize(text) / 1e6,
    "vocab_size": tokenizer.vocab_size,
    "ours_instances": ours.number,
    "ours_per_cpu_second": ours.per_second(),
    "original_restated_per_cpu_second": original.per_second(),
    "ratio_to_restated": ours.per_second() / original.per_second(),
    "start_up_seconds": start_up,
    "ours_per_second_with_start_up": with_start_up,
    "ratio_to_restated_with_start_up": with_start_up / original.per_second(),
  }


def _compare_workers(text: str, model: str, directory: str) -> dict[str, Any]:
  """Seconds of whole commands by the clock."""
  sides = {}
  for num_workers in (1, 2):
    command = functools.partial(_run_command, text, model, directory, num_workers)
    sides[str(num_workers)] = functools.partial(measuring.timed, command)
  times = measuring.in_turn(sides, _ROUNDS.value)
  # By the clock: workers are processes of their own, whose processor time is not this one's.
  one_worker = measuring.best(times["1"]).wall
  two_workers = measuring.best(times["2"]).wall
  return {
    "one_worker_seconds": one_worker,
    "two_workers_seconds": two_workers,
    "speed_up": one_worker / two_workers,
  }


if __name__ == "__main__":
  measuring.run(_measure)
