"""The update: the original's trajectory, equal for any split of a batch, with one trace."""

import dataclasses

import numpy as np
import pytest
from support.goldens import TINY_CONFIG, golden, golden_checkpoint
from support.stacks import needs_addons, needs_host_xla, slow_by_default
from support.tiny_records import SPEC, random_examples, tiny_config, write_records
from support.tiny_step import (
  EAGER_INPUT,
  OPTIMIZER,
  distributed_iterator,
  eagerly,
  make_step,
  one_device,
)
import tensorflow as tf

from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.modeling import initialize_variables
from albert_tf.optim.config import OptimizerConfig
from albert_tf.pipelines.record_index import build_record_index
from albert_tf.pretraining.settings import StepConfig
from albert_tf.runs.distribution import precision_policy

pytestmark = pytest.mark.filterwarnings(EAGER_INPUT)


@pytest.fixture(scope="module")
def index(tmp_path_factory):
  path = tmp_path_factory.mktemp("records") / "train-0.tfrecord"
  return build_record_index([write_records(path, random_examples(150, seed=1))])


def values_of(variables):
  return {name: variable.numpy() for name, variable in variables.items()}


def assert_same_weights(found, expected):
  assert found.keys() == expected.keys()
  for name, value in found.items():
    np.testing.assert_allclose(value, expected[name], rtol=2e-4, atol=2e-5, err_msg=name)


ONE_LAYER = tiny_config(num_hidden_layers=1)


@pytest.fixture(scope="module", params=["lamb", pytest.param("muon", marks=slow_by_default)])
def optimizer_config(request):
  return dataclasses.replace(OPTIMIZER, name=request.param)


@pytest.fixture(scope="module")
def reference_weights(index, optimizer_config):
  """Weights after 3 updates with batches of 32 on one device in one piece, computed without a graph."""
  step, variables, _ = make_step(one_device(), ONE_LAYER, optimizer_config, global_batch_size=32)
  with eagerly():
    step.run(distributed_iterator(one_device(), index, 32), tf.constant(3))
  return values_of(variables)


@pytest.mark.parametrize(
  ("replicas", "micro_batches"),
  [
    (1, 4),
    pytest.param(2, 2, marks=slow_by_default),
    pytest.param(2, 1, marks=pytest.mark.slow),
  ],
)
def test_the_update_is_that_of_the_whole_batch(
  mirrored_2, index, optimizer_config, reference_weights, replicas, micro_batches
):
  strategy = {1: one_device(), 2: mirrored_2}[replicas]
  sizes = {"global_batch_size": 32, "gradient_accumulation_steps": micro_batches}
  step, variables, _ = make_step(strategy, ONE_LAYER, optimizer_config, **sizes)
  iterator = distributed_iterator(strategy, index, 32)
  for updates in (1, 2):
    step.run(iterator, tf.constant(updates))
  assert_same_weights(values_of(variables), reference_weights)


@needs_addons
def test_tensorflow_addons_lamb_on_two_replicas(mirrored_2, index):
  weights = []
  for strategy, options in (
    (one_device(), {"name": "lamb", "bias_correction": True}),
    (mirrored_2, {"name": "tfa_lamb"}),
  ):
    config = dataclasses.replace(OPTIMIZER, **options)
    step, variables, _ = make_step(strategy, tiny_config(), config, global_batch_size=32)
    step.run(distributed_iterator(strategy, index, 32), tf.constant(5))
    weights.append(values_of(variables))
  assert_same_weights(*weights)


@pytest.fixture(scope="module")
def step_of_two_depths(index):
  """A step with its optimizer and its input; its function is traced once for all tests."""
  config = tiny_config(hidden_dropout_prob=0.1)
  sizes = {"global_batch_size": 16, "train_depths": (1, 2)}
  step, _, optimizer = make_step(one_device(), config, **sizes)
  return step, optimizer, distributed_iterator(one_device(), index, 16)


@slow_by_default
def test_one_trace_for_all_depths_and_metrics_add_up(step_of_two_depths):
  step, optimizer, iterator = step_of_two_depths
  for updates in (1, 3, 2):
    metrics = step.run(iterator, tf.constant(updates))
    assert float(metrics.sentence_count) == 16 * updates
    assert 0 < float(metrics.tokens) <= 16 * updates * SPEC.max_seq_length
  assert step.run.experimental_get_tracing_count() == 1
  assert int(optimizer.step) == 6
  averages = metrics.averages(2)
  losses = averages["masked_lm_loss"] + averages["sentence_order_loss"]
  assert averages["loss"] == pytest.approx(losses)
  assert averages["weight_norm"] > 0
  assert averages["update_norm"] > 0


@slow_by_default
def test_the_wait_for_a_batch_is_measured_before_the_step_begins(step_of_two_depths):
  """Else a processor with one thread counts the step as waiting: 98 % of the time in one run."""
  step, _, iterator = step_of_two_depths
  traced = step.run.get_concrete_function(iterator, tf.constant(1))
  functions = {f.signature.name: f for f in traced.graph.as_graph_def().library.function}

  def multiplies(node):
    """Whether a node, or the function that it calls, has a product of matrices: the model's."""
    if node.op in ("MatMul", "BatchMatMulV2"):
      return True
    called = functions.get(node.attr["f"].func.name)
    return called is not None and any(map(multiplies, called.node_def))

  [loop] = [
    f for f in functions.values() if any(node.op == "IteratorGetNext" for node in f.node_def)
  ]
  # Name → node, and the names it waits for: "name:output:0", or "^name" for the order alone.
  nodes = {node.name: node for node in loop.node_def}
  [gradients] = [name for name, node in nodes.items() if multiplies(node)]
  found = set()
  waiting = [gradients]
  while waiting:
    name = waiting.pop()
    if name in nodes and name not in found:
      found.add(name)
      waiting += [source.lstrip("^").partition(":")[0] for source in nodes[name].input]
  # When the batch was asked for, and when it came.
  assert sum(nodes[name].op == "Timestamp" for name in found) == 2


def updates_with_dropout(rows, steps, *, layers=1, **step_config):
  """The weights after one update from the same start, for each number of updates said to be made before it."""
  rates = {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.3}
  config = tiny_config(num_hidden_layers=layers, **rates)
  constant = OptimizerConfig(
    learning_rate=0.02, end_learning_rate=0.02, num_train_steps=9, num_warmup_steps=0
  )
  step, variables, optimizer = make_step(one_device(), config, constant, **step_config)
  iterator, weights = iter(tf.data.Dataset.from_tensors(rows).repeat()), []
  for before in steps:
    initialize_variables(variables, seed=3, initializer_range=0.2)
    for slot in optimizer.slots().values():
      slot.assign(tf.zeros_like(slot))
    optimizer.step.assign(before)
    with eagerly():
      step.run(iterator, tf.constant(1))
    weights.append(np.concatenate([value.ravel() for value in values_of(variables).values()]))
  return weights


def test_dropout_is_a_function_of_seed_step_and_micro_batch(index):
  rows = next(distributed_iterator(one_device(), index, 8))
  first, again, later = updates_with_dropout(rows, (0, 0, 1), global_batch_size=8, seed=1)
  np.testing.assert_array_equal(first, again)
  (other,) = updates_with_dropout(rows, (0,), global_batch_size=8, seed=2)
  # The same rows twice: with the same dropout in both micro-batches, the update would be the same.
  twice = {name: tf.concat([value, value], axis=0) for name, value in rows.items()}
  sizes = {"global_batch_size": 16, "gradient_accumulation_steps": 2}
  (parts,) = updates_with_dropout(twice, (0,), seed=1, **sizes)
  for different in (later, other, parts):
    assert np.abs(first - different).max() > 1e-4


@slow_by_default
@pytest.mark.stack
def test_an_update_also_reads_one_shallower_depth_by_seed_and_step(index):
  """It equals the update that has this depth and the deepest alone."""
  rows = next(distributed_iterator(one_device(), index, 8))
  # At these two, the seed draws the one and the other.
  steps, settings = (0, 1), {"global_batch_size": 8, "seed": 1, "layers": 3}
  drawn = updates_with_dropout(rows, steps, train_depths=(1, 2, 3), **settings)
  pairs = [updates_with_dropout(rows, steps, train_depths=(d, 3), **settings) for d in (1, 2)]
  gaps = np.array(
    [[np.abs(a - b).max() for a, b in zip(drawn, pair, strict=True)] for pair in pairs]
  )
  assert {tuple(of_step) for of_step in (gaps < 1e-5).T} == {(True, False), (False, True)}
  assert gaps.max(axis=0).min() > 1e-4


def test_the_gradient_of_two_depths_is_their_mean_by_depth(index):
  rows = next(distributed_iterator(one_device(), index, 8))
  weight = tf.reduce_sum(rows["masked_lm_weights"])

  def gradients(**settings):
    config = tiny_config(num_hidden_layers=3)
    step, _, _ = make_step(one_device(), config, global_batch_size=8, **settings)
    with eagerly():
      return step._accumulate(rows, weight, 0)

  both = gradients(train_depths=(1, 3))
  deepest = gradients()
  shallow = gradients(train_depths=(1,))
  for of_both, of_deepest, of_shallow in zip(
    both.of_variables, deepest.of_variables, shallow.of_variables, strict=True
  ):
    np.testing.assert_allclose(of_both, 0.75 * of_deepest + 0.25 * of_shallow, atol=1e-5)
  # The report is that of the deepest.
  np.testing.assert_allclose(both.sums, deepest.sums, rtol=1e-5)


@slow_by_default
@pytest.mark.stack
def test_the_encoder_learns_masked_lm_alone_until_the_sentence_loss_joins(index):
  """Gradients: masked LM's and a thousandth of the sentence loss's before, both in full after."""
  rows = next(distributed_iterator(one_device(), index, 8))
  weight = tf.reduce_sum(rows["masked_lm_weights"])

  def gradients(completed_steps, **settings):
    step, variables, optimizer = make_step(
      one_device(), tiny_config(), global_batch_size=8, **settings
    )
    optimizer.step.assign(completed_steps)
    with eagerly():
      result = step._accumulate(rows, weight, 0)
    names = [name for name in variables if name in optimizer.named_variables]
    return dict(zip(names, result.of_variables, strict=True)), result.sums

  both, sums = gradients(0)
  masked_lm, _ = gradients(0, sentence_task="")
  before, sums_before = gradients(2, masked_lm_only_steps=3)
  after, _ = gradients(3, masked_lm_only_steps=3)
  for name, value in both.items():
    alone = masked_lm.get(name, tf.zeros_like(value))
    np.testing.assert_allclose(before[name], alone + (value - alone) / 1024, atol=1e-6)
    np.testing.assert_allclose(after[name], value, atol=1e-6)
  # The report has the whole sentence loss all the time.
  np.testing.assert_allclose(sums_before, sums, rtol=1e-5)


@pytest.mark.slow
@needs_host_xla
def test_xla_makes_the_same_update(index, optimizer_config, reference_weights):
  options = {"encoder_options": {"layer_loop": "while"}, "use_xla": True}
  step, variables, _ = make_step(
    one_device(), ONE_LAYER, optimizer_config, global_batch_size=32, **options
  )
  step.run(distributed_iterator(one_device(), index, 32), tf.constant(3))
  assert_same_weights(values_of(variables), reference_weights)


@pytest.mark.parametrize("micro_batches", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_ten_lamb_steps_follow_the_original(micro_batches):
  """Recorded losses, rates, norms and final weights, with dense (one-hot) gradients."""
  lamb = golden("lamb")
  checkpoint = tf.train.load_checkpoint(golden_checkpoint("tiny"))
  config = AlbertConfig.from_json_file(TINY_CONFIG)
  config = dataclasses.replace(config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
  optimizer_config = OptimizerConfig(
    learning_rate=float(lamb["hyper/lr"]),
    num_train_steps=int(lamb["hyper/total"]),
    num_warmup_steps=int(lamb["hyper/warm"]),
    schedule="original",
  )
  sizes = {"global_batch_size": 4, "gradient_accumulation_steps": micro_batches}
  step, variables, _ = make_step(one_device(), config, optimizer_config, **sizes)
  for name, variable in variables.items():
    variable.assign(checkpoint.get_tensor(name))
  batch = lamb.under("in/")
  batch["sentence_order_labels"] = batch.pop("next_sentence_labels")[:, 0]
  iterator = iter(tf.data.Dataset.from_tensors(batch).repeat())
  for k in range(10):
    averages = step.run(iterator, tf.constant(1)).averages(1)
    for ours, theirs, tolerance in (
      ("masked_lm_loss", "masked_lm_loss", 1e-5),
      ("sentence_order_loss", "sentence_order_loss", 1e-5),
      ("learning_rate", "learning_rate", 1e-8),
      ("gradient_norm", "dense_norm", 2e-5),
    ):
      expected = float(lamb[f"onehot/{theirs}"][k])
      assert averages[ours] == pytest.approx(expected, abs=tolerance), f"step {k}: {ours}"
  for name, value in variables.items():
    lamb.assert_close(f"onehot/after_10/{name}", value, atol=2e-5)


def test_a_batch_that_cannot_be_divided_is_refused():
  config = StepConfig(global_batch_size=30, gradient_accumulation_steps=4)
  with pytest.raises(UserError, match=r"train_batch_size=30, 2 .* 24\."):
    config.micro_batch_size(2)
  with pytest.raises(UserError, match=r"--gradient_accumulation_steps=0, .*compile_for_tpu\.py"):
    StepConfig(gradient_accumulation_steps=0).micro_batch_size(2)


@pytest.mark.parametrize(
  ("depths", "changes", "message"),
  [
    ((1, 3), {}, "Received: 1,3 .* --num_hidden_layers=3"),
    ((1, 1, 2), {}, "Received: .*1,1,2"),
    ((1, 2), {"sharing": "attention"}, "Received: train_depths=1,2, .*sharing=attention"),
    ((0, 2), {}, "train_depths .*Received: 0"),
  ],
)
def test_depths_that_cannot_be_trained_are_refused(depths, changes, message):
  with pytest.raises(UserError, match=message):
    tiny_config(**changes).check_train_depths(StepConfig(train_depths=depths).train_depths)


# ------------------------------------------------------------------ bfloat16

STEPS = 60
# One batch for ever, so that there is something to learn.
MEMORIZE = OptimizerConfig(learning_rate=0.02, num_train_steps=STEPS, num_warmup_steps=6)


def losses(rows, **step_config):
  """Losses of every sixth update, and all variables and slots."""
  step, variables, optimizer = make_step(
    one_device(), tiny_config(), MEMORIZE, global_batch_size=16, **step_config
  )
  iterator = iter(tf.data.Dataset.from_tensors(rows).repeat())
  curve = [step.run(iterator, tf.constant(6)).averages(6)["loss"] for _ in range(STEPS // 6)]
  return np.array(curve), [*variables.values(), *optimizer.slots().values()]


@pytest.mark.slow
def test_bfloat16_learns_like_float32_with_float32_state(tmp_path):
  path = write_records(tmp_path / "train-0.tfrecord", random_examples(16, seed=1))
  rows = next(distributed_iterator(one_device(), build_record_index([path]), 16))
  float32_losses, _ = losses(rows)
  assert float32_losses[-1] < 0.8 * float32_losses[0]
  curve, state = losses(rows, dtype=precision_policy("bfloat16"))
  np.testing.assert_allclose(curve, float32_losses, rtol=0.05)  # Rounding differs by processor.
  assert np.abs(curve - float32_losses).max() > 0  # It was bfloat16.
  assert {variable.dtype for variable in state} == {tf.float32}
