"""Batches: every row once, one shape, order by (seed, epoch), and padding without influence."""

import dataclasses

import keras
import numpy as np
import pytest
from reference.batches import numpy_batch
from support.tiny_finetuning import QUICK, made_up_texts, tiny_run_of, tiny_task
import tensorflow as tf

from albert_tf.finetuning.engine.batches import (
  Batching,
  FlatFeatures,
  epoch_plan,
  planned_dataset,
  training_plan,
)
from albert_tf.finetuning.engine.fit import Predictor
from albert_tf.finetuning.tasks.base import FeatureSet
from albert_tf.pipelines.batches import HostShard

ONE_HOST = HostShard()


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
  unsorted = epoch_plan(lengths, dataclasses.replace(batching, bucket_multiple=0), seed=3, epoch=1)
  assert sum(padded) < 0.8 * sum(batching.length(lengths[batch].max()) for batch in unsorted)
  assert padded != sorted(padded)
  assert set(padded) <= {16, 32, 48, 64}


def made_up_splits(count=13):
  """One split for each family: plain rows, choices, spans with named labels, tags with weights of tokens."""
  rng = np.random.default_rng(4)
  lengths = rng.integers(3, 17, count)

  def row(n):
    ids = rng.integers(5, 70_000, n).astype(np.int32)
    return {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": ids % 2}

  rows = [row(n) for n in lengths]
  choices = [{"input_ids": rng.integers(0, 99, (3, n)).astype(np.int32)} for n in lengths]
  spans = [
    {**row(n), "p_mask": np.zeros(n, np.int32), "start_positions": np.int32(n - 1)} for n in lengths
  ]
  values = rng.normal(size=count).astype(np.float32)
  positions = np.arange(count, dtype=np.int32)
  span_labels = {"start_log_probs": positions, "cls_logits": (positions % 2).astype(np.float32)}
  tags = [rng.integers(0, 4, n).astype(np.int32) for n in lengths]
  tag_weights = [rng.integers(0, 2, n).astype(np.float32) for n in lengths]
  return {
    "plain": FeatureSet(rows, values, weights=rng.uniform(size=count)),
    "choices": FeatureSet(choices, positions % 3),
    "spans": FeatureSet(spans, span_labels, pad_values={"p_mask": 1}),
    "tags": FeatureSet(rows, tags, weights=tag_weights),
  }


def host_batches(features, batching, shard=ONE_HOST, **steps):
  """The per-replica batches of one host's dataset, as NumPy arrays."""
  flat = FlatFeatures.of(features)
  plan = training_plan(flat, batching, seed=5, **steps)
  count = len(plan.lengths) * shard.replicas_per_host
  return list(planned_dataset(flat, plan, batching, shard=shard).take(count).as_numpy_iterator())


def joined(parts):
  return tf.nest.map_structure(lambda *arrays: np.concatenate(arrays), *parts)


def assert_equal(batch, other):
  tf.nest.map_structure(np.testing.assert_array_equal, batch, other)
  tf.nest.map_structure(lambda a, b: np.testing.assert_equal(a.dtype, b.dtype), batch, other)


@pytest.mark.parametrize("kind", ["plain", "choices", "spans", "tags"])
@pytest.mark.parametrize("multiple", [0, 8])
def test_batches_are_those_of_the_twin(kind, multiple):
  """Rows, order, padding, weights and seeds are equal, from any step, for any number of hosts and replicas."""
  features = made_up_splits()[kind]
  batching = Batching(batch_size=4, max_length=20, bucket_multiple=multiple)
  seen = host_batches(features, batching, num_steps=7)
  step = 0
  for epoch in (0, 1):
    for rows in epoch_plan(features.lengths, batching, seed=5, epoch=epoch)[: 7 - step]:
      length = batching.length(features.lengths[rows].max())
      x, y, weights = numpy_batch(features, rows, batch_size=4, length=length)
      stream = np.random.default_rng([1, 5, step])
      seeds = stream.integers(0, np.iinfo(np.int32).max, (4, 2), np.int32)
      assert_equal(seen[step], ({**x, "dropout_seed": seeds}, y, weights))
      step += 1
  assert len(seen) == step == 7
  assert_equal(host_batches(features, batching, num_steps=7, first_step=5), seen[5:])
  shards = [HostShard(num_replicas=4, num_hosts=2, host=host) for host in (0, 1)]
  hosts = [host_batches(features, batching, shard, num_steps=7) for shard in shards]
  assert {len(x["input_ids"]) for x, _, _ in hosts[0]} == {1}
  for step, whole in enumerate(seen):
    assert_equal(joined([part for host in hosts for part in host[2 * step : 2 * step + 2]]), whole)


@pytest.mark.parametrize("multiple", [0, 8])
def test_the_graph_does_not_grow_with_the_data(multiple):
  """Rows are inputs of the pipeline and not constants; shapes are static if possible."""
  sizes, batching = [], Batching(batch_size=4, max_length=40, bucket_multiple=multiple)
  for count in (11, 500):
    rows = tiny_task({}).rows(made_up_texts(count))
    flat = FlatFeatures.of(FeatureSet(rows, np.arange(count, dtype=np.int32)))
    plan = training_plan(flat, batching, seed=0, num_steps=5)
    dataset = planned_dataset(flat, plan, batching, shard=ONE_HOST)
    spec = dataset.element_spec
    assert spec[0]["input_ids"].shape.as_list() == [4, None if multiple else 40]
    assert spec[1].shape == spec[2].shape == [4]
    assert dataset.options().autotune.enabled is False
    while not hasattr(dataset, "_map_func"):
      dataset = dataset._input_dataset
    function = dataset._map_func.function
    sizes.append(function.graph.as_graph_def().ByteSize())
    operations = {op.type for op in function.graph.get_operations()}
    assert not operations & {"PyFunc", "EagerPyFunc", "GeneratorDataset"}
  assert abs(sizes[0] - sizes[1]) < 1000  # Of made-up names.


def test_prediction_does_not_depend_on_batches_or_replicas(mirrored_2):
  task = tiny_task({"eval": made_up_texts(13)})
  outputs = []
  for strategy, size, multiple in ((tf.distribute.get_strategy(), 64, 0), (mirrored_2, 6, 8)):
    keras.utils.set_random_seed(1)
    settings = dataclasses.replace(QUICK, eval_batch_size=size, bucket_multiple=multiple)
    run = tiny_run_of(task, settings, strategy, {"eval": task.features("eval")})
    outputs.append(Predictor(run, run.build_model())("eval")["logits"])
  assert outputs[0].shape == (13, 2)
  np.testing.assert_allclose(*outputs, atol=2e-5)
