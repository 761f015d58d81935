"""No iterator has the thread that tunes it: who drops one would wait for that thread, up to a minute."""

from unittest import mock

import pytest
import tensorflow as tf

from albert_tf.pipelines.batches import evaluation_batches, training_batches
from albert_tf.pipelines.record_index import build_record_index
from albert_tf.pipelines.untuned import untuned
from albert_tf.records import TFRecordWriter


@pytest.fixture(scope="module")
def index(tmp_path_factory):
  path = tmp_path_factory.mktemp("untuned") / "train-0.tfrecord"
  with open(path, "wb") as stream:
    writer = TFRecordWriter(stream)
    for number in range(40):
      writer.write(f"{number}".encode())
  return build_record_index([str(path)])


def parse(serialized):
  return {"number": tf.strings.to_number(serialized, tf.int32)}


def is_tuned(dataset):
  return dataset.options().autotune.enabled is not False


def test_batches_for_pretraining_are_not_tuned(index):
  assert not is_tuned(training_batches(index, parse, seed=0, global_batch_size=4, start_position=0))
  assert not is_tuned(evaluation_batches(index, parse, global_batch_size=4))


def test_neither_is_what_hands_them_to_each_replica(index, mirrored_2):
  batches = mirrored_2.distribute_datasets_from_function(
    lambda _: evaluation_batches(index, parse, global_batch_size=4)
  )
  tuned = []
  begin = tf.data.Dataset.__iter__

  def noted(dataset):
    tuned.append(is_tuned(dataset))
    return begin(dataset)

  with mock.patch.object(tf.data.Dataset, "__iter__", noted):
    iterator = iter(batches)
  assert tuned == [False, False]
  parts = mirrored_2.experimental_local_results(next(iterator)["number"])
  assert [part.shape.as_list() for part in parts] == [[4], [4]]


def test_options_and_elements_stay():
  options = tf.data.Options()
  options.deterministic = True
  dataset = untuned(tf.data.Dataset.range(3).with_options(options))
  assert dataset.options().deterministic
  assert list(dataset.as_numpy_iterator()) == [0, 1, 2]
