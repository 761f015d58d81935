"""What kind of trouble an error of TensorFlow's runtime is, by its type and by what its message says.

The type alone does not tell: a bucket that does not answer and a worker that died are both
`UnavailableError`; a batch too large and a full disk are both `ResourceExhaustedError`.
"""

import enum
import re

import tensorflow as tf


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
