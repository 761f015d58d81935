"""Errors of the surroundings say what to do; messages that real runtimes gave."""

import re

import pytest
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.training.failures import readable_errors

ERRORS = tf.errors


@pytest.mark.parametrize(
  ("error", "words"),
  [
    (
      ERRORS.ResourceExhaustedError(None, None, "x\nOOM when allocating tensor with shape[9] and type float"),
      "OOM when allocating tensor with shape[9] and type float. The step must fit into the devices' memory",
    ),
    (
      ERRORS.UnavailableError(
        None, None, "Graph execution error:\n\nfrom remote target /job:worker/replica:0/task:1/device:CPU:0"
      ),
      "worker 1: from remote target /job:worker/replica:0/task:1/device:CPU:0. The same command continues",
    ),
    (ERRORS.DataLossError(None, None, "corrupted record at 1367"), "record at 1367. The same command"),
    (OSError(28, "No space left on device"), "No space left on device. Free disk"),
  ],
)
def test_what_a_runtime_says_comes_with_advice(error, words):
  with pytest.raises(UserError, match=re.escape(words)), readable_errors():
    raise error
