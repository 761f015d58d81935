"""Traces Keras' train and predict functions of fine-tuning for eight cores and runs TensorFlow's TPU bridge on them.

Prints what `bridged` says of each as one JSON object, of Keras' `fit` and `predict` and of the engine's own prediction,
with whether Keras would compile them itself; null where this TensorFlow lacks the bridge.
"""

from collections.abc import Callable
import dataclasses
import json
from typing import Any
from unittest import mock

from support.tiny_finetuning import BFLOAT16, QUICK, made_up_texts, tiny_start, tiny_task
from support.tpu.bridge import bridged, is_there
from support.tpu.emulator import TpuEmulator
import tensorflow as tf

from albert_tf.finetuning.engine import fit as one_seed
from albert_tf.finetuning.engine.batches import FlatFeatures, planned_dataset, training_plan
from albert_tf.finetuning.engine.predict import Predictor
from albert_tf.modeling import named_variables
from albert_tf.training.distribution import host_shard

CORES = 8
SETTINGS = dataclasses.replace(
  QUICK,
  bucket_multiple=None,
  distribution=BFLOAT16,
  dropout=0.1,
  classifier_dropout=0.1,
  train_batch_size=16,
  gradient_accumulation_steps=2,
  remat=True,
)


def built_by(make: Callable[[], None]) -> Any:
  """The outermost `tf.function` that Keras makes within `make`."""
  made, real = [], tf.function

  def spy(*arguments: Any, **options: Any) -> Any:
    made.append(real(*arguments, **options))
    return made[-1]

  with mock.patch.object(tf, "function", spy):
    make()
  return made[-1]


def main() -> None:
  TpuEmulator(CORES, expand=False)
  if not is_there():
    print(json.dumps(None))
    return
  strategy = tf.distribute.TPUStrategy(tf.distribute.cluster_resolver.TPUClusterResolver("local"))
  task = tiny_task({"train": made_up_texts(32)})
  model = one_seed.build_model(task, SETTINGS, start=tiny_start(), strategy=strategy)
  schedule = one_seed.make_schedule(SETTINGS, num_steps=10)
  one_seed.compile_model(model, task, SETTINGS, schedule)
  with strategy.scope():
    model.optimizer.build(model.trainable_variables)
  batching = one_seed.make_batching(task, SETTINGS, 16, strategy)
  flat = FlatFeatures.of(task.features("train"))
  plan = training_plan(flat, batching, seed=1, num_steps=10)
  batches = iter(
    strategy.distribute_datasets_from_function(
      lambda context: planned_dataset(flat, plan, batching, shard=host_shard(strategy, context))
    )
  )
  batch = next(batches)
  predictor = Predictor(model, strategy=strategy, batching=batching)
  traced = {
    "fit": built_by(model.make_train_function).get_concrete_function(batches),
    "predict": built_by(model.make_predict_function).get_concrete_function([batch]),
    "predictor": predictor._step.get_concrete_function(batch[0]),
  }
  found = {name: bridged(function, cores=CORES) for name, function in traced.items()}
  print(json.dumps({**found, "weights": len(named_variables(model)), "jit_compile": bool(model.jit_compile)}))


if __name__ == "__main__":
  main()
