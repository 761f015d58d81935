"""What the surroundings do to a run, in words: damaged records, lost workers, a full disk."""

from collections.abc import Callable
from typing import TypeVar

import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.pipelines.record_index import RecordIndex, build_record_index, diagnose
from albert_tf.training.settings import PretrainingSettings

Result = TypeVar("Result")


def explained(run: Callable[[], Result], settings: PretrainingSettings, index: RecordIndex) -> Result:
  """Runs; what the surroundings do to it is said in a sentence.

  Args:
    run: reads records, trains.
    settings: names files and directory.
    index: of the training records, made before.

  Raises:
    UserError: damaged, vanished or changed records, a lost worker or TPU, a directory that cannot be written.
  """
  try:
    return run()
  except (tf.errors.DataLossError, tf.errors.InvalidArgumentError, tf.errors.NotFoundError) as error:
    found = diagnose([*settings.input_files, *settings.eval_input_files])
    if found is not None:
      raise UserError(found) from error
    now = build_record_index(settings.input_files, on_bad_record=settings.on_bad_record)
    if now.fingerprint != index.fingerprint:
      raise UserError(
        "Record files must stay as they are while a run reads them. Received: other files than at the start under "
        f"{settings.input_files[0]} and its neighbours. Put them back and run again."
      ) from error
    raise
  except (tf.errors.UnavailableError, tf.errors.AbortedError) as error:
    raise UserError(
      "All workers and TPUs of a run must stay until it ends. Received: one that no longer answers "
      f"({_cause(error.message)}). Start all of them again with the same command: the run "
      "continues from its last checkpoint."
    ) from error
  except OSError as error:
    raise UserError(
      f"The run directory must stay writable. Received: {settings.output_dir} ({error.strerror or error}). Free disk "
      "space or mend the permissions; the same command continues from the last checkpoint."
    ) from error


def _cause(message: str) -> str:
  """The line of TensorFlow's message that says what happened, not where in the graph."""
  lines = [line.strip() for line in message.splitlines() if line.strip()]
  return next((line for line in lines if "aborted" in line), lines[0] if lines else "no reason given")[:200]
