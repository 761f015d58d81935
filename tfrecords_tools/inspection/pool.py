"""Files of records inspected by several processes; what is found does not depend on their number."""

from collections.abc import Callable, Iterator, Sequence
import concurrent.futures
import contextlib
import functools
import multiprocessing
import os

from albert_tf import files
from albert_tf.progress import track
from albert_tf.records import Manifest, missing_files
from albert_tf.tokenization import Tokenizer
from tfrecords_tools.inspection.inspector import Findings, Inspector, Problem

_WORTH_A_WORKER = 64 << 20  # Bytes of records that take longer than its start.


def default_workers(paths: Sequence[str]) -> int:
  """As many as there are processors, files, and enough bytes."""
  worth = sum(map(files.size, paths)) // _WORTH_A_WORKER
  return max(1, min(os.cpu_count() or 1, len(paths), worth))


def inspect_files(
  paths: Sequence[str],
  tokenizer: Tokenizer,
  *,
  validate: bool,
  max_records: int | None = None,
  num_workers: int = 1,
) -> Findings:
  """What is found in all files."""
  inspect = functools.partial(_inspect, tokenizer=tokenizer, validate=validate, max_records=max_records)
  total = Findings(tokenizer)
  with contextlib.ExitStack() as stack:
    run: Callable[..., Iterator[Findings]] = map
    if num_workers > 1:
      context = multiprocessing.get_context("forkserver")
      context.set_forkserver_preload([__name__])
      workers = min(num_workers, len(paths))
      run = stack.enter_context(concurrent.futures.ProcessPoolExecutor(workers, mp_context=context)).map
    for found in track(run(inspect, paths), len(paths), desc="Inspecting", unit="files"):
      total.add(found)
  for directory in total.settings if validate else ():
    for name in missing_files(directory, Manifest.load(directory)):
      total.note(Problem(os.path.join(directory, name), None, "it is missing"))
  return total


def _inspect(path: str, *, tokenizer: Tokenizer, validate: bool, max_records: int | None) -> Findings:
  return Inspector(tokenizer, path, max_records=max_records).inspect(validate=validate)
