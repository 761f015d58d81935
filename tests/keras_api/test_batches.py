"""Batches: every row once, similar lengths, order by (seed, epoch), and padding without influence."""

import dataclasses

import keras
import numpy as np
import pytest
from reference.batches import PADDING, numpy_batch, stack
from support.stacks import slow_by_default
from support.tiny_finetuning import made_up_texts, tiny_start, tiny_task
import tensorflow as tf

from albert_tf import AlbertClassifier
from albert_tf.keras_api.batches import (
  Batching,
  dropout_seeds,
  epoch_plan,
  make_dataset,
  training_plan,
)
from albert_tf.keras_api.examples import Examples

ONE_DEVICE = tf.distribute.get_strategy()


def test_every_row_is_in_one_batch_and_the_order_is_a_function_of_seed_and_epoch():
  lengths = np.random.default_rng(1).integers(3, 60, 203)
  batching = Batching(batch_size=8, max_length=64, bucket_multiple=16)
  plan = epoch_plan(lengths, batching, seed=3, epoch=1)
  assert sorted(np.concatenate(plan)) == list(range(203))
  assert sorted(map(len, plan)) == [3] + [8] * 25
  for seed, epoch in ((4, 1), (3, 2)):
    other = epoch_plan(lengths, batching, seed=seed, epoch=epoch)
    assert any(set(a) != set(b) for a, b in zip(plan, other, strict=True))
  # Batches hold similar lengths, and are not in order of length.
  padded = [batching.length(lengths[batch].max()) for batch in plan]
  in_caller_order = epoch_plan(lengths, batching, seed=3, epoch=1, shuffle=False)
  unsorted = [batching.length(lengths[batch].max()) for batch in in_caller_order]
  assert sum(padded) < 0.8 * sum(unsorted)
  assert padded != sorted(padded)
  assert set(padded) <= {16, 32, 48, 64}


def test_the_order_does_not_depend_on_how_rows_are_padded():
  """A TPU pads all rows to one length, and makes the updates of a CPU."""
  lengths = np.random.default_rng(1).integers(3, 130, 203)
  of_cpu = Batching(batch_size=8, max_length=129)
  of_tpu = dataclasses.replace(of_cpu, bucket_multiple=0, is_static=True)
  plans = [epoch_plan(lengths, batching, seed=3, epoch=1) for batching in (of_cpu, of_tpu)]
  for ours, theirs in zip(*plans, strict=True):
    np.testing.assert_array_equal(ours, theirs)


def made_up_rows(kind, count=13):
  """Rows, labels and weights of one family: plain rows, choices, spans, tags with weights of tokens."""
  rng = np.random.default_rng(4)
  lengths = rng.integers(3, 17, count)

  def row(n, *axes):
    ids = rng.integers(5, 70_000, (*axes, n)).astype(np.int32)
    return {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": ids % 2}

  positions = np.arange(count, dtype=np.int32)
  ones = np.ones(count, np.float32)
  if kind == "plain":
    values = rng.normal(size=count).astype(np.float32)
    return [row(n) for n in lengths], values, rng.uniform(size=count).astype(np.float32)
  if kind == "choices":
    return [row(n, 3) for n in lengths], positions % 3, ones
  if kind == "spans":
    rows = [{**row(n), "p_mask": np.zeros(n, np.int32), "start_positions": n - 1} for n in lengths]
    return rows, {"start_log_probs": positions, "cls_logits": ones}, ones
  tags = [rng.integers(0, 4, n).astype(np.int32) for n in lengths]
  weights = [rng.integers(0, 2, n).astype(np.float32) for n in lengths]
  return [row(n) for n in lengths], tags, weights


def examples_of(rows, labels, weights, **options):
  """The same as examples, made of padded blocks of five rows."""
  blocks = []
  for begin in range(0, len(rows), 5):
    block = rows[begin : begin + 5]
    blocks.append(
      {name: stack([row[name] for row in block], 20, PADDING.get(name, 0)) for name in block[0]}
    )

  def column(values):
    return values if isinstance(values, (np.ndarray, dict)) else tf.ragged.constant(values)

  inputs = Examples.of_blocks(blocks).inputs
  return Examples(inputs, column(labels), column(weights), **options)


def test_some_choices_have_the_shape_of_all():
  rows, labels, weights = made_up_rows("choices")
  examples = examples_of(rows, labels, weights)
  few = examples.take(np.array([12, 3]))
  assert few.inputs["input_ids"].shape[1] == examples.inputs["input_ids"].shape[1] == 3
  np.testing.assert_array_equal(few.inputs["input_ids"][1].to_tensor(), rows[3]["input_ids"])
  assert few.lengths.tolist() == [len(rows[i]["input_ids"][0]) for i in (12, 3)]


def test_columns_that_change_places_are_other_examples():
  ids = np.array([[5, 6], [7, 8]])
  examples = [Examples({first: ids, second: 1 - ids}) for first, second in ("ab", "ba", "ac")]
  assert len({each.fingerprint() for each in examples}) == 3


def parts_of(strategy, examples, batching, first_step=0):
  """The parts of seven updates, as NumPy arrays; without seeds."""
  plan = training_plan(examples.lengths, batching, seed=5, num_steps=7, first_step=first_step)
  seeds = dropout_seeds(5, num_steps=7, first_step=first_step)
  dataset = make_dataset(strategy, examples, plan, batching, seeds=seeds)
  found = []
  for batch in dataset:
    for replica in range(batching.num_replicas):

      def of_replica(values, replica=replica):
        return strategy.experimental_local_results(values)[replica].numpy()

      found.append(tf.nest.map_structure(of_replica, batch))
    if len(found) == len(plan) * batching.num_replicas:
      return found
  raise AssertionError("The data set of a training is endless.")


def assert_equal(batch, other):
  tf.nest.map_structure(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), batch, other)


@pytest.mark.parametrize("kind", ["plain", "choices", "spans", "tags"])
@pytest.mark.parametrize("multiple", [0, 8])
def test_batches_are_those_of_the_twin(kind, multiple):
  """Rows, order, padding and weights are equal, from any update; a seed belongs to its update."""
  rows, labels, weights = made_up_rows(kind)
  examples = examples_of(rows, labels, weights, divides_by_weights=True)
  batching = Batching(batch_size=4, max_length=20, bucket_multiple=multiple)
  seen = parts_of(ONE_DEVICE, examples, batching)
  seeds = [x.pop("dropout_seed") for x, *_ in seen]
  assert len({seed[0].tobytes() for seed in seeds}) == 7
  step = 0
  for epoch in (0, 1):
    for batch in epoch_plan(examples.lengths, batching, seed=5, epoch=epoch)[: 7 - step]:
      length = batching.length(examples.lengths[batch].max())
      twin = numpy_batch(rows, labels, weights, batch, length=length, divides_by_weights=True)
      assert_equal(seen[step], twin)
      step += 1
  continued = parts_of(ONE_DEVICE, examples, batching, first_step=5)
  np.testing.assert_array_equal(continued[0][0].pop("dropout_seed"), seeds[5])
  np.testing.assert_array_equal(continued[1][0].pop("dropout_seed"), seeds[6])
  assert_equal(continued, seen[5:])


@pytest.mark.parametrize("divides_by_weights", [False, True])
def test_the_mean_loss_of_the_replicas_is_that_of_the_batch(mirrored_2, divides_by_weights):
  """A last batch of one row too, where a replica has a row that does not count."""
  rows, labels, weights = made_up_rows("plain")
  examples = examples_of(rows, labels, weights, divides_by_weights=divides_by_weights)
  batching = Batching(batch_size=4, max_length=20, num_replicas=2)
  parts = parts_of(mirrored_2, examples, batching)
  plan = training_plan(examples.lengths, batching, seed=5, num_steps=7)
  for batch, first, second in zip(plan, parts[::2], parts[1::2], strict=True):
    # As Keras: the mean of a part's rows, and of the two replicas.
    loss = np.mean([np.mean(y * w) for _, y, w in (first, second)])
    total = weights[batch].sum() if divides_by_weights else len(batch)
    assert loss == pytest.approx((labels[batch] * weights[batch]).sum() / total, rel=1e-5)


def test_static_batches_are_filled_up_with_rows_that_do_not_count():
  rows, labels, weights = made_up_rows("plain", count=5)
  examples = examples_of(rows, labels, weights)
  batching = Batching(batch_size=4, max_length=20, bucket_multiple=0, is_static=True)
  plan = [np.array([2]), np.array([0, 1, 3, 4])]
  dataset = make_dataset(ONE_DEVICE, examples, plan, batching)
  assert dataset.element_spec[0]["input_ids"].shape == [4, 20]
  for batch, of_plan in zip(dataset, plan, strict=True):
    twin = numpy_batch(rows, labels, weights, of_plan, length=20, count=4)
    assert_equal(tf.nest.map_structure(np.asarray, batch), twin)


def test_the_graph_does_not_grow_with_the_data():
  """Rows are inputs of the pipeline and not constants, and its operations run on a TPU's host."""
  sizes = []
  batching = Batching(batch_size=4, max_length=40, bucket_multiple=8)
  for count in (11, 500):
    examples = tiny_task({"train": made_up_texts(count)}).features("train")
    plan = training_plan(examples.lengths, batching, seed=0, num_steps=5)
    dataset = make_dataset(ONE_DEVICE, examples, plan, batching)
    assert dataset.options().autotune.enabled is False
    # The last function of the pipeline makes the batches.
    while not dataset._functions():
      dataset = dataset._input_dataset
    graph = dataset._functions()[0].function.graph
    sizes.append(graph.as_graph_def().ByteSize())
    operations = {op.type for op in graph.get_operations()}
    assert not operations & {"PyFunc", "EagerPyFunc", "GeneratorDataset"}
  assert abs(sizes[0] - sizes[1]) < 1000  # Of made-up names.


@slow_by_default
def test_prediction_does_not_depend_on_batches_or_replicas(mirrored_2):
  task = tiny_task({"eval": made_up_texts(13)})
  outputs = []
  for strategy, size in ((ONE_DEVICE, 64), (mirrored_2, 6)):
    keras.utils.set_random_seed(1)
    with strategy.scope():
      model = AlbertClassifier(tiny_start().config, task=task.spec)
    outputs.append(model.predict(task.features("eval"), batch_size=size, verbose=0))
  assert outputs[0].shape == (13, 2)
  np.testing.assert_allclose(*outputs, atol=2e-5)
