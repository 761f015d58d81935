"""Errors of the surroundings say what to do; messages that real runtimes gave."""

import re

import pytest
from support.tiny_pretraining import tiny_settings
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.training.failures import readable_errors

ERRORS = tf.errors
CASES = [
  (
    ERRORS.ResourceExhaustedError,
    "x\nOOM when allocating tensor with shape[9] and type float",
    "accumulation",
  ),
  (ERRORS.ResourceExhaustedError, "Attempting to reserve 15.4G at the bottom of memory.", "accumulation"),
  (ERRORS.UnavailableError, "from remote target /job:worker/replica:0/task:1/device:CPU:0", "must answer"),
  (ERRORS.AbortedError, "Collective ops is aborted by: Socket closed", "must answer"),
  (ERRORS.AbortedError, "Error executing an HTTP request: libcurl code 6", "must answer"),
  (ERRORS.FailedPreconditionError, "Error executing an HTTP request: HTTP response code 403", "credentials"),
  (ERRORS.DataLossError, "corrupted record at 1367", "inspect_records.py --validate"),
  (ERRORS.InvalidArgumentError, "Could not parse example input, value: '...'", "inspect_records.py"),
]


@pytest.mark.parametrize(("kind", "message", "advice"), CASES)
def test_what_a_runtime_says_comes_with_advice(tmp_path, kind, message, advice):
  settings = tiny_settings(tmp_path, "run")
  with pytest.raises(UserError, match=advice) as caught, readable_errors(settings):
    raise kind(None, None, message)
  assert message.splitlines()[-1].rstrip(".") in str(caught.value)


def test_faults_of_the_program_and_of_the_disk(tmp_path):
  settings = tiny_settings(tmp_path, "run")
  with pytest.raises(ERRORS.InvalidArgumentError), readable_errors(settings):
    raise ERRORS.InvalidArgumentError(None, None, "Shapes must be equal rank")
  with (
    pytest.raises(UserError, match=re.escape("(No space left on device). Free disk")),
    readable_errors(settings),
  ):
    raise OSError(28, "No space left on device")
