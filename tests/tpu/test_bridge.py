"""Programs of pretraining and fine-tuning after the compiler passes of a TPU's host."""

import pytest
from support.tpu.runs import report


@pytest.mark.slow
def test_the_bridge_makes_one_program_of_each_function():
  """Each variable is read and written once, the host runs no operations, and Keras compiles nothing itself.

  Answers that stop early, which a program of constant shapes cannot give, are refused.
  """
  found = report("bridge")
  if found is None:
    pytest.skip("this TensorFlow does not let Python run the bridge")
  whole = {"programs": 1, "replicas": [8], "reads": 1, "inside": 0, "outside": 0, "must_compile": 0}
  weights, step, moments = 32, 1, 2
  assert found["step"] == {**whole, "writes": 1, "variables": step + weights * (1 + moments)}
  assert found["evaluation"] == {**whole, "writes": 0, "variables": weights}
  weights, mean_loss = found["weights"], 2
  assert found["fit"] == {
    **whole,
    "writes": 1,
    "variables": step + mean_loss + weights * (1 + moments),
  }
  assert found["predict"] == found["predictor"] == {**whole, "writes": 0, "variables": weights}
  assert not found["jit_compile"]
  for words in ("Received: predict_early", "num_hidden_layers=N"):
    assert words in found["early"]
