"""What the surroundings do to a run, in words: damaged records, lost workers, too little memory, a full disk.

The type of a runtime's error alone does not tell what to do: a bucket that does not answer and a worker that died
are both `UnavailableError`, a batch too large and a full disk both `ResourceExhaustedError`. So its message is read.
"""

from collections.abc import Callable
import enum
import errno
import re
from typing import TypeVar

import tensorflow as tf

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.pipelines.checks import find_fault
from albert_tf.pipelines.record_index import RecordIndex, build_record_index
from albert_tf.training.settings import PretrainingSettings

Result = TypeVar("Result")

_FEWER = re.compile(r"fewer records than in the index|Dataset was empty")
_CONTINUES = "the same command continues from the last checkpoint"


class Cause(enum.Enum):
  """Kinds of trouble that a person mends in different ways."""

  MEMORY = "the program does not fit into the devices' memory"
  COMPILATION = "the compiler refuses the program"
  PERMISSION = "a file system refuses access"
  STORAGE = "a file system does not answer"
  RECORDS = "the records are damaged, gone or changed"
  WORKER = "a worker or TPU has gone"
  SERVICE = "something unnamed does not answer"
  OTHER = "a fault of the program"


# Messages that real runtimes gave; tests/training/test_failures.py has them whole.
_MEMORY = re.compile(
  # On-chip memory (vmem, smem) is the compiler's affair: no smaller batch helps.
  r"[Oo]ut of memory(?! in memory space [vs]mem)|OOM when allocating|Attempting to (?:allocate|reserve) \S"
)
_COMPILATION = re.compile(r"Compilation failure|compile permanent error|XLA compilation")
_REMOTE_FILE = re.compile(r"\b(?:gs|s3|hdfs)://|Error executing an HTTP request|retry attempts failed")
_REFUSED = re.compile(r"HTTP response code 40[13]\b|[Pp]ermission denied|PERMISSION_DENIED")
_RECORDS = re.compile(
  r"(?:corrupted|truncated) record at|Could not parse example|is required but could not be found"
  r"|values != expected|fewer records than in the index|compact records of other lengths|Dataset was empty"
  r"|indices\S* = \d+ is not in \[0,|label value of \d+ which is outside the valid range"
)
_WORKER = re.compile(
  r"from remote target|Collective ops is aborted|failed to connect to all addresses|Socket closed"
  r"|Connection reset by peer|[Hh]eartbeat|Perhaps the worker was restarted"
  r"|\bTPU\b.*(?:halted|preempted|unhealthy|reset|terminated)"
)
_TASK = re.compile(r"/job:(?!localhost\b)(\w+)/replica:\d+/task:(\d+)")
_GOING = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
# Where in the graph it happened, not what happened.
_PLACE = re.compile(
  r"Graph execution error|Detected at node|<stack traces|File \"|\[\[|\d+ root error|\d+ (?:successful|derived)"
  r"|Hint:|:UNKNOWN:|Additional GRPC error"
)
_FRAME = re.compile(r"\{\{function_node [^}]*\}\}\s*|^\(\d+\)\s*|\s*\[Op:\w+\].*$")
_LONGEST = 300


def cause_of(error: tf.errors.OpError) -> Cause:
  """What `error` means for the person in front of it."""
  message = error.message
  if _MEMORY.search(message):
    return Cause.MEMORY
  if _COMPILATION.search(message):
    return Cause.COMPILATION
  if isinstance(error, (tf.errors.PermissionDeniedError, tf.errors.UnauthenticatedError)):
    return Cause.PERMISSION
  if isinstance(error, (tf.errors.DataLossError, tf.errors.NotFoundError)) or _RECORDS.search(message):
    return Cause.RECORDS
  if _REMOTE_FILE.search(message):
    return Cause.PERMISSION if _REFUSED.search(message) else Cause.STORAGE
  if _WORKER.search(message):
    return Cause.WORKER
  return Cause.SERVICE if isinstance(error, _GOING) else Cause.OTHER


def lost_task(message: str) -> str | None:
  """The worker that a message blames, such as "worker 1"; None where it names none."""
  match = _TASK.search(message)
  return f"{match[1]} {match[2]}" if match else None


def informative_line(message: str) -> str:
  """The line of a runtime's message that says what happened, not where in the graph; at most 300 characters."""
  lines = [_FRAME.sub("", line.strip()).strip() for line in message.splitlines()]
  told = [line for line in lines if line and not _PLACE.match(line)]
  marks = (_MEMORY, _COMPILATION, _RECORDS, _REMOTE_FILE, _WORKER)
  chosen = next((line for mark in marks for line in told if mark.search(line)), told[0] if told else "")
  # A reader's failure names every transformation above it first.
  chosen = re.sub(r"^.*Error in user-defined function .*?iterator: [\w:]+: (?!Error in)", "", chosen)
  return chosen[:_LONGEST].rstrip(".") or "no reason given"


def explained(run: Callable[[], Result], settings: PretrainingSettings, index: RecordIndex) -> Result:
  """Runs what reads records and trains; what the surroundings do to it is said in a sentence.

  Raises:
    UserError: damaged, vanished or changed records, a step too large for the devices, a lost worker or
      TPU, storage that does not answer, a directory that cannot be written.
  """
  try:
    return run()
  except tf.errors.OpError as error:
    explanation = _explanation(error, settings, index)
    if explanation is None:  # A fault of the program: its traceback is what helps.
      raise
    raise UserError(explanation) from error
  except files.StoreError as error:  # Says itself what to do.
    raise UserError(f"{error} Then {_CONTINUES}.") from error
  except OSError as error:
    raise UserError(_writing(error, settings)) from error


def _writing(error: OSError, settings: PretrainingSettings) -> str:
  what, reason = str(error.filename or settings.output_dir), str(error.strerror or error)
  if files.is_remote(what):
    cause = Cause.PERMISSION if error.errno == errno.EACCES else Cause.STORAGE
    return _sentence(cause, f"{what}: {reason}", settings)
  return (
    f"The run directory must stay writable. Received: {what} ({reason}). Free disk space or mend the permissions; "
    f"{_CONTINUES}."
  )


def _explanation(error: tf.errors.OpError, settings: PretrainingSettings, index: RecordIndex) -> str | None:
  cause, line = cause_of(error), informative_line(error.message)
  if cause is Cause.OTHER:
    return None
  if cause is Cause.RECORDS:
    return _records(error, line, settings, index)
  if cause is Cause.WORKER:
    line = f"{lost_task(error.message) or 'one'} no longer answers ({line})"
  return _sentence(cause, line, settings)


def _sentence(cause: Cause, line: str, settings: PretrainingSettings) -> str:
  """What must hold, what was received, what to do."""
  parts = settings.step.gradient_accumulation_steps
  remat = "" if settings.remat else ", recompute activations (--remat)"
  rule, advice = {
    Cause.MEMORY: (
      "The step must fit into the devices' memory",
      (
        f"Compute the batch in more parts (--gradient_accumulation_steps={2 * parts}, now {parts}){remat}, or use more "
        "devices; if it was the evaluation, lower --eval_batch_size. tpu_scripts/compile_for_tpu.py says beforehand "
        "what fits"
      ),
    ),
    Cause.COMPILATION: (
      "The step must compile for the devices",
      (
        "tpu_scripts/compile_for_tpu.py compiles the same step without a TPU and says more; try it without --use_xla, "
        "--layer_loop and --remat"
      ),
    ),
    Cause.PERMISSION: (
      f"The run must be allowed to read its records and to write {settings.output_dir} until it ends",
      f"Renew the credentials or grant the role; {_CONTINUES}",
    ),
    Cause.STORAGE: (
      "The storage of records and run directory must answer",
      f"When it does again, {_CONTINUES}",
    ),
    Cause.WORKER: (
      "All workers and TPUs of a run must stay until it ends",
      f"Start all of them again: {_CONTINUES}",
    ),
    Cause.SERVICE: ("Everything a run uses must answer until it ends", f"Then {_CONTINUES}"),
  }[cause]
  return f"{rule}. Received: {line}. {advice}."


def _records(
  error: tf.errors.OpError, line: str, settings: PretrainingSettings, index: RecordIndex
) -> str | None:
  """What is wrong with the records; None for something else that was not found."""
  try:
    found = find_fault([*settings.input_files, *settings.eval_input_files], error.message)
    if found is not None:
      return found
    if isinstance(error, tf.errors.NotFoundError):  # The records are all there.
      return _sentence(Cause.STORAGE, line, settings) if "://" in line else None
    now = build_record_index(settings.input_files, on_bad_record=settings.on_bad_record, write=False)
  except OSError as unreachable:
    return _sentence(Cause.STORAGE, str(unreachable.strerror or unreachable), settings)
  changed = (now.fingerprint, now.content) != (index.fingerprint, index.content)
  if changed or _FEWER.search(error.message):
    first = (settings.input_files if changed else settings.eval_input_files or settings.input_files)[0]
    return (
      "Record files must stay as they are while a run reads them. Received: other files than at the start under "
      f"{first} and its neighbours. Put them back and run again."
    )
  return (
    "Every record must have the lengths and the vocabulary that the first ones have. Received: one that cannot be "
    f"used ({line}). tfrecords_tools/inspect_records.py --validate names it."
  )
