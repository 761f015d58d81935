"""A training step of ALBERT on one device and random batches for it, for benchmarks of what surrounds the step."""

from collections.abc import Iterator

import tensorflow as tf

from albert_tf.configs import AlbertConfig
from albert_tf.modeling import AlbertForPreTraining, initialize_variables, named_variables
from albert_tf.optim.build import OptimizerConfig, build_optimizer
from albert_tf.training.step import StepConfig, TrainStep

PREDICTIONS = 10


def make_step(batch_size: int, config: AlbertConfig) -> tuple[TrainStep, dict[str, tf.Variable]]:
  """A training step and what a checkpoint of it holds: weights and moments by name."""
  strategy = tf.distribute.OneDeviceStrategy("cpu:0")
  optimizer_config = OptimizerConfig(num_train_steps=10_000, num_warmup_steps=100)
  with strategy.scope():
    model = AlbertForPreTraining(config)
    variables = named_variables(model)
    optimizer = build_optimizer(optimizer_config, variables)
  initialize_variables(variables, seed=0, initializer_range=config.initializer_range)
  step = TrainStep(
    strategy=strategy,
    model=model,
    optimizer=optimizer,
    optimizer_config=optimizer_config,
    config=StepConfig(global_batch_size=batch_size),
  )
  return step, {**variables, **optimizer.slots(), "global_step": optimizer.step}


def random_batches(batch_size: int, length: int, vocab_size: int) -> Iterator[dict[str, tf.Tensor]]:
  """The same random batch for ever: its content does not change the time of a step."""
  tf.random.set_seed(0)

  def integers(*shape: int, below: int) -> tf.Tensor:
    return tf.random.uniform(shape, maxval=below, dtype=tf.int32)

  batch = {
    "input_ids": integers(batch_size, length, below=vocab_size),
    "input_mask": tf.ones([batch_size, length], tf.int32),
    "segment_ids": integers(batch_size, length, below=2),
    "masked_lm_positions": integers(batch_size, PREDICTIONS, below=length),
    "masked_lm_ids": integers(batch_size, PREDICTIONS, below=vocab_size),
    "masked_lm_weights": tf.ones([batch_size, PREDICTIONS]),
    "sentence_order_labels": integers(batch_size, below=2),
  }
  return iter(tf.data.Dataset.from_tensors(batch).repeat())
