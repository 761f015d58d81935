"""Programs of pretraining and fine-tuning after the compiler passes of a TPU's host."""

import pytest
from support.tpu.programs import describe
from support.tpu.runs import report
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2


@pytest.mark.slow
def test_the_bridge_makes_one_program_of_each_function():
  """Each variable is read and written once, the host runs no operations, and Keras compiles nothing itself."""
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


def test_what_no_core_can_run_is_found():
  program = tf.Graph()
  mark = {"_tpu_replicate": attr_value_pb2.AttrValue(s=b"cluster")}
  with program.as_default():
    text = tf.raw_ops.TPUReplicatedInput(inputs=[tf.compat.v1.placeholder(tf.string, [2])])
    rows = tf.raw_ops.TPUReplicatedInput(inputs=[tf.compat.v1.placeholder(tf.float32, [None, 3])])
    with program._attr_scope(mark):
      tf.strings.length(text)
      pairs = tf.zeros([2], tf.complex128)
      tf.raw_ops.AddV2(x=pairs, y=pairs)
      tf.nn.relu(rows)
  found = describe(program)
  assert [each.split()[0] for each in found["no_kernel"]] == ["AddV2", "Const", "StringLength"]
  assert [each.split()[1] for each in found["bad_inputs"]] == ["string", "float32"]
