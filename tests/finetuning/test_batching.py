"""Batches: every row once, one shape, order from (seed, epoch), padding and filling that cannot be seen."""

import dataclasses

import numpy as np
import pytest
from reference.tiny_finetuning import QUICK, made_up_texts, tiny_start, tiny_task, tokenizer
import tensorflow as tf

from albert_tf.compat import keras
from albert_tf.errors import UserError
from albert_tf.finetuning import one_seed
from albert_tf.finetuning.batching import Batching, epoch_plan, training_dataset
from albert_tf.finetuning.features import FeatureSet
from albert_tf.finetuning.prediction import Predictor
from albert_tf.finetuning.text_task import text_rows


def test_every_row_is_in_one_batch_and_the_order_is_a_function_of_seed_and_epoch():
  lengths = np.random.default_rng(1).integers(3, 60, 203)
  batching = Batching(batch_size=8, max_length=64, bucket_multiple=16)
  plan = epoch_plan(lengths, batching, seed=3, epoch=1)
  assert sorted(np.concatenate(plan)) == list(range(203))
  assert sorted(map(len, plan)) == [3] + [8] * 25
  same = epoch_plan(lengths, batching, seed=3, epoch=1)
  assert all(np.array_equal(a, b) for a, b in zip(plan, same, strict=True))
  for seed, epoch in ((4, 1), (3, 2)):
    other = epoch_plan(lengths, batching, seed=seed, epoch=epoch)
    assert any(set(a) != set(b) for a, b in zip(plan, other, strict=True))
  # Batches hold similar lengths, and are not in order of length.
  padded = [batching.length(lengths[batch].max()) for batch in plan]
  unsorted = epoch_plan(lengths, dataclasses.replace(batching, bucket_multiple=0), seed=3, epoch=1)
  assert sum(padded) < 0.8 * sum(batching.length(lengths[batch].max()) for batch in unsorted)
  assert padded != sorted(padded)
  assert set(padded) <= {16, 32, 48, 64}


def test_a_batch_is_padded_filled_and_weighted():
  rows = [
    {"input_ids": np.arange(1, n + 1, dtype=np.int32), "p_mask": np.zeros(n, np.int32), "start": np.int32(n)}
    for n in (2, 3, 4)
  ]
  tags = [np.full(len(row["input_ids"]), 7, np.int32) for row in rows]
  features = FeatureSet(rows, tags, pad_values={"p_mask": 1, "labels": -1})
  x, y, weights = features.batch([2, 0], batch_size=3, length=5)
  np.testing.assert_array_equal(x["input_ids"], [[1, 2, 3, 4, 0], [1, 2, 0, 0, 0], [1, 2, 3, 4, 0]])
  np.testing.assert_array_equal(x["p_mask"][1], [0, 0, 1, 1, 1])
  np.testing.assert_array_equal(x["start"], [4, 2, 4])
  np.testing.assert_array_equal(y[1], [7, 7, -1, -1, -1])
  np.testing.assert_array_equal(weights, [1.5, 1.5, 0.0])  # Mean 1 over the batch, 0 for what fills up.
  # Weights of pieces, named labels, several choices.
  named = FeatureSet(rows, {"a": np.arange(3), "b": np.arange(3) * 2}, weights=[t * 0 + 1 for t in tags])
  _, y, weights = named.batch([0, 1], batch_size=2, length=4)
  assert y["b"].tolist() == [0, 2]
  np.testing.assert_allclose(weights["a"], np.array([[1, 1, 0, 0], [1, 1, 1, 0]]) * 8 / 5, rtol=1e-6)
  choices = FeatureSet([{"input_ids": np.ones([4, 3], np.int32)}], np.array([2]))
  assert choices.lengths.tolist() == [3]
  assert choices.batch([0], batch_size=2, length=8)[0]["input_ids"].shape == (2, 4, 8)


@pytest.mark.parametrize("bucket_multiple", [0, 8])
def test_shapes_of_the_dataset(bucket_multiple):
  rows = text_rows(made_up_texts(11), tokenizer(), max_length=40)
  features = FeatureSet(rows, np.arange(11, dtype=np.int32))
  batching = Batching(batch_size=4, max_length=40, bucket_multiple=bucket_multiple)
  dataset = training_dataset(features, batching, seed=0, num_steps=5)
  spec = dataset.element_spec
  assert spec[0]["input_ids"].shape.as_list() == [4, None if bucket_multiple else 40]
  assert spec[1].shape == spec[2].shape == [4]
  seen = list(dataset.as_numpy_iterator())
  assert len(seen) == 5
  first = np.concatenate([y[w > 0] for _, y, w in seen[:3]])
  assert sorted(first) == list(range(11))


def test_prediction_does_not_depend_on_batches_or_replicas(mirrored_2):
  features = FeatureSet(text_rows(made_up_texts(13), tokenizer(), max_length=40))
  task = tiny_task({})
  outputs = []
  for strategy, size, multiple in (
    (tf.distribute.get_strategy(), 4, 8),
    (tf.distribute.get_strategy(), 64, 0),
    (mirrored_2, 6, 8),
  ):
    keras.utils.set_random_seed(1)
    model = one_seed.build_model(task, QUICK, start=tiny_start(), strategy=strategy)
    batching = Batching(batch_size=size, max_length=40, bucket_multiple=multiple)
    outputs.append(Predictor(model, strategy=strategy, batching=batching)(features)["logits"])
  assert outputs[0].shape == (13, 2)
  for other in outputs[1:]:
    np.testing.assert_allclose(outputs[0], other, atol=2e-5)


def test_rows_that_do_not_fit_are_refused():
  batching = Batching(batch_size=4, max_length=8)
  with pytest.raises(UserError, match="needs examples"):
    batching.check(FeatureSet([]), "dev.tsv")
  with pytest.raises(UserError, match="longer than 8"):
    batching.check(FeatureSet([{"input_ids": np.ones(9, np.int32)}]), "dev.tsv")
