"""Makes records on Apache Beam: the same blocks, the same sorted keys, so the same bytes.

  files → blocks → records by final file → each file sorted and written by one worker

A file is sorted in memory, so memory is bounded by a file. A failed pipeline is run again from the
start; Beam repeats failed bundles. Either writes the same files over.
"""

from collections.abc import Iterable, Iterator, Sequence
import contextlib
import math
import os
import re
import struct
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from albert_tf import files, json_files
from albert_tf.errors import UserError
from albert_tf.records import RecordFile
from tfrecords_tools.pretraining.job import PLAN_NAME, Job
from tfrecords_tools.pretraining.settings import RECORD_BYTES_PER_TEXT_BYTE, SPLITS
from tfrecords_tools.pretraining.stages import (
  KEY_SPACE,
  Block,
  Result,
  make_instances,
  read_blocks,
  read_description,
  write_shard,
)

_LOCAL_RUNNER = "apache_beam.runners.portability.fn_api_runner.fn_runner.FnApiRunner"
LARGEST_SHARD = 1 << 30  # Bytes that a worker is trusted to sort; it holds them once.
_RESULT_NAME = "beam-result.json"
# Before each record: its key and the numbers of its file and block, so that the order of the bytes
# is the order of the records, and that of the local runner.
_ORDER = struct.Struct(">QII")
# A mistake of the user's, as a worker's traceback ends with it; and the name of the step, which
# Beam adds.
_USER_ERROR = re.compile(r"^albert_tf\.\w+\.(?:User|Store|MissingFile)Error: (.+)$", re.MULTILINE)
_STEP = re.compile(r" \[while running '[^']*'\]")


def make_on_beam(job: Job, arguments: Sequence[str] = ()) -> tuple[Result, list[RecordFile]]:
  """The `Runner` on Apache Beam.

  Args:
    job: what is made.
    arguments: Beam's own pipeline options; without --runner the pipeline runs in this process.
  """
  _check_shards(job)
  # Beam's own default would first look for a faster runner to download. The last option counts.
  options = [f"--runner={_LOCAL_RUNNER}", *arguments]
  pipeline = beam.Pipeline(options=PipelineOptions(options, save_main_session=False))
  # Beam keeps what one step makes on one worker; it is distributed where the work is long.
  input_files = pipeline | "files" >> beam.Create(range(len(job.paths)))
  distributed_files = input_files | "distribute files" >> beam.Reshuffle()
  blocks = distributed_files | "blocks" >> beam.FlatMap(_read_blocks, job)
  distributed_blocks = blocks | "distribute blocks" >> beam.Reshuffle()
  make_records = beam.FlatMap(_make_records, job).with_outputs("result", main="records")
  made = distributed_blocks | "instances" >> make_records

  by_file = made.records | "by file" >> beam.GroupByKey()
  _ = by_file | "sort and write" >> beam.Map(_write_file, job)
  result_path = os.path.join(job.work_dir, _RESULT_NAME)
  total = made.result | "add up" >> beam.CombineGlobally(_total, job)
  _ = total | "describe" >> beam.Map(_write_result, result_path)
  _run(pipeline)

  record_files = []
  for split in SPLITS:
    for name in job.settings.shard_names(split):
      record_file = read_description(job, name)
      if record_file is None:  # No record fell into it.
        record_file = write_shard(job, name, split, ())
      record_files.append(record_file)
  return Result.from_json(json_files.read(result_path), job), record_files


def _check_shards(job: Job) -> None:
  """Refuses files that a worker could not sort in memory."""
  num_shards = job.settings.num_shards
  train_bytes = sum(job.text_sizes) * job.settings.dupe_factor * RECORD_BYTES_PER_TEXT_BYTE
  needed = math.ceil(train_bytes / LARGEST_SHARD)
  if needed > num_shards:
    raise UserError(
      "On Beam a worker sorts a whole file in memory: about "
      f"{LARGEST_SHARD >> 30} GiB at most. Received: --num_shards={num_shards} for about "
      f"{train_bytes / 1e9:,.0f} GB of records. Give --num_shards={needed} or more."
    )


def _read_blocks(file_index: int, job: Job) -> Iterator[Block]:
  """The blocks of a file, on a worker that sees what the command wrote.

  Else the command would not see what the worker writes.
  """
  for directory in job.work_dirs:
    if not files.exists(os.path.join(directory, PLAN_NAME)):
      raise UserError(
        "Beam's workers and this command must share --input, --output_dir and --work_dir. "
        f"Received: {directory}, in which a worker finds no {PLAN_NAME}. Use directories that both "
        "reach, such as some on Cloud Storage."
      )
  return read_blocks(job, file_index)


def _make_records(block: Block, job: Job) -> Iterator[Any]:
  """A block to ((split, number of the final file), ordered record), and its result."""
  result = Result.of_nothing(job)
  for split, instances_of_split in make_instances(job, block, result):
    num_shards = job.settings.num_shards_of(split)
    for instances in instances_of_split:
      for key, record in zip(instances.keys.tolist(), instances.records, strict=True):
        shard = key * num_shards // KEY_SPACE
        yield (split, shard), _ORDER.pack(key, block.file_index, block.index) + record
  yield beam.pvalue.TaggedOutput("result", result)


def _write_file(element: tuple[tuple[str, int], Iterable[bytes]], job: Job) -> None:
  """Writes all records of a final file, sorted; replaces what an attempt before has left there."""
  (split, shard), ordered_records = element
  records = (record[_ORDER.size :] for record in sorted(ordered_records))
  write_shard(job, job.settings.shard_names(split)[shard], split, records)


def _total(results: Iterable[Result], job: Job) -> Result:
  return sum(results, Result.of_nothing(job))


def _write_result(result: Result, path: str) -> None:
  json_files.write(path, result.to_json())


def _run(pipeline: Any) -> None:
  """Runs a pipeline to its end.

  Raises:
    UserError: a worker found a mistake of the user's, which Beam hands over as text.
  """
  try:
    result = pipeline.run()
    try:
      result.wait_until_finish()
    except (KeyboardInterrupt, SystemExit):
      # Without this command nothing would publish what the pipeline goes on to write.
      with contextlib.suppress(Exception):  # Not every runner can.
        result.cancel()
      raise
  except UserError as error:
    raise UserError(_STEP.sub("", str(error))) from error
  except Exception as error:
    messages = _USER_ERROR.findall(str(error))
    if not messages:
      raise
    raise UserError(_STEP.sub("", messages[-1])) from error
