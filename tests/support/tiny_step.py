"""A training step of the tiny model and its input, without a run around them."""

from collections.abc import Iterator, Mapping
import contextlib
import functools
from typing import Any

from support.tiny_records import RULES
import tensorflow as tf

from albert_tf.configs import AlbertConfig
from albert_tf.modeling import AlbertForPreTraining, initialize_variables, named_variables
from albert_tf.modeling.pretraining import trained_variables
from albert_tf.optim.config import OptimizerConfig
from albert_tf.optim.optimizer import Optimizer, build_optimizer
from albert_tf.pipelines.batches import training_batches
from albert_tf.pipelines.record_index import RecordIndex
from albert_tf.pretraining.settings import StepConfig
from albert_tf.pretraining.step import TrainStep
from albert_tf.records.parse import parse_pretraining_batch
from albert_tf.runs.distribution import host_shard

OPTIMIZER = OptimizerConfig(learning_rate=0.02, num_train_steps=9, num_warmup_steps=2)
# A warning that input functions are graphs all the same.
EAGER_INPUT = "ignore:Even though the .tf.config:UserWarning"


@functools.cache
def one_device() -> tf.distribute.Strategy:
  return tf.distribute.OneDeviceStrategy("cpu:0")


@contextlib.contextmanager
def eagerly() -> Iterator[None]:
  """Functions run without a graph: for a few updates a trace would take longer than they do."""
  tf.config.run_functions_eagerly(True)
  try:
    yield
  finally:
    tf.config.run_functions_eagerly(False)


def make_step(
  strategy: tf.distribute.Strategy,
  config: AlbertConfig,
  optimizer_config: OptimizerConfig = OPTIMIZER,
  encoder_options: Mapping[str, Any] | None = None,
  use_xla: bool = False,
  dtype: str = "float32",
  **step_config: Any,
) -> tuple[TrainStep, dict[str, tf.Variable], Optimizer]:
  with strategy.scope():
    model = AlbertForPreTraining(
      config, encoder_options=encoder_options, read_positions_only=True, dtype=dtype
    )
    variables = named_variables(model)
    trained = trained_variables(model, sentence_loss=bool(step_config.get("sentence_task", True)))
    optimizer = build_optimizer(
      optimizer_config, trained, accelerated=model.encoder.accelerated, use_xla=use_xla
    )
  initialize_variables(variables, seed=3, initializer_range=0.2)
  step = TrainStep(
    strategy=strategy,
    model=model,
    optimizer=optimizer,
    config=StepConfig(**step_config),
    use_xla=use_xla,
  )
  return step, variables, optimizer


def distributed_iterator(
  strategy: tf.distribute.Strategy, index: RecordIndex, batch_size: int
) -> Iterator[Any]:
  def batches_of_host(context: tf.distribute.InputContext) -> tf.data.Dataset:
    parse = functools.partial(parse_pretraining_batch, rules=RULES)
    shard = host_shard(strategy, context)
    return training_batches(index, parse, seed=5, global_batch_size=batch_size, shard=shard)

  return iter(strategy.distribute_datasets_from_function(batches_of_host))
