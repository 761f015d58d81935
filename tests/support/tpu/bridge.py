"""TensorFlow's own TPU bridge on what a TPU's host gets, traced for eight cores: in MLIR, without a TPU.

Prints what `bridged` says of the pretraining step, its evaluation, Keras' `fit` and `predict` of fine-tuning, and the
models' own prediction, and why answers cannot stop early, as one JSON object; null where this TensorFlow lacks the
bridge.
"""

from collections import Counter
from collections.abc import Callable
import functools
import json
import pathlib
import re
import tempfile
from typing import Any
from unittest import mock

from support.tiny_finetuning import made_up_texts, tiny_start, tiny_task
from support.tiny_records import RULES, random_examples, tiny_config, write_records
from support.tiny_step import OPTIMIZER, distributed_iterator, make_step
from support.tpu.emulator import TpuEmulator
import tensorflow as tf

from albert_tf import AdamW, AlbertClassifier, WarmupPolynomialDecay
from albert_tf.errors import UserError
from albert_tf.keras_api.batches import TrainingBatches
from albert_tf.keras_api.predictor import Predictor
from albert_tf.modeling import AlbertForPreTraining, named_variables
from albert_tf.pipelines.record_index import build_record_index
from albert_tf.pretraining.evaluation import Evaluator, HeldOut
from albert_tf.runs.distribution import precision_policy

CORES = 8
POLICY = precision_policy("bfloat16")
MICRO_BATCHES = 2
BATCH = 2 * CORES * MICRO_BATCHES
CONFIG = tiny_config(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
ENCODER_OPTIONS = {"remat": True}
_PIPELINE = "tf-replicated-clustering-bridge-v2"
_HOST = "/job:localhost/replica:0/task:0/device:"
_OUTSIDE = (
  r"_xla_outside_compilation|tf_device\.parallel_execute|HostCompute|XlaSendFromHost|XlaRecvAtHost"
)


def is_there() -> bool:
  """Whether this TensorFlow lets Python run the bridge: plain TensorFlow does since some time after 2.15."""
  try:
    tf.mlir.experimental.run_pass_pipeline("module {}", _PIPELINE, False)
  except (AttributeError, tf.errors.OpError):
    return False
  return True


def bridged(function: Any) -> dict[str, Any]:
  """Runs the bridge and counts what it made.

  Args:
    function: a concrete function with one TPU program or several, traced by a `TpuEmulator` with `expand=False`, so
      that it holds what `tpu.replicate` left.

  Returns:
    `programs`: compiled programs, each started on all cores; `replicas`: of each. `variables`: resources that
    programs use; `reads`, `writes`: most of any one of them in one step. `inside`: variable operations left in a
    program, where the compiler would meet them; `outside`: traces of operations that a program leaves to
    the host; `must_compile`: functions marked to be compiled within a program.
  """
  traced = tf.mlir.experimental.convert_function(function, pass_pipeline="", show_debug_info=False)
  names = ["CPU:0", "TPU_SYSTEM:0", *(f"TPU:{index}" for index in range(CORES))]
  devices = ", ".join(f'"{_HOST}{name}"' for name in names)
  attributes = "module attributes {"
  traced = traced.replace(attributes, f"{attributes}tf.devices = {{{devices}}}, ", 1)
  text = tf.mlir.experimental.run_pass_pipeline(traced, _PIPELINE, False)
  programs = set(re.findall(r'"tf_device\.cluster_func".*?func = @(\w+)', text))
  functions = re.split(r"\n(?=  func\.func )", text)
  names = [re.search(r"func\.func[^@]*@(\w+)", function) for function in functions]
  within = [
    text for text, name in zip(functions, names, strict=True) if name and name[1] in programs
  ]
  hosts = "\n".join(function for function in functions if function not in within)
  reads = Counter(re.findall(r'"tf\.ReadVariableOp"\((%\w+)', hosts))
  writes = Counter(re.findall(r'"tf\.AssignVariableOp"\((%\w+)', hosts))
  replicas = re.findall(r"tf_device\.replicate.*?n = (\d+) : i32", text, re.DOTALL)
  return {
    "programs": len(programs),
    "replicas": sorted(set(map(int, replicas))),
    "variables": len(reads | writes),
    "reads": max(reads.values(), default=0),
    "writes": max(writes.values(), default=0),
    "inside": sum(function.count("VariableOp") for function in within),
    "outside": len(re.findall(_OUTSIDE, text)),
    "must_compile": len(re.findall(r"_XlaMustCompile = true", text)),
  }


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
  held_out = HeldOut(build_record_index([records]), RULES, "sentence_order", BATCH, 1)
  evaluator = Evaluator(strategy=strategy, model=model, sets={"": held_out})
  return evaluator.run.get_concrete_function(iter(evaluator._datasets[""]), tf.constant(1))


def built_by(make: Callable[[], None]) -> Any:
  """The outermost `tf.function` that Keras makes within `make`."""
  made, real = [], tf.function

  def spy(*arguments: Any, **options: Any) -> Any:
    made.append(real(*arguments, **options))
    return made[-1]

  with mock.patch.object(tf, "function", spy):
    make()
  return made[-1]


def traced_fit(strategy: tf.distribute.Strategy) -> tuple[Any, dict[str, Any]]:
  """The model, and its functions."""
  task = tiny_task({"train": made_up_texts(32)})
  examples = task.features("train")
  with strategy.scope():
    model = AlbertClassifier(
      tiny_start(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1).config,
      task=task.spec,
      encoder_options={"remat": True, "padding_at_end": True},
      train_depths=(1, 2),
      dtype=POLICY,
    )
    schedule = WarmupPolynomialDecay(learning_rate=1e-3, num_train_steps=10, num_warmup_steps=1)
    model.compile(AdamW(schedule, global_clipnorm=1.0), loss=task.loss())
    model.optimizer.build(model.trainable_variables)
  model.gradient_accumulation_steps = MICRO_BATCHES
  training = TrainingBatches.plan(
    model,
    examples,
    batch_size=16,
    epochs=1,
    initial_epoch=0,
    steps_per_epoch=10,
    shuffle=True,
    state=None,
  )
  batches = iter(training.dataset)
  batch = next(batches)
  predictor = Predictor(model, functools.partial(model, training=False))
  return model, {
    "fit": built_by(model.make_train_function).get_concrete_function(batches),
    "predict": built_by(model.make_predict_function).get_concrete_function([batch]),
    "predictor": predictor._traced_step.get_concrete_function(batch[0]),
  }


def refusal_to_stop_early(model: Any) -> str:
  """What the error says: no text can leave a batch on a TPU, whose shapes are constant."""
  try:
    model.predict_early({}, threshold=0.5)
  except UserError as error:
    return str(error)
  return ""


def main() -> None:
  TpuEmulator(CORES, expand=False)
  if not is_there():
    print(json.dumps(None))
    return
  strategy = tf.distribute.TPUStrategy(tf.distribute.cluster_resolver.TPUClusterResolver("local"))
  model, functions = traced_fit(strategy)
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, "records.tfrecord")
    records = write_records(path, random_examples(2 * BATCH, seed=1))
    functions["step"] = traced_step(strategy, records)
    functions["evaluation"] = traced_evaluation(strategy, records)
  found = {name: bridged(function) for name, function in functions.items()}
  found |= {"weights": len(named_variables(model)), "jit_compile": bool(model.jit_compile)}
  found["early"] = refusal_to_stop_early(model)
  print(json.dumps(found))


if __name__ == "__main__":
  main()
