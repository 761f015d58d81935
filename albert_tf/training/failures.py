"""What the surroundings do to a run, in words: damaged records, lost workers, too little memory, a full disk."""

from collections.abc import Callable
import errno
import re
from typing import TypeVar

import tensorflow as tf

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.pipelines.record_index import RecordIndex, build_record_index
from albert_tf.pipelines.suspects import find_fault
from albert_tf.training.failure_causes import Cause, cause_of, informative_line, lost_task
from albert_tf.training.settings import PretrainingSettings

Result = TypeVar("Result")

_FEWER = re.compile(r"fewer records than in the index|Dataset was empty")
_CONTINUES = "the same command continues from the last checkpoint"


def explained(run: Callable[[], Result], settings: PretrainingSettings, index: RecordIndex) -> Result:
  """Runs; what the surroundings do to it is said in a sentence.

  Args:
    run: reads records, trains.
    settings: names files and directory.
    index: of the training records, made before.

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
  if files.is_remote(what) and error.errno == errno.EACCES:
    return _permission(f"{what}: {reason}", settings)
  if files.is_remote(what):
    return _storage(f"{what}: {reason}")
  return (
    f"The run directory must stay writable. Received: {what} ({reason}). Free disk space or mend the permissions; "
    f"{_CONTINUES}."
  )


def _explanation(error: tf.errors.OpError, settings: PretrainingSettings, index: RecordIndex) -> str | None:
  cause, line = cause_of(error), informative_line(error.message)
  match cause:
    case Cause.MEMORY:
      return _memory(line, settings)
    case Cause.COMPILATION:
      return (
        f"The step must compile for the devices. Received: {line}. tpu_scripts/compile_for_tpu.py compiles the "
        "same step without a TPU and says more; try it without --use_xla, --layer_loop and --remat."
      )
    case Cause.RECORDS:
      return _records(error, line, settings, index)
    case Cause.PERMISSION:
      return _permission(line, settings)
    case Cause.STORAGE:
      return _storage(line)
    case Cause.WORKER:
      who = lost_task(error.message)
      return (
        f"All workers and TPUs of a run must stay until it ends. Received: {who or 'one'} no longer answers "
        f"({line}). Start all of them again: {_CONTINUES}."
      )
    case Cause.SERVICE:
      return f"Everything a run uses must answer until it ends. Received: {line}. Then {_CONTINUES}."
  return None


def _permission(line: str, settings: PretrainingSettings) -> str:
  return (
    f"The run must be allowed to read its records and to write {settings.output_dir} until it ends. Received: "
    f"{line}. Renew the credentials or grant the role; {_CONTINUES}."
  )


def _storage(line: str) -> str:
  return f"The storage of records and run directory must answer. Received: {line}. When it does again, {_CONTINUES}."


def _memory(line: str, settings: PretrainingSettings) -> str:
  parts = settings.step.gradient_accumulation_steps
  remat = "" if settings.encoder_options.get("remat") else ", recompute activations (--remat)"
  return (
    f"The step must fit into the devices' memory. Received: {line}. Compute the batch in more parts "
    f"(--gradient_accumulation_steps={2 * parts}, now {parts}){remat}, or use more devices; if it was the "
    "evaluation, lower --eval_batch_size. tpu_scripts/compile_for_tpu.py says beforehand what fits."
  )


def _records(
  error: tf.errors.OpError, line: str, settings: PretrainingSettings, index: RecordIndex
) -> str | None:
  """What is wrong with the records; None for something else that was not found."""
  try:
    found = find_fault([*settings.input_files, *settings.eval_input_files], error.message)
    if found is not None:
      return found
    if isinstance(error, tf.errors.NotFoundError):  # The records are all there.
      return _storage(line) if "://" in line else None
    now = build_record_index(settings.input_files, on_bad_record=settings.on_bad_record, write=False)
  except OSError as unreachable:
    return _storage(str(unreachable.strerror or unreachable))
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
