"""The training loop's optimizer: the same update everywhere, its state, its norms."""

import numpy as np
import pytest
from support.stacks import needs_addons, needs_host_xla
import tensorflow as tf

from albert_tf.optim.config import OptimizerConfig
from albert_tf.optim.lamb import clip_by_global_norm, rate_after_steps
from albert_tf.optim.optimizer import build_optimizer

CONFIG = OptimizerConfig(num_train_steps=10, num_warmup_steps=2, learning_rate=0.1)


def initial_values():
  rng = np.random.default_rng(0)
  return {
    "a/kernel": rng.standard_normal((3, 5)).astype("f"),
    "a/bias": rng.standard_normal(5).astype("f"),
  }


def train(strategy, examples, *, steps=3, micro_batches=1, config=CONFIG):
  """A linear model on `examples` [B, 3], the batch split evenly over replicas and micro-batches."""
  with strategy.scope():
    variables = {name: tf.Variable(value) for name, value in initial_values().items()}
    optimizer = build_optimizer(config, variables)
  B, replicas = len(examples), strategy.num_replicas_in_sync
  part = B // (replicas * micro_batches)

  def replica_step():
    context = tf.distribute.get_replica_context()
    offset = context.replica_id_in_sync_group * micro_batches * part
    total = None
    for i in range(micro_batches):
      x = tf.slice(examples, [offset + i * part, 0], [part, 3])
      with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(x @ variables["a/kernel"] + variables["a/bias"])) / B
      gradients = tape.gradient(loss, variables)
      if total is not None:
        gradients = {name: total[name] + gradients[name] for name in total}
      total = gradients
    total = context.all_reduce(tf.distribute.ReduceOp.SUM, total)
    clipped, norm = clip_by_global_norm(total, config.clip_norm)
    norms = optimizer.apply(clipped, rate_after_steps(optimizer.step, config))
    return norm, norms

  @tf.function
  def many_steps(count):
    for _ in tf.range(count - 1):
      strategy.run(replica_step)
    return strategy.run(replica_step)

  _, norms = many_steps(tf.constant(steps))
  assert many_steps.experimental_get_tracing_count() == 1
  values = {}
  for name, variable in {**variables, **optimizer.slots()}.items():
    values[name], *others = map(np.asarray, strategy.experimental_local_results(variable))
    for other in others:
      np.testing.assert_array_equal(values[name], other, err_msg=name)
  assert int(optimizer.step.numpy()) == steps
  return values, [float(strategy.experimental_local_results(norm)[0]) for norm in norms]


def assert_close(a, b, **tolerances):
  assert a[0].keys() == b[0].keys()
  for name in a[0]:
    np.testing.assert_allclose(a[0][name], b[0][name], err_msg=name, **tolerances)
  np.testing.assert_allclose(a[1], b[1], rtol=1e-5)


def test_same_update_for_every_split_of_the_batch(mirrored_2):
  """1×32 = 2×8×2 within float error."""
  examples = tf.constant(np.random.default_rng(1).standard_normal((32, 3)), tf.float32)
  alone = train(tf.distribute.get_strategy(), examples)
  assert_close(alone, train(mirrored_2, examples, micro_batches=2), rtol=1e-5, atol=1e-6)


@needs_addons
def test_tensorflow_addons_lamb_on_two_replicas(mirrored_2):
  examples = tf.constant(np.random.default_rng(2).standard_normal((8, 3)), tf.float32)
  settings = {"num_train_steps": 10, "learning_rate": 0.1, "num_warmup_steps": 0}
  addons = OptimizerConfig(name="tfa_lamb", **settings)
  ours = OptimizerConfig(name="lamb", bias_correction=True, **settings)
  want = train(tf.distribute.get_strategy(), examples, config=ours)
  assert_close(want, train(mirrored_2, examples, config=addons), rtol=1e-5, atol=1e-6)


@needs_host_xla
@pytest.mark.parametrize("name", ["lamb", "adamw"])
def test_compiles_with_xla_to_the_same_update(name):
  """TPUs compile the whole step, so the update must not need the host."""
  results = []
  for compiled in (False, True):
    variables = {key: tf.Variable(value) for key, value in initial_values().items()}
    config = OptimizerConfig(name=name, bias_correction=True, num_warmup_steps=2)
    optimizer = build_optimizer(config, variables)

    @tf.function(jit_compile=compiled)
    def step(variables=variables, optimizer=optimizer, config=config):
      clipped, _ = clip_by_global_norm({key: tf.sin(v) for key, v in variables.items()}, 1.0)
      return optimizer.apply(clipped, rate_after_steps(optimizer.step, config))

    for _ in range(3):
      step()
    results.append({**variables, **optimizer.slots()})
  for key in results[0]:
    np.testing.assert_allclose(results[0][key], results[1][key], rtol=1e-5, atol=1e-7, err_msg=key)


def test_norms_are_those_of_the_weights_and_of_what_was_applied():
  variables = {name: tf.Variable(value) for name, value in initial_values().items()}
  optimizer = build_optimizer(OptimizerConfig(), variables)
  before = np.concatenate([value.ravel() for value in initial_values().values()])
  norms = optimizer.apply({name: tf.ones_like(value) for name, value in variables.items()}, 0.5)
  after = np.concatenate([variable.numpy().ravel() for variable in variables.values()])
  np.testing.assert_allclose(norms.weight_norm, np.linalg.norm(before), rtol=1e-6)
  np.testing.assert_allclose(norms.update_norm, np.linalg.norm(before - after), rtol=1e-5)
