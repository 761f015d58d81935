"""No text can leave a batch on a TPU, whose shapes are constant."""

import pytest
from support.tpu.runs import report


@pytest.mark.slow
def test_stopping_early_is_refused_with_the_remedy():
  message = report("early_exit")
  assert "Received: predict_early" in message
  assert "num_hidden_layers=N" in message
