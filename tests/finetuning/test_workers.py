"""Fine-tuning with several workers: they decide together, and the weights equal those of one worker."""

import json
import os
import sys

import numpy as np
import pytest
from support.commands.child_processes import free_addresses, start_python

from albert_tf.checkpoints.bundle import latest_bundle, read_bundle

pytestmark = pytest.mark.slow

# The second worker's own metrics never get better: by them it would see other steps as the best.
_WORKER = """
import dataclasses, json, os, signal, sys
from albert_tf.runs.distribution import make_strategy
from albert_tf.runs.settings import DistributionConfig
strategy = make_strategy(DistributionConfig())
import keras
from support.tiny_finetuning import QUICK, made_up_texts, tiny_start, tiny_task
from albert_tf.errors import StoppedError
from albert_tf.finetuning.engine.fit import fine_tune
task = tiny_task({"train": made_up_texts(16, seed=5), "eval": made_up_texts(9, seed=6)})
evaluate, calls, second = task.evaluate, [], sys.argv[2] == "1"
def disagreeing(outputs, split="eval"):
  calls.append(split)
  return {**evaluate(outputs, split), "accuracy": 0.1 if second else 0.1 * len(calls)}
task.evaluate = disagreeing
settings = dataclasses.replace(QUICK, num_train_steps=8, eval_steps=2, train_batch_size=4, seeds=(1, 2))
if sys.argv[3] == "differ" and second:
  task = tiny_task({"train": made_up_texts(16, seed=4), "eval": made_up_texts(9, seed=6)})
class Stop(keras.callbacks.Callback):
  def on_train_batch_begin(self, batch, logs=None):
    if sys.argv[3] == "stop" and second and batch == 1:  # In the second of two updates: of an evaluation.
      os.kill(os.getpid(), signal.SIGTERM)
options = {"start": tiny_start(), "output_dir": sys.argv[1], "strategy": strategy, "callbacks": [Stop()]}
try:
  results = fine_tune(task, settings, **options)
except StoppedError as stop:
  sys.exit(str(stop))
print(json.dumps({seed: [run["train_steps"], run["best_step"]] for seed, run in results["seeds"].items()}))
"""


def run(tmp_path, places, action):
  """The workers' (status, standard output, standard error); two of them train in `two`."""
  cluster = {"worker": free_addresses(2)}
  workers = []
  for index, place in enumerate(places):
    config = {}
    if place == "two":
      config = {"cluster": cluster, "task": {"type": "worker", "index": index}}
    words = ["-c", _WORKER, str(tmp_path / place), str(index), action]
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "TF_CONFIG": json.dumps(config)}
    workers.append(start_python(*words, **environment))
  try:
    outputs = [worker.communicate(timeout=280) for worker in workers]
  finally:
    for worker in workers:
      worker.kill()
  return [(worker.returncode, *output) for worker, output in zip(workers, outputs, strict=True)]


@pytest.mark.timeout(600)
def test_workers_with_different_examples_are_refused(tmp_path):
  for status, _, stderr in run(tmp_path, ("two", "two"), "differ"):
    assert status == 1
    assert "must have the same flags" in stderr


@pytest.mark.timeout(600)
def test_the_best_weights_and_the_end_are_one_decision(tmp_path):
  # SIGTERM reaches the second one alone.
  for status, _, stderr in run(tmp_path, ("two", "two"), "stop"):
    assert status == 1, stderr[-3000:]
    assert "stopped at update 2, saved" in stderr
  for status, stdout, stderr in run(tmp_path, ("two", "two", "one"), "go on"):
    assert status == 0, stderr[-3000:]
    assert json.loads(stdout.splitlines()[-1]) == {"1": [8, 8], "2": [8, 8]}
  one, two = (
    read_bundle(latest_bundle(str(tmp_path / name / "seed_2/checkpoints/best")))
    for name in ("one", "two")
  )
  for name, value in one.items():
    np.testing.assert_allclose(value, two[name], atol=2e-5, err_msg=name)
