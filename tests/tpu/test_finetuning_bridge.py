"""What a TPU's host makes of Keras' train and predict functions."""

import pytest
from support.tpu.runs import report


@pytest.mark.slow
def test_the_bridge_makes_one_program_of_fit_and_one_of_predict():
  """Each variable goes in and comes out once, nothing is left to the host, and Keras compiles nothing itself."""
  found = report("bridged_fit")
  if found is None:
    pytest.skip("this TensorFlow does not let Python run the bridge")
  whole = {"programs": 1, "replicas": [8], "reads": 1, "inside": 0, "outside": 0, "must_compile": 0}
  weights, step, mean_loss = found["weights"], 1, 2
  assert found["fit"] == {**whole, "writes": 1, "variables": step + mean_loss + 3 * weights}
  assert found["predict"] == found["predictor"] == {**whole, "writes": 0, "variables": weights}
  assert not found["jit_compile"]
