"""A run without a sentence loss does not train its head; reports of next-sentence records have that name."""

import numpy as np
import pytest
from support.tiny_pretraining import newest_values, tiny_settings
from support.tiny_records import random_examples, tiny_config, write_records
from support.tiny_step import distributed_iterator, make_step, one_device
import tensorflow as tf

from albert_tf.checkpoints.checkpoint import load_weights
from albert_tf.modeling import AlbertForPreTraining, initialize_variables, losses, named_variables
from albert_tf.pipelines.record_index import build_record_index
from albert_tf.pretraining import step as step_module
from albert_tf.pretraining.run import run_pretraining
from albert_tf.runs.metrics_log import read_metrics

pytestmark = pytest.mark.slow
UNTRAINED = {
  "bert/pooler/dense/kernel",
  "bert/pooler/dense/bias",
  "cls/seq_relationship/output_weights",
  "cls/seq_relationship/output_bias",
}


@pytest.fixture(scope="module")
def index(tmp_path_factory):
  folder = tmp_path_factory.mktemp("records")
  return build_record_index(
    [write_records(folder / "train-0.tfrecord", random_examples(60, seed=1))]
  )


def updated(strategy, index, **step_config):
  """The weights after five updates, and their metrics."""
  step, variables, _ = make_step(strategy, tiny_config(), global_batch_size=16, **step_config)
  metrics = step.run(distributed_iterator(strategy, index, 16), tf.constant(5))
  return {name: variable.numpy() for name, variable in variables.items()}, metrics


def test_off_is_the_update_with_a_sentence_term_of_zero(mirrored_2, index, monkeypatch):
  """Equal within rounding, on one device and on two replicas with micro-batches; pooler and head do not change."""
  one = one_device()
  off, metrics = updated(one, index, sentence_task="")
  shared, _ = updated(mirrored_2, index, sentence_task="", gradient_accumulation_steps=2)

  def zero_of_sentences(logits, labels, weights=None):
    nothing = 0.0 * tf.reduce_sum(logits)
    sums = losses.cross_entropy_sums(logits, labels, weights)
    return losses.LossSums(nothing, nothing, nothing) if logits.shape.rank == 2 else sums

  monkeypatch.setattr(step_module, "cross_entropy_sums", zero_of_sentences)
  on, _ = updated(one, index)
  _, variables, _ = make_step(one, tiny_config(), global_batch_size=16)
  initialize_variables(variables, seed=3, initializer_range=0.2)
  for name, value in off.items():
    if name in UNTRAINED:  # Where they were left to the optimizer, decay alone moved them.
      np.testing.assert_array_equal(value, variables[name].numpy(), err_msg=name)
      assert name.endswith("bias") or not np.array_equal(on[name], value)
    else:
      np.testing.assert_allclose(value, on[name], rtol=2e-4, atol=2e-5, err_msg=name)
    np.testing.assert_allclose(shared[name], value, rtol=2e-4, atol=2e-5, err_msg=name)
  averages = metrics.averages(5, "")
  assert averages["loss"] == averages["masked_lm_loss"] > 0
  assert not [name for name in averages if "sentence" in name]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """The folder of a whole run without a sentence loss, and its settings."""
  folder = tmp_path_factory.mktemp("off")
  settings = tiny_settings(folder, "whole", sentence_task="", num_train_steps=8)
  run_pretraining(settings)
  return folder, settings


def test_its_checkpoints_hold_the_whole_model_and_its_reports_no_sentence_metric(run):
  folder, _ = run
  run_dir = str(folder / "whole")
  values = newest_values(run_dir)
  slots = {name.rsplit("/", 1)[0] for name in values if name.endswith("/adam_m")}
  model = AlbertForPreTraining(tiny_config())
  assert set(named_variables(model)) - slots == UNTRAINED
  load_weights(model, run_dir)  # As fine-tuning, and what starts from it.
  reports = read_metrics(f"{run_dir}/metrics.jsonl")
  assert {record["split"] for record in reports} == {"train", "eval"}
  assert not [name for record in reports for name in record if "sentence" in name]
  assert all(record["loss"] == record["masked_lm_loss"] for record in reports)
