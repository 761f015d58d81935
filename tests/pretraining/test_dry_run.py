"""--dry_run makes one update and one evaluation, refuses what the run would refuse, and writes nothing."""

import dataclasses
import os

import keras
import numpy as np
import pytest
from support.made_records import contents
from support.tiny_pretraining import tiny_settings, with_changes
from support.tiny_records import random_examples, tiny_config, write_records
from support.tiny_step import EAGER_INPUT, eagerly
import tensorflow as tf
from tensorflow.python.data.ops import multi_device_iterator_ops as iterators

from albert_tf.errors import UserError
from albert_tf.optim.optimizer import Optimizer
from albert_tf.pipelines import batches
from albert_tf.pipelines.record_index import build_record_index
from albert_tf.pretraining.evaluation import Evaluator
from albert_tf.pretraining.run import run_pretraining
from albert_tf.records.tfrecord import frame_record
from albert_tf.runs.settings import DistributionConfig

pytestmark = pytest.mark.filterwarnings(EAGER_INPUT)


@pytest.fixture(autouse=True)
def without_graphs():
  with eagerly():
    yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp("dry")
  tiny_settings(folder, "run")
  return folder


def test_one_update_and_one_evaluation_are_made_and_nothing_is_written(folder, monkeypatch):
  made = []
  apply, evaluate = Optimizer.apply, Evaluator.__call__

  def counted(self, *arguments, **more):
    made.append("update")
    return apply(self, *arguments, **more)

  def evaluated(self, num_steps=None):
    made.append(f"{num_steps} evaluation batch")
    return evaluate(self, num_steps)

  monkeypatch.setattr(Optimizer, "apply", counted)
  monkeypatch.setattr(Evaluator, "__call__", evaluated)
  before = contents(folder)
  assert run_pretraining(tiny_settings(folder, "run"), check_only=True) is None
  assert made == ["update", "1 evaluation batch"]
  assert {
    path: data for path, data in contents(folder).items() if not path.startswith("index/")
  } == before
  assert not (folder / "run").exists()


def broken(folder, name, examples, damage=None):
  """The path of these records, whose byte at `damage` is wrong."""
  path = folder / name
  write_records(path, examples)
  if damage is not None:
    data = bytearray(path.read_bytes())
    data[damage] ^= 0xFF
    path.write_bytes(bytes(data))
  return (str(path),)


def short_record():
  """A record of nine pieces, where the run has ten."""
  short = tf.train.Example()
  short.features.feature["input_ids"].int64_list.value.extend(range(9))
  return frame_record(short.SerializeToString())


@pytest.mark.slow
def test_a_run_leaves_the_process_as_it_was(folder, monkeypatch):
  """Keras' precision and TensorFlow's iterator settings do not change; the run's iterators have no tuning thread."""
  policy, device_dataset = keras.layers.Dense(1).dtype_policy, iterators._create_device_dataset
  assert device_dataset.__module__ == iterators.__name__
  quiet: list[tf.data.Dataset] = []
  without_autotune = batches.without_autotune
  monkeypatch.setattr(
    batches, "without_autotune", lambda dataset: quiet.append(dataset) or without_autotune(dataset)
  )
  distribution = DistributionConfig(mixed_precision="bfloat16")
  run_pretraining(tiny_settings(folder, "run", distribution=distribution), check_only=True)
  assert len(quiet) == 4  # Of training and evaluation: the records, and the device's part of them.
  assert keras.layers.Dense(1).dtype_policy.name == policy.name
  assert iterators._create_device_dataset is device_dataset


@pytest.mark.parametrize("check_only", [True, False])
def test_bad_evaluation_records_are_refused_before_anything_is_written(
  folder, tmp_path, check_only
):
  good = random_examples(300, seed=3)
  (tmp_path / "short").write_bytes(short_record())
  foreign = [{**e, "masked_lm_ids": np.array([36, 5, 99])} for e in good[:2]]
  third = [{**e, "segment_ids": np.full(10, 2)} for e in good[:2]]
  weights = np.array([1, np.nan, 0], np.float32)
  endless = [*good[:250], {**good[0], "masked_lm_weights": weights}]
  settings = tiny_settings(folder, "run", max_eval_steps=100)
  for eval_input_files, received in (
    (broken(tmp_path, "late", good, 271 * 290 + 60), "late, record 290 "),
    ((str(tmp_path / "short"),), "Received: 9 values of input_ids, .* 10 "),
    (broken(tmp_path, "foreign", foreign), "Received: 99 in masked_lm_ids of .*foreign"),
    (broken(tmp_path, "third", third), "Received: 2 in segment_ids of .*third"),
    (
      broken(tmp_path, "endless", endless),
      "Received: nan in masked_lm_weights of .*endless, record 250",
    ),
  ):
    changed = dataclasses.replace(settings, eval_input_files=eval_input_files)
    with pytest.raises(UserError, match=received):
      run_pretraining(changed, check_only=check_only)
  assert not (folder / "run").exists()


@pytest.mark.parametrize(
  ("kind", "check_only"), [("damaged", False), pytest.param("short", True, marks=pytest.mark.slow)]
)
def test_a_bad_record_beyond_the_first_ones_is_named_when_it_is_read(
  folder, tmp_path, kind, check_only
):
  """The record is searched again, because the reader of batches does not know the file."""
  good = random_examples(300, seed=3)
  (path,) = broken(tmp_path, "late", good)
  if kind == "short":
    with open(path, "ab") as stream:
      stream.write(short_record() * 900)
  build_record_index([path])  # As if it had been made with the records: nobody walks them.
  if kind == "damaged":
    broken(tmp_path, "late", good, 271 * 250 + 60)
    os.utime(path, (0, 0))  # In a bucket, times would not tell.
  settings = tiny_settings(folder, "run", input_files=(path,), eval_input_files=())
  settings = dataclasses.replace(settings, output_dir=str(tmp_path / "run"))
  number = {"damaged": 250, "short": 300}[kind]
  with pytest.raises(UserError, match=rf"late, record {number}\b"):
    run_pretraining(settings, check_only=check_only)


@pytest.mark.parametrize(
  ("feature", "values"),
  [
    ("masked_lm_ids", [2**32 + 7, 5, 5]),  # 7, if it were cut to 32 bits.
    pytest.param("masked_lm_weights", [1, np.nan, 0], marks=pytest.mark.slow),
    pytest.param("next_sentence_labels", [7], marks=pytest.mark.slow),
    pytest.param("masked_lm_weights", [1e6, 0, 0], marks=pytest.mark.slow),
  ],
)
def test_a_value_out_of_its_bounds_beyond_the_first_records_is_named(
  folder, tmp_path, feature, values
):
  examples = random_examples(300, seed=3)
  examples[250][feature] = np.array(values, examples[250][feature].dtype)
  settings = tiny_settings(
    folder, "run", input_files=broken(tmp_path, "late", examples), eval_input_files=()
  )
  settings = dataclasses.replace(settings, output_dir=str(tmp_path / "run"))
  wrong = {1: "nan", 1e6: "1000000.0"}.get(values[0], values[0])
  with pytest.raises(UserError, match=rf"Received: {wrong} in {feature} of .*late, record 250\b"):
    run_pretraining(settings)


def test_an_evaluation_batch_that_the_replicas_cannot_divide(folder, mirrored_2, monkeypatch):
  monkeypatch.setattr("albert_tf.pretraining.run.make_strategy", lambda distribution: mirrored_2)
  with pytest.raises(UserError, match=r"eval_batch_size=5, 2 replicas"):
    run_pretraining(tiny_settings(folder, "run", eval_batch_size=5), check_only=True)


def test_the_rest_that_a_run_would_refuse(folder):
  settings = tiny_settings(folder, "run")
  for changes, message in (
    ({"model": tiny_config(max_position_embeddings=9)}, "max_position_embeddings"),
    (
      {"masked_lm_only_steps": settings.num_train_steps},
      "--masked_lm_only_steps.*--sentence_loss=off",
    ),
    ({"masked_lm_only_steps": 1, "sentence_task": ""}, "--masked_lm_only_steps .*Received: 1"),
  ):
    with pytest.raises(UserError, match=message):
      run_pretraining(with_changes(settings, **changes), check_only=True)
  assert not (folder / "run").exists()
