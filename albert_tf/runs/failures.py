"""Readable errors of training: too little memory, damaged records, lost workers and full disks.

docs/training_trouble.md explains each of them.
"""

from collections.abc import Iterator
import contextlib
import re

import tensorflow as tf

from albert_tf import files
from albert_tf.errors import UserError

_CONTINUES = "The same command continues from the last checkpoint"
# The type of the error does not tell: a batch too large and a full disk are both
# `ResourceExhaustedError`. On-chip memory (vmem, smem) is left to the compiler: no smaller batch
# helps.
_MEMORY = re.compile(
  r"[Oo]ut of memory(?! in memory space [vs]mem)|OOM when allocating|Attempting to (?:allocate|reserve) \S"
)
# Lines that say where in the graph it happened, not what.
_LOCATION = re.compile(
  r"\s*(Graph execution|Detected at|\d+ root error|File|Node:|Registered |<|\[\[|\[Op:|$)"
)
_REMOTE_TASK = re.compile(r"/job:(?!localhost\b)(\w+)/replica:\d+/task:(\d+)")
_MEMORY_ADVICE = (
  "The step must fit into the devices' memory: raise --gradient_accumulation_steps, add --remat "
  "or use more devices; if it was the evaluation, lower --eval_batch_size. "
  "For pretraining tpu_scripts/compile_for_tpu.py says what fits."
)


def telling_line(message: str) -> str:
  """The first line of a TensorFlow error that is not a location in the graph."""
  for line in message.splitlines():
    if not _LOCATION.match(line):
      return line.strip()
  return message


@contextlib.contextmanager
def readable_errors() -> Iterator[None]:
  """Turns errors of TensorFlow and of files into a `UserError` that says how to continue."""
  try:
    yield
  except tf.errors.OpError as error:
    raise UserError(_explain(error.message)) from error
  except (files.StoreError, files.MissingFileError) as error:  # The message says what to do.
    raise UserError(f"{error} {_CONTINUES}.") from error
  except BrokenPipeError:
    raise  # Nobody reads what is printed, as in `… | head`.
  except OSError as error:
    raise UserError(
      f"The run directory must stay writable. Received: {error}. Free disk space or fix the "
      f"permissions. {_CONTINUES}."
    ) from error


def _explain(message: str) -> str:
  """One line of a TensorFlow error, the host it comes from, and what to do."""
  # Memory may be named in a later line than the first, behind the op that asked for it.
  line = telling_line(message)
  advice = f"{_CONTINUES}; docs/training_trouble.md has the causes."
  for candidate in message.splitlines():
    if _MEMORY.search(candidate):
      line = candidate
      advice = _MEMORY_ADVICE
      break
  # The end of a long line has the sizes.
  line = line.strip()[-300:].rstrip(".")
  # Of many hosts, the one to look at: "worker 3: …".
  task = _REMOTE_TASK.search(message)
  if task is not None:
    line = f"{task[1]} {task[2]}: {line}"
  return f"{line}. {advice}"
