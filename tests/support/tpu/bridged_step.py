"""Traces the pretraining step and the evaluation for eight cores and runs TensorFlow's TPU bridge on both.

Prints what `bridged` says of each as one JSON object; null where this TensorFlow lacks the bridge.
"""

import json
import pathlib
import tempfile
from typing import Any

from support.tiny_records import SPEC, random_examples, tiny_config, write_records
from support.tiny_step import OPTIMIZER, distributed_iterator, make_step
from support.tpu.bridge import bridged, is_there
from support.tpu.emulator import TpuEmulator
import tensorflow as tf

from albert_tf.modeling import AlbertForPreTraining
from albert_tf.pipelines.record_index import build_record_index
from albert_tf.training.distribution import precision_policy
from albert_tf.training.evaluation import Evaluator, HeldOut

POLICY = precision_policy("bfloat16")
CORES = 8
MICRO_BATCHES = 2
BATCH = 2 * CORES * MICRO_BATCHES
CONFIG = tiny_config(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
ENCODER_OPTIONS = {"remat": True}


def traced_step(strategy: tf.distribute.Strategy, records: str) -> Any:
  """One update with every option that changes the program."""
  step, _, _ = make_step(
    strategy,
    CONFIG,
    OPTIMIZER,
    ENCODER_OPTIONS,
    global_batch_size=BATCH,
    dtype=POLICY,
    gradient_accumulation_steps=MICRO_BATCHES,
    train_depths=(1, 2),
  )
  iterator = distributed_iterator(strategy, build_record_index([records]), BATCH)
  return step.run.get_concrete_function(iterator, tf.constant(1))


def traced_evaluation(strategy: tf.distribute.Strategy, records: str) -> Any:
  with strategy.scope():
    model = AlbertForPreTraining(
      CONFIG, encoder_options=ENCODER_OPTIONS, read_positions_only=True, dtype=POLICY
    )
  held_out = HeldOut(build_record_index([records]), SPEC, "sentence_order", BATCH, 1)
  evaluator = Evaluator(strategy=strategy, model=model, sets={"": held_out})
  return evaluator.run.get_concrete_function(iter(evaluator._datasets[""]), tf.constant(1), tf.zeros([6]))


def main() -> None:
  TpuEmulator(CORES, expand=False)
  if not is_there():
    print(json.dumps(None))
    return
  strategy = tf.distribute.TPUStrategy(tf.distribute.cluster_resolver.TPUClusterResolver("local"))
  with tempfile.TemporaryDirectory() as folder:
    records = write_records(pathlib.Path(folder) / "records.tfrecord", random_examples(2 * BATCH, seed=1))
    traced = {"step": traced_step(strategy, records), "evaluation": traced_evaluation(strategy, records)}
  print(json.dumps({name: bridged(function, cores=CORES) for name, function in traced.items()}))


if __name__ == "__main__":
  main()
