"""--on_nonfinite=skip: a poisoned batch leaves no trace but in the count, on any device, across restarts."""

import dataclasses
import json
import os
import pathlib
import signal

import numpy as np
import pytest
from support.stacks import needs_addons, needs_host_xla
from support.tiny_pretraining import tiny_settings
from support.tiny_records import SPEC, random_examples, tiny_config, write_records
from support.tiny_step import OPTIMIZER, distributed_iterator, make_step
import tensorflow as tf

from albert_tf.checkpoints.bundle import latest_checkpoint
from albert_tf.optim.config import OptimizerConfig
from albert_tf.pipelines.batches import training_batches
from albert_tf.pipelines.record_index import build_record_index
from albert_tf.records.parse import parse_pretraining_batch
from albert_tf.training.pretraining import run_pretraining
from albert_tf.training.reporting.reporter import Reporter
from albert_tf.training.watch import NonFiniteError

STEPS, BATCH = 9, 32
AVERAGING = dataclasses.replace(OPTIMIZER, ema_decay=0.5)


def poisoned_examples(count, *poisoned):
  """Examples of which some have an infinite weight: their batch has no finite loss."""
  examples = random_examples(count, seed=1)
  for index in poisoned:
    examples[index]["masked_lm_weights"] = np.array([np.inf, 0.0, 0.0], np.float32)
  return examples


@pytest.fixture(scope="module")
def index(tmp_path_factory):
  path = tmp_path_factory.mktemp("records") / "train-0.tfrecord"
  return build_record_index([write_records(path, poisoned_examples(150, 40))])


def state_of(variables, optimizer):
  return {name: value.numpy() for name, value in {**variables, **optimizer.slots()}.items()}


def leave_out_by_hand(index, optimizer_config):
  """State after 9 steps of a run that never saw the poisoned batches, and their flags."""
  strategy = tf.distribute.OneDeviceStrategy("cpu:0")
  step, variables, optimizer = make_step(strategy, tiny_config(), optimizer_config, global_batch_size=BATCH)
  parse = lambda serialized: parse_pretraining_batch(serialized, SPEC)  # noqa: E731
  flags = []
  for batch in training_batches(index, parse, seed=5, global_batch_size=BATCH).take(STEPS):
    poisoned = not np.isfinite(batch["masked_lm_weights"]).all()
    flags.append(float(poisoned))
    if poisoned:
      optimizer.step.assign_add(1)
    else:
      step.run(iter(tf.data.Dataset.from_tensors(batch)), tf.constant(1))
  assert 0 < sum(flags) < STEPS
  assert flags[0] == 0.0
  return state_of(variables, optimizer), flags


@pytest.fixture(scope="module")
def left_out_by_hand(index):
  return leave_out_by_hand(index, AVERAGING)


@pytest.mark.parametrize(
  ("replicas", "options"),
  [
    (1, {}),
    pytest.param(2, {"gradient_accumulation_steps": 2}, marks=pytest.mark.slow),
    pytest.param(2, {}, marks=pytest.mark.slow),
    pytest.param(1, {"use_xla": True}, marks=[pytest.mark.slow, needs_host_xla]),
  ],
)
def test_a_poisoned_batch_changes_nothing(request, index, left_out_by_hand, replicas, options):
  expected, flags = left_out_by_hand
  strategy = (
    tf.distribute.OneDeviceStrategy("cpu:0") if replicas == 1 else request.getfixturevalue("mirrored_2")
  )
  step, variables, optimizer = make_step(
    strategy, tiny_config(), AVERAGING, global_batch_size=BATCH, on_nonfinite="skip", **options
  )
  iterator = distributed_iterator(strategy, index, BATCH)
  metrics = step.run(iterator, tf.constant(4)).add(step.run(iterator, tf.constant(5)))
  assert metrics.left_out.numpy().tolist() == flags
  assert int(optimizer.step.numpy()) == STEPS
  averages = metrics.averages(STEPS)
  assert averages["skipped_updates"] == sum(flags)
  assert all(np.isfinite(list(averages.values())))
  tolerance = {"rtol": 0, "atol": 0} if replicas == 1 and not options else {"rtol": 2e-4, "atol": 2e-5}
  for name, value in state_of(variables, optimizer).items():
    np.testing.assert_allclose(value, expected[name], err_msg=name, **tolerance)


@needs_addons
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_poisoned_batch_changes_nothing_for_tensorflow_addons(request, index, replicas):
  """Addons' optimizer assigns by itself; its weights, moments and the average are taken back."""
  config = dataclasses.replace(AVERAGING, name="tfa_lamb")
  expected, flags = leave_out_by_hand(index, config)
  strategy = (
    tf.distribute.OneDeviceStrategy("cpu:0") if replicas == 1 else request.getfixturevalue("mirrored_2")
  )
  step, variables, optimizer = make_step(
    strategy, tiny_config(), config, global_batch_size=BATCH, on_nonfinite="skip"
  )
  metrics = step.run(distributed_iterator(strategy, index, BATCH), tf.constant(STEPS))
  assert metrics.left_out.numpy().tolist() == flags
  assert int(optimizer.step.numpy()) == STEPS
  for name, value in state_of(variables, optimizer).items():
    np.testing.assert_allclose(value, expected[name], rtol=2e-4, atol=2e-5, err_msg=name)


@pytest.mark.slow
def test_with_stop_nothing_is_selected_and_the_poison_shows(index):
  strategy = tf.distribute.OneDeviceStrategy("cpu:0")
  operations = {}
  for policy in ("stop", "skip"):
    step, _, _ = make_step(strategy, tiny_config(), global_batch_size=BATCH, on_nonfinite=policy)
    iterator = distributed_iterator(strategy, index, BATCH)
    graph = tf.function(step.on_replica).get_concrete_function(next(iterator)).graph
    operations[policy] = [op.type for op in graph.get_operations()]
  assert operations["skip"].count("SelectV2") > operations["stop"].count("SelectV2") + 30
  assert operations["stop"].count("IsFinite") == 1  # Clipping's own.
  step, _, _ = make_step(strategy, tiny_config(), global_batch_size=BATCH)
  averages = step.run(distributed_iterator(strategy, index, BATCH), tf.constant(STEPS)).averages(STEPS)
  assert not np.isfinite(averages["loss"])
  assert "skipped_updates" not in averages


def skipping_settings(folder, output, *poisoned, **changes):
  records = folder / "poisoned.tfrecord"
  if not records.exists():
    write_records(records, poisoned_examples(70, *poisoned))
  settings = tiny_settings(folder, output, input_files=(str(records),), eval_input_files=(), **changes)
  return dataclasses.replace(settings, step=dataclasses.replace(settings.step, on_nonfinite="skip"))


def checkpoint_values(settings):
  reader = tf.train.load_checkpoint(latest_checkpoint(f"{settings.output_dir}/checkpoints"))
  return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


@pytest.mark.slow
def test_a_run_reports_what_it_left_out_and_resumes_exactly(tmp_path, monkeypatch, capfd):
  whole = skipping_settings(tmp_path, "whole", 3, iterations_per_loop=1)  # A report of no update at all, too.
  run_pretraining(whole)
  said = capfd.readouterr().err
  log = pathlib.Path(whole.output_dir, "metrics.jsonl").read_text()
  reports = [json.loads(line) for line in log.splitlines()]
  assert sum(report["skipped_updates"] for report in reports) >= 1
  step = next(report["step"] for report in reports if report["skipped_updates"])
  assert "left out 1 update(s) whose loss or gradient is not finite: step " in said
  assert "replay_step.py --step=" in said
  killed = dataclasses.replace(whole, output_dir=str(tmp_path / "killed"))
  report = Reporter.train

  def preempted(self, at, *args, **kwargs):
    report(self, at, *args, **kwargs)
    if at == step:
      os.kill(os.getpid(), signal.SIGTERM)

  monkeypatch.setattr(Reporter, "train", preempted)
  assert run_pretraining(killed).step == step
  monkeypatch.undo()
  assert run_pretraining(killed).step == whole.num_train_steps
  expected, found = checkpoint_values(whole), checkpoint_values(killed)
  for name, value in expected.items():
    if not name.startswith("albert_tf/"):
      assert np.isfinite(value).all()
      np.testing.assert_array_equal(value, found[name], err_msg=name)
  assert expected["global_step"] == whole.num_train_steps


@pytest.mark.slow
def test_diverged_weights_end_the_run(tmp_path):
  settings = skipping_settings(tmp_path, "run", *range(70), iterations_per_loop=20, save_checkpoints_steps=20)
  optimizer = OptimizerConfig(learning_rate=0.01, num_train_steps=20, num_warmup_steps=2)
  with pytest.raises(
    NonFiniteError, match=r"10 updates in a row.*Received: 11 up to step 11 .*No checkpoint"
  ):
    run_pretraining(dataclasses.replace(settings, optimizer=optimizer))
  assert latest_checkpoint(f"{settings.output_dir}/checkpoints") is None
