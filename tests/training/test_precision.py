"""bfloat16: the run learns, close to float32; weights, moments and averages stay float32."""

import numpy as np
import pytest
from support.tiny_records import random_examples, tiny_config, write_records
from support.tiny_step import distributed_iterator, make_step
import tensorflow as tf

from albert_tf.optim.config import OptimizerConfig
from albert_tf.pipelines.record_index import build_record_index
from albert_tf.training.distribution import precision_policy

STEPS = 60
# One batch for ever, so that there is something to learn.
MEMORIZE = OptimizerConfig(learning_rate=0.02, num_train_steps=STEPS, num_warmup_steps=6)


def losses(strategy, rows, **step_config):
  """Losses of every sixth update, and all variables and slots."""
  step, variables, optimizer = make_step(
    strategy, tiny_config(), MEMORIZE, global_batch_size=16, **step_config
  )
  dataset = tf.data.Dataset.from_tensor_slices(rows).batch(16, drop_remainder=True).cache().repeat()
  iterator = iter(strategy.experimental_distribute_dataset(dataset))
  curve = [step.run(iterator, tf.constant(6)).averages(6)["loss"] for _ in range(STEPS // 6)]
  return np.array(curve), [*variables.values(), *optimizer.slots().values()]


@pytest.mark.slow
def test_bfloat16_learns_like_float32_with_float32_state(tmp_path):
  strategy = tf.distribute.OneDeviceStrategy("cpu:0")
  index = build_record_index([write_records(tmp_path / "train-0.tfrecord", random_examples(16, seed=1))])
  rows = next(distributed_iterator(strategy, index, 16))
  float32_losses, _ = losses(strategy, rows)
  assert float32_losses[-1] < 0.8 * float32_losses[0]
  curve, state = losses(strategy, rows, dtype=precision_policy("bfloat16"))
  np.testing.assert_allclose(curve, float32_losses, rtol=0.03)
  assert np.abs(curve - float32_losses).max() > 0  # It was bfloat16.
  assert {variable.dtype for variable in state} == {tf.float32}
