"""What the surroundings do to a run, in words: too little memory, damaged records, lost workers, a full disk.

docs/training_trouble.md says more of each.
"""

from collections.abc import Iterator
import contextlib
import re

import tensorflow as tf

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.training.settings import PretrainingSettings

_CONTINUES = "The same command continues from the last checkpoint."
# What a runtime's message has → what to do. The type of its error does not tell: a batch too large and a full disk are
# both `ResourceExhaustedError`. On-chip memory (vmem, smem) is the compiler's affair: no smaller batch helps.
_MEMORY = (
  r"[Oo]ut of memory(?! in memory space [vs]mem)|OOM when allocating|Attempting to (?:allocate|reserve) \S"
)
_RECORDS = (
  r"(?:corrupted|truncated) record at|Could not parse example|is required but could not be found|values != expected"
  r"|Dataset was empty|fewer records than in the index|indices\S* = \d+ is not in \[0,|No such file"
)
_REFUSED = r"HTTP response code 40[13]\b|[Pp]ermission denied|PERMISSION_DENIED"
_GONE = (
  r"from remote target|Collective ops is aborted|Socket closed|Connection reset by peer|[Hh]eartbeat"
  r"|failed to connect to all addresses|Perhaps the worker was restarted|\bTPU\b.*(?:halted|preempted|unhealthy)"
  r"|Error executing an HTTP request|retry attempts failed"
)
_ADVICE = {
  _MEMORY: "The step must fit into the devices' memory: raise --gradient_accumulation_steps, add --remat or use more "
  "devices; if it was the evaluation, lower --eval_batch_size. tpu_scripts/compile_for_tpu.py says what fits.",
  _RECORDS: "Records must be whole, and stay where and as they are while a run reads them: "
  "tfrecords_tools/inspect_records.py --validate names one that is not.",
  _REFUSED: f"Renew the credentials or grant the role. {_CONTINUES}",
  _GONE: f"All workers, TPUs and stores of a run must answer until it ends. {_CONTINUES}",
}


@contextlib.contextmanager
def readable_errors(settings: PretrainingSettings) -> Iterator[None]:
  """Turns what the surroundings do to the body into a `UserError`; a fault of the program keeps its own words."""
  try:
    yield
  except tf.errors.OpError as error:
    for pattern, advice in _ADVICE.items():
      line = next((line for line in error.message.splitlines() if re.search(pattern, line)), None)
      if line is not None:
        task = re.search(r"/job:(?!localhost\b)(\w+)/replica:\d+/task:(\d+)", error.message)
        worker = f"{task[1]} {task[2]}: " if task else ""
        raise UserError(f"{worker}{line.strip()[-300:].rstrip('.')}. {advice}") from error
    raise
  except files.StoreError as error:  # Says itself what to do.
    raise UserError(f"{error} {_CONTINUES}") from error
  except OSError as error:
    raise UserError(
      f"The run directory must stay writable. Received: {error.filename or settings.output_dir} "
      f"({error.strerror or error}). Free disk space or fix the permissions. {_CONTINUES}"
    ) from error
