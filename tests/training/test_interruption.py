"""SIGTERM and Control-C ask a run to save; a second Control-C ends it."""

import os
import signal

import pytest

from albert_tf.training.interruption import stop_on_signal


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_a_request(number, capsys):
  before = signal.getsignal(number)
  with stop_on_signal() as stop:
    assert not stop.is_set()
    os.kill(os.getpid(), number)
    assert stop.is_set()
    with pytest.raises(KeyboardInterrupt):
      os.kill(os.getpid(), signal.SIGINT)
  assert signal.getsignal(number) is before
  assert f"{number.name}: saving and stopping" in capsys.readouterr().err
