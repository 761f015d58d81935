"""Readable errors for too little memory, damaged records, lost workers and full disks.

docs/training_trouble.md explains each of them.
"""

from collections.abc import Iterator
import contextlib
import re

import tensorflow as tf

from albert_tf import files
from albert_tf.errors import UserError

_CONTINUES = "The same command continues from the last checkpoint"
# The type of the error does not tell: a batch too large and a full disk are both `ResourceExhaustedError`. On-chip
# memory (vmem, smem) is left to the compiler: no smaller batch helps.
_MEMORY = re.compile(
  r"[Oo]ut of memory(?! in memory space [vs]mem)|OOM when allocating|Attempting to (?:allocate|reserve) \S"
)
_PLACE = re.compile(  # Lines with a location in the graph.
  r"\s*(Graph execution|Detected at|\d+ root error|File|Node:|Registered |<|\[\[|\[Op:|$)"
)
_MEMORY_ADVICE = (
  "The step must fit into the devices' memory: raise --gradient_accumulation_steps, add --remat or use more devices; "
  "if it was the evaluation, lower --eval_batch_size. tpu_scripts/compile_for_tpu.py says what fits."
)


def telling_line(message: str) -> str:
  """The first line of a TensorFlow error that is not a location in the graph."""
  return next((line.strip() for line in message.splitlines() if not _PLACE.match(line)), message)


@contextlib.contextmanager
def readable_errors() -> Iterator[None]:
  """Turns errors of TensorFlow and of files into a `UserError` that says how to continue."""
  try:
    yield
  except tf.errors.OpError as error:
    of_memory = next((line for line in error.message.splitlines() if _MEMORY.search(line)), None)
    line = (of_memory or telling_line(error.message)).strip()[-300:].rstrip(".")
    task = re.search(r"/job:(?!localhost\b)(\w+)/replica:\d+/task:(\d+)", error.message)
    raise UserError(
      f"{f'{task[1]} {task[2]}: ' if task else ''}{line}. "
      + (_MEMORY_ADVICE if of_memory else f"{_CONTINUES}; docs/training_trouble.md has the causes.")
    ) from error
  except files.StoreError as error:  # The message says what to do.
    raise UserError(f"{error} {_CONTINUES}.") from error
  except OSError as error:
    raise UserError(
      f"The run directory must stay writable. Received: {error}. Free disk space or fix the permissions. {_CONTINUES}."
    ) from error
