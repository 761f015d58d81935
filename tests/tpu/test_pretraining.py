"""run_pretrain.py on the real TPUStrategy over emulated cores gives the reports and checkpoints of one device."""

import time

import numpy as np
import pytest
from support.commands.child_processes import flags_of
from support.commands.command_runs import largest_differences, write_inputs
from support.stacks import slow_by_default
from support.tpu import runs

from albert_tf.checkpoints.bundle import read_bundle
from albert_tf.compat import STACK

EQUAL = (2e-6, 2e-5)  # In metrics, and in weights and moments: sums are made in another order.
SETTINGS = {
  # Cores, and what is special. The reference computes as many micro-batches one after the other.
  "short": (2, "--num_train_steps=2 --save_checkpoints_steps=2 --eval_input_file="),
  "lamb": (2, "--gradient_accumulation_steps=2 --remat"),
  "adamw": (8, "--optimizer=adamw --layer_loop=while --train_depths=1,2 --learning_rate=0.001"),
  "muon": (2, "--optimizer=muon --muon_learning_rate=0.02 --gradient_accumulation_steps=2"),
  "bfloat16": (2, "--mixed_precision=bfloat16 --bias_correction"),
  "one_core": (1, "--gradient_accumulation_steps=2"),
  "addons": (2, "--optimizer=tfa_lamb"),
}


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
  folder = tmp_path_factory.mktemp("tpu_pretraining")
  inputs = write_inputs(folder, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
  more = f"""
    --output_dir={folder} --train_batch_size=16 --eval_batch_size=8 --learning_rate=0.01 --num_train_steps=8
    --num_warmup_steps=2 --iterations_per_loop=2 --save_checkpoints_steps=4 --mixed_precision=float32
  """
  return inputs | flags_of(more) | {"output_dir": folder}


def both_ways(flags, *names):
  """Runs each setting on one device and on the emulated cores, all in one process; returns the runs on the cores."""
  listed = []
  for name in names:
    cores, more = SETTINGS[name]
    options = flags | flags_of(more)
    parts = cores * int(options.get("gradient_accumulation_steps", 1))
    # In 16 bits a TPU has its own formulation: there one core is compared with many.
    in_16_bits = options["mixed_precision"] == "bfloat16"
    device = {"tpu": "local"} if in_16_bits else {}
    run = flags["output_dir"] / name
    one = {"output_dir": f"{run}_one", "gradient_accumulation_steps": parts}
    listed.append((1, {**options, **device, **one}))
    listed.append((cores, {**options, "tpu": "local", "output_dir": run}))
  found = runs.succeeded(runs.start("run_pretrain", *listed))[1::2]
  for name in names:
    run = flags["output_dir"] / name
    metrics, weights = largest_differences(run, run.with_name(f"{name}_one"))
    print(f"{name}: metrics {metrics:.1e}, weights {weights:.1e}")
    assert metrics < EQUAL[0]
    assert weights < EQUAL[1]
  return dict(zip(names, found, strict=True))


@slow_by_default
def test_two_cores_train_as_one_device(flags):
  run = both_ways(flags, "short")["short"]
  assert "2 replica(s)" in run.stderr
  # An all-reduce for each gradient, and two for weights and metrics.
  [step] = run.programs
  assert step["collectives"] == {"CrossReplicaSum T=float32": 32 + 2}
  assert step["variables"] == 1 + 32 * 3


@pytest.fixture(scope="module")
def lamb(flags):
  return both_ways(flags, "lamb")["lamb"]


@pytest.mark.slow
def test_what_the_cores_exchange_in_training_and_evaluation(lamb):
  step, evaluation = lamb.programs
  assert step["collectives"] == {"CrossReplicaSum T=float32": 32 + 2}
  assert evaluation["collectives"] == {"CrossReplicaSum T=float32": 1}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_other_settings_train_as_on_one_device(flags):
  names = ["adamw", "muon", "bfloat16", "one_core", *(["addons"] if STACK == "addons" else [])]
  assert "8 replica(s)" in both_ways(flags, *names)["adamw"].stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_and_started_again_it_ends_as_never_killed(flags, lamb):
  cores, options = SETTINGS["lamb"]
  run = flags["output_dir"] / "killed"
  own = {"tpu": "local", "output_dir": run, "save_checkpoints_steps": 2}
  command = (cores, {**flags, **flags_of(options), **own})
  process = runs.start("run_pretrain", command)
  while not (run / "checkpoints/model.ckpt-2.index").exists():
    assert process.poll() is None, process.communicate()[1][-2000:]
    time.sleep(0.002)
  process.kill()
  process.communicate()
  [again] = runs.succeeded(runs.start("run_pretrain", command))
  assert "continuing from" in again.stderr
  saved = "checkpoints/model.ckpt-8"
  ours, theirs = read_bundle(str(run / saved)), read_bundle(f"{flags['output_dir']}/lamb/{saved}")
  for name, value in theirs.items():
    np.testing.assert_array_equal(ours[name], value, err_msg=name)
