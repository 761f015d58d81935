"""Fine-tuning as several workers: what one of them decides holds for all."""

import json
import os
import subprocess
import sys

import pytest
from support.commands.child_processes import ending_with_this, free_addresses

pytestmark = pytest.mark.slow

# The second worker's own metrics never get better: by them it would leave after its second evaluation, and see
# other steps as the best.
_WORKER = """
import dataclasses, json, sys
from albert_tf.training.distribution import make_strategy
from albert_tf.training.settings import DistributionConfig
strategy = make_strategy(DistributionConfig(distribution="multi_worker"))
from support.tiny_finetuning import QUICK, made_up_texts, tiny_start, tiny_task
from albert_tf.finetuning.engine.fit import fine_tune
task = tiny_task({"train": made_up_texts(16, seed=5), "eval": made_up_texts(9, seed=6)})
evaluate, calls, second = task.evaluate, [], sys.argv[2] == "1"
def disagreeing(outputs, split="eval"):
  calls.append(split)
  return {**evaluate(outputs, split), "accuracy": 0.1 if second else 0.1 * len(calls)}
task.evaluate = disagreeing
settings = dataclasses.replace(
  QUICK, num_train_steps=8, eval_steps=2, train_batch_size=4, early_stopping_patience=1, seeds=(1, 2)
)
results = fine_tune(task, settings, start=tiny_start(), output_dir=sys.argv[1], strategy=strategy).results
print(json.dumps({seed: [run["train_steps"], run["best_step"]] for seed, run in results["seeds"].items()}))
"""


def test_early_stopping_is_one_decision(tmp_path):
  cluster = {"worker": free_addresses(2)}
  workers = []
  for index in range(2):
    task = {"cluster": cluster, "task": {"type": "worker", "index": index}}
    workers.append(
      subprocess.Popen(
        ending_with_this([sys.executable, "-c", _WORKER, str(tmp_path / "run"), str(index)]),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TF_CONFIG": json.dumps(task)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
      )
    )
  try:
    outputs = [worker.communicate(timeout=280) for worker in workers]
  finally:
    for worker in workers:
      worker.kill()
  for worker, (_, stderr) in zip(workers, outputs, strict=True):
    assert worker.returncode == 0, stderr[-3000:]
  seen = [json.loads(stdout.splitlines()[-1]) for stdout, _ in outputs]
  assert seen[0] == seen[1] == {"1": [8, 8], "2": [8, 8]}
